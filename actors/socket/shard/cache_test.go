package shard

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

func packed(t *testing.T, seed int) *tensor.Weight {
	t.Helper()
	w, err := tensor.NewWeight(tensor.Q8_0, 1100, 1024) // more than one MiB
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	row := make([]float32, w.Cols)
	for r := range w.Rows {
		for i := range row {
			row[i] = float32((i*7+r*3+seed)%31 - 15)
		}
		w.SetRow(r, row)
	}
	return w
}

// TestCache checks that stored weights are loaded again. From a damaged file, load returns the right
// weights or none.
func TestCache(t *testing.T) {
	pool := tensor.NewPool(2)
	defer pool.Close()
	c := &Cache{Dir: filepath.Join(t.TempDir(), "new", "folder"), Limit: 1 << 30, Logger: slog.New(slog.DiscardHandler)}
	want := packed(t, 1)
	rows := topology.Range{Lo: 0, Hi: want.Rows}
	key := cacheKey("model", "name", rows, want)
	into := func() *tensor.Weight {
		w, err := tensor.NewWeight(tensor.Q8_0, want.Rows, want.Cols)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		return w
	}
	if c.load(key, into(), pool) {
		t.Fatal("loaded from an empty folder")
	}
	c.store(key, want)
	if got := into(); !c.load(key, got, pool) || !bytes.Equal(got.Packed(), want.Packed()) {
		t.Fatal("stored weights were not loaded")
	}
	path := c.path(key)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	for name, bad := range map[string][]byte{
		"empty": {}, "short": good[:len(good)-1], "long": append(bytes.Clone(good), 0), "magic": flip(0), "key": flip(20),
		"first byte": flip(cacheHeader), "second MiB": flip(cacheHeader + cachePiece + 5), "checksum": flip(len(good) - 1),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		got := into()
		if c.load(key, got, pool) {
			t.Errorf("%s: loaded", name)
		}
		if !bytes.Equal(got.Packed(), make([]byte, len(got.Packed()))) {
			t.Errorf("%s: bytes of the bad file are left in the weight", name)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: the bad file is still there", name)
		}
	}
	if other := cacheKey("model2", "name", rows, want); other == key ||
		cacheKey("model", "name", topology.Range{Lo: 16, Hi: 1116}, want) == key {
		t.Error("another model or other rows have the same key")
	}
}

// TestCacheLimit checks that the folder never exceeds its limit and that the least recently used
// file is removed first.
func TestCacheLimit(t *testing.T) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	w := packed(t, 2)
	c := &Cache{Dir: t.TempDir(), Limit: 5 * w.Bytes() / 2, Logger: slog.New(slog.DiscardHandler)}
	rows := topology.Range{Lo: 0, Hi: w.Rows}
	a, b, d := cacheKey("a", "", rows, w), cacheKey("b", "", rows, w), cacheKey("d", "", rows, w)
	c.store(a, w)
	c.store(b, w)
	old := w.Bytes() // an arbitrary time long ago, in seconds
	if err := os.Chtimes(c.path(b), time.Unix(old, 0), time.Unix(old, 0)); err != nil {
		t.Fatal(err)
	}
	c.store(d, w)
	for _, k := range []struct {
		key  [32]byte
		want bool
	}{{a, true}, {b, false}, {d, true}} {
		if _, err := os.Stat(c.path(k.key)); (err == nil) != k.want {
			t.Errorf("there: %v, want %v", err == nil, k.want)
		}
	}
	c.Limit = w.Bytes() / 2
	c.store(b, w)
	if _, err := os.Stat(c.path(b)); err == nil {
		t.Error("a file larger than the limit was stored")
	}
}
