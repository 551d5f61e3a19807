package shard

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
	"github.com/shoal-llm/shoal/topology"
)

// Cache stores quantized matrices on disk in the layout of the kernels, so that the next start need
// not quantize again. A file is one slice of one matrix. Its name is a hash of the model's
// identity, the slice, the type and the layout. Files are written to a temporary name and renamed.
// A checksum for every MiB detects torn, damaged and foreign files, which are removed and written
// again. No number in a file determines the size of an allocation.
//
// The bytes are copied into huge pages instead of being mapped: a mapped file has small pages, which
// cost a fifth of the bandwidth in every step.
type Cache struct {
	Dir    string // created if it does not exist
	Limit  int64  // bytes of all files; beyond it the least recently used are removed
	Logger *slog.Logger

	hits, stored atomic.Int64
}

const (
	cacheMagic  = "shoal packed 1\n\x00" // changes with the layout of a packed weight
	cacheSuffix = ".weights"
	cacheHeader = len(cacheMagic) + sha256.Size
	cachePiece  = 1 << 20
)

// cacheKey identifies the rows of a tensor in the type and layout of w.
func cacheKey(model, name string, rows topology.Range, w *tensor.Weight) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s%s %q %d-%d of %d columns, units %d-%d, %v", cacheMagic, model, name, rows.Lo,
		rows.Hi, w.Cols, w.UnitLo, w.UnitHi, w.Type))
}

func (c *Cache) path(key [sha256.Size]byte) string {
	return filepath.Join(c.Dir, fmt.Sprintf("%x%s", key[:], cacheSuffix))
}

func pieces(n int) int { return (n + cachePiece - 1) / cachePiece }

// load fills w from its file. If there is no intact file, it returns false and w is zero.
func (c *Cache) load(key [sha256.Size]byte, w *tensor.Weight, pool *tensor.Pool) bool {
	path, data := c.path(key), w.Packed()
	err := readPacked(path, key, data, pool)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // the time only decides which file is removed first
		c.hits.Add(1)
		return true
	}
	clear(data)
	if !errors.Is(err, fs.ErrNotExist) {
		c.Logger.Warn("cached weights are unusable, removing the file", "file", path, "error", err)
		_ = os.Remove(path)
	}
	return false
}

func readPacked(path string, key [sha256.Size]byte, data []byte, pool *tensor.Pool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	sums := make([]byte, 4*pieces(len(data)))
	want := int64(cacheHeader + len(data) + len(sums))
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() || st.Size() != want {
		return errors.Join(err, fmt.Errorf("shard: the file does not have %d bytes", want))
	}
	head := make([]byte, cacheHeader)
	if _, err := f.ReadAt(head, 0); err != nil {
		return err
	}
	if !bytes.Equal(head, append([]byte(cacheMagic), key[:]...)) {
		return errors.New("shard: the header describes another matrix")
	}
	if _, err := f.ReadAt(sums, int64(cacheHeader+len(data))); err != nil {
		return err
	}
	errs := make([]error, pieces(len(data)))
	pool.Run(len(errs), func(i int) {
		piece := data[i*cachePiece : min((i+1)*cachePiece, len(data))]
		if _, err := f.ReadAt(piece, int64(cacheHeader+i*cachePiece)); err != nil {
			errs[i] = err
		} else if crc32c.Of(piece) != binary.LittleEndian.Uint32(sums[4*i:]) {
			errs[i] = fmt.Errorf("shard: wrong checksum of MiB %d", i)
		}
	})
	return errors.Join(errs...)
}

// store writes w's file. Errors are logged: the cache only saves time.
func (c *Cache) store(key [sha256.Size]byte, w *tensor.Weight) {
	if err := c.write(key, w.Packed()); err != nil {
		c.Logger.Warn("weights are not cached", "folder", c.Dir, "error", err)
		return
	}
	c.stored.Add(1)
}

func (c *Cache) write(key [sha256.Size]byte, data []byte) (err error) {
	size := int64(cacheHeader + len(data) + 4*pieces(len(data)))
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	if ok, err := c.makeRoom(size); !ok || err != nil {
		return err
	}
	f, err := os.CreateTemp(c.Dir, "writing-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	sums := make([]byte, 0, 4*pieces(len(data)))
	for piece := range slices.Chunk(data, cachePiece) {
		sums = binary.LittleEndian.AppendUint32(sums, crc32c.Of(piece))
	}
	for _, part := range [][]byte{[]byte(cacheMagic), key[:], data, sums} {
		if _, err := f.Write(part); err != nil {
			return err
		}
	}
	// No sync: after a power failure the checksums detect missing data.
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.path(key))
}

// abandoned is the age from which a temporary file is assumed to have no writer.
const abandoned = time.Hour

// makeRoom removes the least recently used files until size more bytes fit. It returns false if they
// cannot fit.
func (c *Cache) makeRoom(size int64) (bool, error) {
	if size > c.Limit {
		return false, nil
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return false, err
	}
	var files []fs.FileInfo
	total := size
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // removed meanwhile, or not a cache file
		}
		if strings.HasPrefix(e.Name(), "writing-") && time.Since(info.ModTime()) > abandoned {
			_ = os.Remove(filepath.Join(c.Dir, e.Name()))
		}
		if strings.HasSuffix(e.Name(), cacheSuffix) {
			files, total = append(files, info), total+info.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if total <= c.Limit {
			break
		}
		if err := os.Remove(filepath.Join(c.Dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		total -= f.Size()
	}
	return true, nil
}
