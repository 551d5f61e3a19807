package tensor

import (
	"testing"
	"time"
)

func TestCeilingsAreMeasured(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	forEach(t, func(t *testing.T) {
		read, err := MeasureReadBandwidth(p, 8<<20, time.Millisecond)
		if err != nil || read <= 0 {
			t.Errorf("read bandwidth %v, %v", read, err)
		}
		if f, d := MeasureFMA(p, time.Millisecond), MeasureVNNI(p, time.Millisecond); f <= 0 || d <= 0 {
			t.Errorf("peaks %v and %v", f, d)
		}
	})
}
