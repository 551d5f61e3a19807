package bench

import (
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/peak"
	"github.com/shoal-llm/shoal/internal/machine"
)

// floor only reads the work's bytes, or only does its arithmetic. It alternates with the work, on
// the same threads, for about as long, so other load on the machine slows both equally.
type floor struct {
	*peak.Probe
	weights tensor.DType
}

// It reads from as much memory as the work, up to floorBytes. A server's last-level cache holds
// most of 512 MB, and the same amount again would not fit next to caches of tens of GB.
func newFloor(p *tensor.Pool, weights tensor.DType, bytes float64) (*floor, error) {
	probe, err := peak.NewProbe(p, max(int(machine.ReadSize()), int(min(bytes, floorBytes, float64(Available()/2)))))
	return &floor{probe, weights}, err
}

// floorBytes is ten times a large last-level cache.
const floorBytes = 4 << 30

func (f *floor) close() { _ = f.Probe.Close() }

// arithmetic returns the time of products with the weights and of attention.
func (f *floor) arithmetic(mat, attn float64) time.Duration {
	if kernel.Quantized(f.weights) {
		return f.VNNI(mat) + f.FMA(attn)
	}
	return f.FMA(mat + attn)
}
