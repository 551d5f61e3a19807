package hub

import (
	"crypto/sha1" //nolint:gosec // git names its objects by SHA-1; nothing here relies on it against an attacker
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"regexp"
	"strings"
)

// Digest is the hash that a server promises for a file, as the cache names it: 64
// hexadecimal digits are the SHA-256 of its content, 40 are its git blob id.
type Digest string

var hexDigits = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// digestOf reads an ETag or a digest; "" if it is not a hash of the content.
func digestOf(etag string) Digest {
	d := strings.Trim(strings.TrimPrefix(strings.TrimSpace(etag), "W/"), `"`)
	d = strings.TrimPrefix(d, "sha256:")
	if !hexDigits.MatchString(d) {
		return ""
	}
	return Digest(d)
}

// hasher computes a digest of the same kind as d of a file of size bytes.
func (d Digest) hasher(size int64) hash.Hash {
	if len(d) != 40 {
		return sha256.New()
	}
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

func (d Digest) matches(h hash.Hash) bool { return hex.EncodeToString(h.Sum(nil)) == string(d) }

// kind names the hash for people.
func (d Digest) kind() string {
	if len(d) == 40 {
		return "git blob id"
	}
	return "SHA-256"
}

// CheckFile reads every byte of a file and compares its hash. It calls add, if not nil, with
// the number of bytes of each read.
func CheckFile(path string, want Digest, add func(int64)) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	h := want.hasher(st.Size())
	if _, err := io.Copy(io.MultiWriter(h, counted(add)), f); err != nil {
		return err
	}
	if !want.matches(h) {
		return fmt.Errorf("%w: %s: its %s is not %s: remove it and pull it again", ErrDamaged, path, want.kind(), want)
	}
	return nil
}

// counted adds the number of bytes that are written to it.
type counted func(int64)

func (add counted) Write(p []byte) (int, error) {
	if add != nil {
		add(int64(len(p)))
	}
	return len(p), nil
}
