package checkpoint_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// write1 changes one byte of a file in place, at a fraction of its size, and restores its
// modification time.
func write1(t testing.TB, path string, at float64) {
	t.Helper()
	st, err := os.Stat(path)
	check(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	b, off := make([]byte, 1), int64(float64(st.Size())*at)
	_, err = f.ReadAt(b, off)
	check(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, off)
	check(t, errors.Join(err, f.Close()))
	check(t, os.Chtimes(path, st.ModTime(), st.ModTime()))
}

// Every byte of every needed tensor is part of the identity.
func TestHashCoversEveryByte(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := write(t, modeltest.Small(), 1)
	path := filepath.Join(dir, "model.safetensors")
	seen := map[string]float64{}
	for _, at := range []float64{2, 0.3, 0.5, 0.77, 0.999999} { // 2: before any change
		if at < 1 {
			write1(t, path, at)
		}
		h := open(t, dir).Hash()
		if other, ok := seen[h]; ok {
			t.Errorf("a byte at %v of the file leaves the hash of %v", at, other)
		}
		seen[h] = at
	}
}

// In every format all bytes of the weights count, up to the last one of the file.
func TestHashOfEveryFormat(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	converted := func(from string) string {
		c, err := checkpoint.Open(from)
		check(t, err)
		defer c.Close()
		path := filepath.Join(t.TempDir(), "m.gguf")
		put(t, path, modeltest.Convert(c, always(gguf.F32)).Bytes())
		return path
	}
	latent := t.TempDir()
	check(t, modeltest.SameMScale("../model/testdata/deepseek_v2", latent))
	quantized, _ := fp8(t)
	for name, path := range map[string]string{
		"one file": write(t, modeltest.Small(), 1), "several files": write(t, modeltest.Odd(), 1), "fp8": quantized,
		"gguf": converted(write(t, modeltest.Small(), 1)), "gguf, latent attention": converted(latent),
	} {
		c := open(t, path)
		r, err := c.Verify(context.Background(), nil)
		check(t, err)
		if n := c.PieceBytes(); n != r.Bytes || n == 0 {
			t.Errorf("%s: the hash covers %d bytes of %d", name, n, r.Bytes)
		}
		first := c.Hash()
		files := c.Files()
		write1(t, files[len(files)-1], 0.9999999)
		if open(t, path).Hash() == first {
			t.Errorf("%s: another last byte, and the same hash", name)
		}
	}
}

// The digests are computed once, by one of several processes, and cached. A file with another stamp
// is read again, even if its modification time was restored.
func TestHashIsKept(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := write(t, modeltest.Small(), 1)
	path := filepath.Join(dir, "model.safetensors")
	time.Sleep(100 * time.Millisecond) // a file that was just written is not trusted
	read := func(n int) (hash string, bytes int64) {
		before := checkpoint.Summed()
		var wg sync.WaitGroup
		hashes := make([]string, n)
		for i := range n {
			wg.Go(func() {
				c, err := checkpoint.Open(dir)
				if err != nil {
					t.Error(err)
					return
				}
				hashes[i] = c.Hash()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if slices.ContainsFunc(hashes, func(h string) bool { return h != hashes[0] }) {
			t.Errorf("hashes %q", hashes)
		}
		return hashes[0], checkpoint.Summed() - before
	}
	first, once := read(4)
	if st, err := os.Stat(path); err != nil || once == 0 || once > st.Size() {
		t.Errorf("four at once read %d bytes, the file has %v, %v", once, st, err)
	}
	if again, bytes := read(1); again != first || bytes != 0 {
		t.Errorf("a second start read %d bytes, hash %s, want %s", bytes, again, first)
	}
	entries, err := filepath.Glob(filepath.Join(cache, "shoal", "digests", "*"))
	check(t, err)
	if len(entries) != 1 {
		t.Fatalf("kept %v", entries)
	}
	damage := func(what string, f func(path string) error) {
		t.Helper()
		check(t, f(entries[0]))
		if again, bytes := read(1); again != first || bytes != once {
			t.Errorf("%s: read %d bytes, hash %s; want %d, %s", what, bytes, again, once, first)
		}
		if again, bytes := read(1); again != first || bytes != 0 {
			t.Errorf("after %s: read %d bytes, hash %s; want none, %s", what, bytes, again, first)
		}
	}
	damage("a flipped byte of the kept digests", func(p string) error { write1(t, p, 0.5); return nil })
	damage("cut digests", func(p string) error { return os.Truncate(p, 40) })
	damage("removed digests", os.Remove)
	write1(t, path, 0.9)
	if other, bytes := read(1); other == first || bytes != once {
		t.Errorf("after a change: read %d bytes, hash %s; want %d and another hash", bytes, other, once)
	}
	write1(t, path, 0.9)
	if back, _ := read(1); back != first {
		t.Errorf("the bytes are back, hash %s, want %s", back, first)
	}
	t.Setenv("XDG_CACHE_HOME", path) // no folder can be created below a file
	if again, bytes := read(1); again != first || bytes != once {
		t.Errorf("without a cache: read %d bytes, hash %s", bytes, again)
	}
}

func openPath(t testing.TB) (*checkpoint.Checkpoint, string) {
	t.Helper()
	dir := write(t, modeltest.Small(), 1)
	return open(t, dir), filepath.Join(dir, "model.safetensors")
}

// Recheck and Since around a read detect every change.
func TestRecheck(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ctx := context.Background()
	for name, change := range map[string]struct {
		do   func(t *testing.T, path string)
		same bool // the bytes
	}{
		"nothing":           {func(*testing.T, string) {}, true},
		"edited":            {func(t *testing.T, p string) { write1(t, p, 0.9) }, false},
		"truncated":         {func(t *testing.T, p string) { check(t, os.Truncate(p, 1000)) }, false},
		"touched":           {func(t *testing.T, p string) { check(t, os.Chtimes(p, time.Now(), time.Unix(1, 0))) }, true},
		"removed":           {func(t *testing.T, p string) { check(t, os.Remove(p)) }, true},
		"written as it was": {func(t *testing.T, p string) { b, err := os.ReadFile(p); check(t, err); check(t, os.WriteFile(p, b, 0)) }, true},
		"replaced by another": {func(t *testing.T, p string) {
			check(t, os.WriteFile(p+".new", []byte("other"), 0o600))
			check(t, os.Rename(p+".new", p))
		}, true},
	} {
		c, path := openPath(t)
		var reports []string
		c.OnRecheck = func(file string, err error) { reports = append(reports, fmt.Sprint(file, " ", err)) }
		mark, err := c.Recheck(ctx)
		check(t, err)
		check(t, c.Since(mark))
		change.do(t, path)
		if err := c.Since(mark); (err == nil) != (name == "nothing") {
			t.Errorf("%s: Since is %v", name, err)
		}
		_, err = c.Recheck(ctx)
		if (err == nil) != change.same || err != nil &&
			(!errors.Is(err, model.ErrChanged) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "restart")) {
			t.Errorf("%s: Recheck returned %v", name, err)
		}
		before := checkpoint.Summed()
		if _, again := c.Recheck(ctx); (again == nil) != (err == nil) || checkpoint.Summed() != before {
			t.Errorf("%s: a second Recheck returned %v, and read %d bytes; the first %v", name, again, checkpoint.Summed()-before, err)
		}
		if (name == "nothing") != (len(reports) == 0) || len(reports) > 1 {
			t.Errorf("%s: OnRecheck got %q", name, reports)
		}
	}
}

// Rows that are read in every step belong to the model or give an error, under any change of the file.
func TestCheckedRow(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, path := openPath(t)
	e, err := c.Tensor(model.Embedding)
	check(t, err)
	want, got := make([]float32, e.Cols()), make([]float32, e.Cols())
	e.Row(want, 7, 0, e.Cols())
	if !e.Unchanged(e.State()) {
		t.Error("changed, though nothing was")
	}
	whole, err := os.ReadFile(path)
	check(t, err)
	wait := func(unchanged bool) {
		t.Helper()
		testutil.Eventually(t, time.Minute, "the result of Unchanged", func() (bool, string) {
			got := e.Unchanged(e.State())
			return got == unchanged, fmt.Sprintf("it is %v, want %v", got, unchanged)
		})
	}

	// Same bytes: rows are right at once, and trusted again after a Recheck.
	check(t, os.Chtimes(path, time.Now(), time.Unix(1, 0)))
	if e.Unchanged(e.State()) {
		t.Error("a new time is not seen")
	}
	check(t, e.CheckedRow(got, 7, 0, e.Cols()))
	if !slices.Equal(got, want) {
		t.Error("a checked row differs")
	}
	check(t, e.CheckedRow(got[:8], 7, 8, 16))
	if !slices.Equal(got[:8], want[8:16]) {
		t.Error("a part of a checked row differs")
	}
	wait(true)

	// Truncated: no fault ends the process.
	check(t, os.Truncate(path, 500))
	e.Row(got, e.Rows()-1, 0, e.Cols())
	if e.Unchanged(e.State()) {
		t.Error("a cut file is not seen")
	}
	if err := e.CheckedRow(got, 7, 0, e.Cols()); !errors.Is(err, model.ErrChanged) || !strings.Contains(err.Error(), path) {
		t.Errorf("a row of a cut file: %v", err)
	}
	if _, err := c.Verify(context.Background(), nil); !errors.Is(err, model.ErrChanged) {
		t.Errorf("Verify of a cut file: %v", err)
	}

	// Restored: rows are right again.
	check(t, os.WriteFile(path, whole, 0))
	check(t, e.CheckedRow(got, 7, 0, e.Cols()))
	if !slices.Equal(got, want) {
		t.Error("a row differs after the file came back")
	}
	wait(true)

	// Other bytes: never served.
	other := slices.Clone(whole)
	for i := 8 + int(binary.LittleEndian.Uint64(other)); i < len(other); i++ {
		other[i] ^= 0x40
	}
	check(t, os.WriteFile(path, other, 0))
	for r := range e.Rows() {
		if err := e.CheckedRow(got, r, 0, e.Cols()); !errors.Is(err, model.ErrChanged) || !strings.Contains(err.Error(), path) {
			t.Fatalf("row %d of the changed file: %v", r, err)
		}
	}
}
