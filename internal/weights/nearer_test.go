package weights

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/proto"
)

// TestNearerSource fetches all weights of a model that the cluster has from the hub. The source that
// answers first serves most bytes, a source that fails or sends other bytes serves none, and the
// bytes are right in each case.
func TestNearerSource(t *testing.T) {
	const dir, origin = "../../models/fry", "org/fry@0123456789012345678901234567890123456789"
	l, open := shelf(t, dir, "")
	want, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context, of, file string, from, to int64) ([]byte, error) {
		if of != origin {
			return nil, fmt.Errorf("the origin is %q", of)
		}
		f, err := os.Open(filepath.Join(dir, file))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b := make([]byte, to-from)
		_, err = f.ReadAt(b, from)
		return b, err
	}
	var fromHub atomic.Int64
	counted := func(ctx context.Context, of, file string, from, to int64) ([]byte, error) {
		fromHub.Add(to - from)
		return read(ctx, of, file, from, to)
	}
	slow := 20 * time.Millisecond
	for _, c := range []struct {
		name     string
		origin   string
		bus      time.Duration // delay of the cluster's answers
		hub      Ranges
		min, max int64 // bytes that the hub is asked for
	}{
		{"the hub is faster", origin, slow, counted, int64(len(want)) / 2, int64(len(want))},
		{"the cluster is faster", origin, 0, func(ctx context.Context, of, file string, from, to int64) ([]byte, error) {
			fromHub.Add(to - from)
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
			}
			return nil, context.Cause(ctx)
		}, 1, chunksPerReply * chunkBytes},
		{"the hub has other bytes", origin, slow, func(_ context.Context, _, _ string, from, to int64) ([]byte, error) {
			fromHub.Add(to - from)
			return make([]byte, to-from), nil
		}, 1, chunksPerReply * chunkBytes},
		{"the hub fails later", origin, slow, func(ctx context.Context, of, file string, from, to int64) ([]byte, error) {
			if fromHub.Add(to-from) > 4<<20 {
				return nil, errors.New("gone")
			}
			return read(ctx, of, file, from, to)
		}, 4 << 20, 8 << 20},
		{"the model is not from the hub", "", slow, counted, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			fromHub.Store(0)
			_, m, err := open(t.TempDir(), func(q *proto.WeightsRequest) (*proto.WeightsReply, error) {
				if len(q.Chunks) == chunksPerReply {
					time.Sleep(c.bus)
				}
				return l.answer(q)
			})
			if err != nil {
				t.Fatal(err)
			}
			m.nearer.hub, m.nearer.origin, m.nearer.log = c.hub, c.origin, m.log
			if err := m.Fetch(t.Context(), "model.safetensors", []checkpoint.Span{{From: 0, To: int64(len(want))}}); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(m.dir, "model.safetensors"))
			if err != nil || string(got) != string(want) {
				t.Errorf("the file differs (%v)", err)
			}
			if n := fromHub.Load(); n < c.min || n > c.max {
				t.Errorf("the hub was asked for %d bytes, want %d to %d", n, c.min, c.max)
			}
		})
	}
}
