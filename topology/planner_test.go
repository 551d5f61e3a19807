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
