package topology

import "testing"

func TestPlannerWeighsSynchronisationAgainstWeights(t *testing.T) {
	slow := Costs{Sync: 1e-3, Bandwidth: 10e9, WeightBytes: 4}
	if got := Choose(testShape(), 4, slow); got != Reduce {
		t.Errorf("a small model on a slow bus: got %s, fewer synchronisations win", got)
	}
	big := Shape{Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, FFN: 28672}
	fast := Costs{Sync: 20e-6, Bandwidth: 10e9, WeightBytes: 4}
	if got := Choose(big, 8, fast); got != Gather {
		t.Errorf("a large model on a fast bus: got %s, fewer bytes win", got)
	}
	c := Costs{Sync: 1, Bandwidth: 1e30, WeightBytes: 2}
	mixed := big
	mixed.Sparse, mixed.ActiveFFN = 0.5, 6144
	if got := DecodeSeconds(Reduce, mixed, 4, c); got < 2.49 || got > 2.51 { // a layer with experts synchronises once more
		t.Errorf("%g synchronisations a layer, want 2.5", got)
	}
	c = Costs{Bandwidth: 1, WeightBytes: 1}
	all := mixed
	all.Sparse = 1
	if got, want := DecodeSeconds(Gather, all, 4, c)-DecodeSeconds(Gather, big, 4, c), 3*8192*(6144-28672)/4.0; got != want {
		t.Errorf("experts read %g bytes more, want %g", got, want)
	}
}

// What processes on one machine were measured to be faster with, and what machines
// of their own need: synchronisations cost more than a small model's attention
// weights, and less than a large one's.
func TestPlannerUnmeasured(t *testing.T) {
	small := Shape{Hidden: 1024, Heads: 16, KVHeads: 8, HeadDim: 64, FFN: 2816}
	large := Shape{Hidden: 8192, Heads: 64, KVHeads: 8, HeadDim: 128, FFN: 28672}
	for _, weightBytes := range []float64{18.0 / 32, 34.0 / 32, 2} {
		for _, sockets := range []int{2, 4, 16} {
			if got := ChooseUnmeasured(small, sockets, weightBytes); got != Reduce {
				t.Errorf("a small model, %d sockets, %g bytes a weight: %s", sockets, weightBytes, got)
			}
			if got := ChooseUnmeasured(large, sockets, weightBytes); got != Gather {
				t.Errorf("a large model, %d sockets, %g bytes a weight: %s", sockets, weightBytes, got)
			}
		}
	}
}
