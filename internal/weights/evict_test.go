package weights

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestEvictAtOnce: nodes that start at once on one folder all remove old weights.
func TestEvictAtOnce(t *testing.T) {
	for range 20 {
		folder := t.TempDir()
		for i := range 20 {
			dir := filepath.Join(folder, fmt.Sprint("old-", i))
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "weights"), []byte("old"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := evict(folder, "keep", 1, 0, slog.New(slog.DiscardHandler)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
}

// TestEvict: unused folders are removed, oldest first, and no more than necessary.
func TestEvict(t *testing.T) {
	const mib = 1 << 20
	for _, x := range []struct {
		what  string
		limit int64
		want  string // remaining folders
	}{
		{"all fit", 100 * mib, "keep new old unsaid used"},
		{"one too many", 33 * mib, "keep new old used"},
		{"two too many", 20 * mib, "keep new used"},
		{"nothing fits", 0, "keep used"},
	} {
		folder := t.TempDir()
		for i, name := range []string{"used", "old", "new", "keep", "unsaid"} { // 8 MiB each, plus a hole
			dir := filepath.Join(folder, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "weights"), make([]byte, 8*mib), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, "weights"), 1<<32); err != nil {
				t.Fatal(err)
			}
			if name == "unsaid" {
				continue
			}
			lock, err := claim(dir)
			if err != nil {
				t.Fatal(err)
			}
			at := time.Now().Add(time.Duration(i-10) * time.Hour)
			if err := os.Chtimes(lock.Name(), at, at); err != nil {
				t.Fatal(err)
			}
			if name == "used" {
				defer lock.Close()
			} else {
				lock.Close()
			}
		}
		if err := evict(folder, "keep", 2*mib, x.limit, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, e := range entries {
			if e.IsDir() {
				left = append(left, e.Name())
			}
		}
		if got := strings.Join(left, " "); got != x.want {
			t.Errorf("%s: %q is left, want %q", x.what, got, x.want)
		}
	}
}

// TestCacheFetchesFromOthers: chunks that one source sent damaged are fetched from another one. If all
// sources send damage, the load fails and names one.
func TestCacheFetchesFromOthers(t *testing.T) {
	l, open := shelf(t, "../../models/fry", "")
	_, m, err := open(t.TempDir(), l.answer)
	if err != nil {
		t.Fatal(err)
	}
	sources := []string{"bad", "good"}
	m.request = func(_ context.Context, turn int, q *proto.WeightsRequest) (*proto.WeightsReply, string, error) {
		from := sources[turn%len(sources)]
		r, err := l.answer(q)
		if err != nil || from == "good" {
			return r, from, err
		}
		r = pb.Clone(r).(*proto.WeightsReply)
		for _, b := range [][]byte{r.Data, r.Hashes} {
			if len(b) > 0 {
				b[len(b)/3] ^= 16
			}
		}
		return r, from, nil
	}
	fetch := func(from, to int64) error {
		return m.Fetch(context.Background(), "model.safetensors", []checkpoint.Span{{From: from, To: to}})
	}
	missing, err := m.files["model.safetensors"].missing([]checkpoint.Span{{From: 4 << 20, To: 12 << 20}})
	if err != nil || len(missing) < 100 {
		t.Fatalf("%d chunks are missing, %v", len(missing), err)
	}
	before := m.fetched.Load()
	m.files["model.safetensors"].hashes = nil // so that they are fetched again
	if err := fetch(4<<20, 12<<20); err != nil || m.fetched.Load()-before != int64(len(missing))*chunkBytes {
		t.Errorf("with one good source: %v, %d bytes for %d chunks", err, m.fetched.Load()-before, len(missing))
	}
	sources = []string{"bad", "worse"}
	if err := fetch(16<<20, 20<<20); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "from bad") {
		t.Errorf("with none: %v", err)
	}
}
