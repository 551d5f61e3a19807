package tensor

import (
	"math"
	"testing"
)

// TestScoreOf checks scores with and without a cap.
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
}

// TestSinks checks that a softmax with a sink is one over one more score, and that attention with
// the sinks of all heads is refused.
func TestSinks(t *testing.T) {
	s := Score{Scale: 1, Sinks: [][]float32{{9, 1, -2}, nil}}
	if got, want := s.Heads(0, 1, 2).LogSum([]float32{0.5, 2}, 1), LogSumExp([]float32{0.5, 2, -2}); math.Abs(float64(got-want)) > 1e-6 {
		t.Errorf("the logarithm of the sum is %v, want %v", got, want)
	}
	if got, want := s.Heads(1, 0, 1).LogSum([]float32{0.5, 2}, 0), LogSumExp([]float32{0.5, 2}); got != want {
		t.Errorf("in a layer without sinks it is %v, want %v", got, want)
	}
	l := KVLayout{Type: F32, KDim: 8, VDim: 8}
	block, out, q := make([]byte, l.BlockBytes()), make([]float32, 8), []float32{1, 0, 0, 0, 0, 0, 0, 0}
	l.Put(block, 0, []float32{1, 0, 0, 0, 0, 0, 0, 0}, []float32{1, 1, 1, 1, 1, 1, 1, 1})
	Attend(out, q, 1, s.Heads(0, 1, 1), l, [][]byte{block}, 1, nil, new(AttnScratch))
	if math.Abs(float64(out[0])-0.5) > 1e-6 { // the slot's score is that of the sink
		t.Errorf("the slot gets %v of the attention, want half", out[0])
	}
	defer func() {
		if recover() == nil {
			t.Error("the sinks of all heads were taken for those of a call")
		}
	}()
	Attend(out, q, 1, s, l, [][]byte{block}, 1, nil, new(AttnScratch))
}
