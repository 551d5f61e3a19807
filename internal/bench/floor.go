package bench

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// floor is the work's bytes read, or its arithmetic done, and nothing else. It
// is taken in turn with the work, by the same threads, for about as long: what
// neighbours on a shared machine take away, they take from both.
type floor struct {
	*tensor.Probe
	weights tensor.DType
}

// It reads from as much memory as the work does, up to floorBytes: a server's last-level cache holds most of
// 512 MB, and beside caches of tens of GB as much again would not fit.
func newFloor(p *tensor.Pool, weights tensor.DType, bytes float64) (*floor, error) {
	probe, err := tensor.NewProbe(p, max(readBytes, int(min(bytes, floorBytes, float64(Available()/2)))))
	return &floor{probe, weights}, err
}

// floorBytes is ten times a large last-level cache.
const floorBytes = 4 << 30

func (f *floor) close() { _ = f.Probe.Close() }

// arithmetic is the time of products with the weights and of attention.
func (f *floor) arithmetic(mat, attn float64) time.Duration {
	if tensor.Quantised(f.weights) {
		return f.VNNI(mat) + f.FMA(attn)
	}
	return f.FMA(mat + attn)
}
