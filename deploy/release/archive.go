package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"time"
)

// member is one file of an archive; its name uses slashes.
type member struct {
	name string
	mode fs.FileMode
	data []byte
}

// tarball writes members in a folder, all with the same time and owner.
func tarball(w io.Writer, folder string, made time.Time, members []member) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, m := range members {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(folder, m.name), Size: int64(len(m.data)), Mode: int64(m.mode),
			ModTime: made, Format: tar.FormatPAX}); err != nil {
			return err
		}
		if _, err := t.Write(m.data); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// zipped is tarball's counterpart for Windows.
func zipped(w io.Writer, folder string, made time.Time, members []member) error {
	z := zip.NewWriter(w)
	for _, m := range members {
		h := &zip.FileHeader{Name: path.Join(folder, m.name), Method: zip.Deflate, Modified: made.UTC()}
		h.SetMode(m.mode)
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(m.data); err != nil {
			return err
		}
	}
	return z.Close()
}

// checksum returns the SHA-256 of a file, in hex, and its size.
func checksum(name string) (string, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), n, err
}
