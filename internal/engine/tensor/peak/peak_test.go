package peak

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

func TestCeilingsAreMeasured(t *testing.T) {
	p := tensor.NewPool(2)
	defer p.Close()
	was := kernel.Active
	defer func() { kernel.Active = was }()
	for _, k := range kernel.All() {
		kernel.Active = k
		r, err := NewReads(p, 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		if best, usual := r.Best(time.Millisecond), r.Usual(time.Millisecond); best <= 0 || usual <= 0 {
			t.Errorf("%s: reads %v and %v GB/s", k.Name, best, usual)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if f, d := FMA(p, time.Millisecond), VNNI(p, time.Millisecond); f <= 0 || d <= 0 {
			t.Errorf("%s: peaks %v and %v", k.Name, f, d)
		}
	}
}
