package tensor

import (
	"math"
	"testing"
)

// TestScoreOf checks scores with and without a cap, and that a sink, which no kernel computes, is
// refused.
func TestScoreOf(t *testing.T) {
	for _, s := range []Score{{Scale: 0.25}, {Scale: 0.25, Cap: 3}} {
		x := []float32{-100, -7, -0.5, 0, 0.01, 2, 9, 300}
		got := append([]float32(nil), x...)
		s.Of(got)
		for i, v := range x {
			want := float64(v) / 4
			if s.Cap != 0 {
				want = 3 * math.Tanh(want/3)
			}
			if math.Abs(float64(got[i])-want) > 1e-6*(1+math.Abs(want)) {
				t.Errorf("%+v of %v is %v, want %v", s, v, got[i], want)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a sink was ignored")
		}
	}()
	l := KVLayout{Type: F32, KDim: 8, VDim: 8}
	Attend(make([]float32, 8), make([]float32, 8), 1, Score{Scale: 1, HasSink: true}, l, [][]byte{make([]byte, l.BlockBytes())}, 1, nil, new(AttnScratch))
}
