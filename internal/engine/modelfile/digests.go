package modelfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// The digests of large files are cached in the user's cache folder, so that later processes of this
// machine need not read the files again. An entry is a file. Its name is the key, and it ends with
// a checksum.
const (
	digestMagic  = "shoal digests 1\n"
	digestSuffix = ".digests"
	lockSuffix   = ".lock"
	lockPause    = 50 * time.Millisecond
	lockLimit    = 5 * time.Minute // a process that holds the lock for longer may be stopped
	maxEntries   = 1024            // older ones are removed; a pulled model has one for each weight file
)

// Digests returns the size bytes cached under key. If there are none it returns the result of
// compute and caches it if keep then returns true. One process of a machine computes while others
// wait for it. Without a writable folder every process computes.
func Digests(ctx context.Context, key [sha256.Size]byte, size int, keep func() bool, compute func() ([]byte, error)) ([]byte, error) {
	dir, err := digestDir()
	if err != nil {
		return compute()
	}
	path := digestPath(dir, key)
	var data []byte
	kept := func() (ok bool) { data, ok = readDigests(path, key, size); return ok }
	if kept() {
		return data, nil
	}
	unlock, err := lockUnless(ctx, path+lockSuffix, kept)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if kept() { // the process that had the lock has cached it
		return data, nil
	}
	data, err = compute()
	if err == nil && keep() {
		writeDigests(dir, path, key, data)
	}
	return data, err
}

// StoredDigests returns the size bytes cached under key, if there are any.
func StoredDigests(key [sha256.Size]byte, size int) ([]byte, bool) {
	dir, err := digestDir()
	if err != nil {
		return nil, false
	}
	return readDigests(digestPath(dir, key), key, size)
}

// StoreDigests caches data under key.
func StoreDigests(key [sha256.Size]byte, data []byte) {
	if dir, err := digestDir(); err == nil {
		writeDigests(dir, digestPath(dir, key), key, data)
	}
}

func digestPath(dir string, key [sha256.Size]byte) string {
	return filepath.Join(dir, hex.EncodeToString(key[:])+digestSuffix)
}

// lockUnless takes the lock at path, or waits for its holder until done returns true. On systems
// without locks it returns at once.
func lockUnless(ctx context.Context, path string, done func() bool) (unlock func(), err error) {
	for began := time.Now(); ; {
		lock, err := flock.Open(path, flock.Own)
		if err == nil {
			return func() {
				_ = os.Remove(path) // a waiting process creates a new one
				lock.Close()
			}, nil
		}
		if !errors.Is(err, flock.ErrHeld) {
			return func() {}, nil
		}
		lock.Close()
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if done() || time.Since(began) > lockLimit {
			return func() {}, nil
		}
	}
}

func digestDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "shoal", "digests")
	return dir, os.MkdirAll(dir, 0o700)
}

func readDigests(path string, key [sha256.Size]byte, size int) ([]byte, bool) {
	whole := len(digestMagic) + size + sha256.Size
	file, err := Read(path, int64(whole))
	if err != nil || len(file) != whole || !bytes.HasPrefix(file, []byte(digestMagic)) {
		return nil, false
	}
	data := file[len(digestMagic):][:size]
	if sum := digestSum(key, data); !bytes.Equal(sum[:], file[whole-sha256.Size:]) {
		return nil, false
	}
	return data, true
}

func digestSum(key [sha256.Size]byte, data []byte) [sha256.Size]byte {
	return sha256.Sum256(slices.Concat([]byte(digestMagic), key[:], data))
}

// writeDigests ignores errors, because the cache only saves time.
func writeDigests(dir, path string, key [sha256.Size]byte, data []byte) {
	prune(dir)
	f, err := os.CreateTemp(dir, "writing-*")
	if err != nil {
		return
	}
	defer os.Remove(f.Name())
	sum := digestSum(key, data)
	_, err = f.Write(slices.Concat([]byte(digestMagic), data, sum[:]))
	if errors.Join(err, f.Close()) == nil {
		_ = os.Rename(f.Name(), path)
	}
}

// prune removes the oldest files above maxEntries.
func prune(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < maxEntries {
		return
	}
	age := func(e os.DirEntry) time.Time {
		if info, err := e.Info(); err == nil {
			return info.ModTime()
		}
		return time.Time{}
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), lockSuffix) })
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return age(a).Compare(age(b)) })
	for _, e := range entries[:max(0, len(entries)-maxEntries/2)] {
		_ = os.Remove(filepath.Join(dir, e.Name()))
	}
}
