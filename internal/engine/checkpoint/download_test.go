package checkpoint_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
	"github.com/shoal-llm/shoal/internal/engine/piecedigest"
)

// download writes a file in pieces of random sizes, as a pull does, and observes them.
func download(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	check(t, os.Remove(path))
	f, err := os.Create(path)
	check(t, err)
	d := piecedigest.NewDownload(int64(len(b)))
	r := rand.New(rand.NewPCG(1, uint64(len(b))))
	for len(b) > 0 {
		n := min(len(b), 1+r.IntN(300<<10))
		_, err := f.Write(b[:n])
		check(t, err)
		_, err = d.Write(b[:n])
		check(t, err)
		b = b[n:]
	}
	check(t, f.Close())
	d.Complete(context.Background(), path)
}

// The first Open of a downloaded model reads no weights, and gives the hash of one that reads them.
func TestDownload(t *testing.T) {
	converted := func(from string, typ gguf.Type) string {
		hub := open(t, from)
		path := filepath.Join(t.TempDir(), "model.gguf")
		put(t, path, modeltest.Convert(hub, always(typ)).Bytes())
		return path
	}
	small := write(t, modeltest.Small(), 1)
	for name, c := range map[string]struct{ at, file string }{
		"safetensors":     {small, "model.safetensors"},
		"GGUF":            {converted(small, gguf.Q8_0), ""},
		"stacked experts": {converted("../model/testdata/qwen3_moe", gguf.F32), ""},
	} {
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		want := open(t, c.at).Hash()
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		file := filepath.Join(c.at, c.file)
		download(t, file)
		link := filepath.Join(t.TempDir(), "link.gguf")
		check(t, os.Symlink(c.at, link)) // as in a cache of the hub
		before := checkpoint.Summed()
		if got := open(t, link).Hash(); got != want || checkpoint.Summed() != before {
			t.Errorf("%s: hash %s after reading %d bytes, want %s after none", name, got, checkpoint.Summed()-before, want)
		}

		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		download(t, file)
		write1(t, file, 0.9)
		time.Sleep(100 * time.Millisecond)
		before = checkpoint.Summed()
		changed := open(t, c.at)
		if got := changed.Hash(); got == want || checkpoint.Summed()-before != changed.PieceBytes() {
			t.Errorf("%s: a file that changed later has the hash %s after reading %d of %d bytes",
				name, got, checkpoint.Summed()-before, changed.PieceBytes())
		}
	}
}

// A download that is not a model, or ends early, is ignored.
func TestDownloadOfOtherFiles(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	const size = 3 << 20
	header := fmt.Sprintf(`{"a": {"dtype": "U8", "shape": [%d], "data_offsets": [0, %[1]d]}}`, size)
	whole := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), make([]byte, size)...)
	path := filepath.Join(t.TempDir(), "file")
	for name, c := range map[string]struct {
		content []byte
		size    int
	}{
		"JSON":                    {[]byte(`{"architectures": ["Other"]}`), 28},
		"nothing":                 {nil, 0},
		"a header and no weights": {whole[:100], 100},
		"an unfinished file":      {whole[:len(whole)-1], len(whole)},
		"zeros":                   {make([]byte, size), size},
	} {
		put(t, path, append(c.content[:len(c.content):len(c.content)], make([]byte, c.size-len(c.content))...))
		d := piecedigest.NewDownload(int64(c.size))
		_, err := d.Write(c.content)
		check(t, err)
		d.Complete(context.Background(), path)
		if kept, err := filepath.Glob(filepath.Join(cache, "shoal", "digests", "*")); err != nil || len(kept) > 0 {
			t.Errorf("%s: kept %v, %v", name, kept, err)
		}
	}
	put(t, path, whole)
	d := piecedigest.NewDownload(int64(len(whole)))
	_, err := d.Write(whole)
	check(t, err)
	d.Complete(context.Background(), path)
	if kept, err := filepath.Glob(filepath.Join(cache, "shoal", "digests", "*.digests")); err != nil || len(kept) != 1 {
		t.Errorf("of the whole file: kept %v, %v", kept, err)
	}
}
