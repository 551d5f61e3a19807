package tensor

import (
	"testing"
	"time"
)

func TestCeilingsAreMeasured(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		r, err := NewReads(p, 8<<20)
		if err != nil {
			t.Fatal(err)
		}
		if best, usual := r.Best(time.Millisecond), r.Usual(time.Millisecond); best <= 0 || usual <= 0 {
			t.Errorf("reads %v and %v GB/s", best, usual)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if f, d := MeasureFMA(p, time.Millisecond), MeasureVNNI(p, time.Millisecond); f <= 0 || d <= 0 {
			t.Errorf("peaks %v and %v", f, d)
		}
	})
}
