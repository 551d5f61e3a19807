package peak

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestProbeMeasuresAPart checks that the time of hours of work is scaled from about a second.
func TestProbeMeasuresAPart(t *testing.T) {
	pool := tensor.NewPool(1)
	defer pool.Close()
	p, err := NewProbe(pool, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	const ops = 1e16 // 20 hours at 140 GFLOP/s
	start := time.Now()
	took := p.FMA(ops)
	if measured := time.Since(start); took < 100*measured {
		t.Errorf("%g operations: %v, measured in %v", ops, took, measured)
	}
}
