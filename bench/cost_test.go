package bench

import (
	"math"
	"testing"

	"shoal/model"
	"shoal/tensor"
)

// One row reads the experts that it chooses, many rows read all, and every count
// between agrees with drawing experts.
func TestCostsOfExperts(t *testing.T) {
	ck, err := model.Open("random:qwen3-30b-a3b")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	k := CostsOf(&ck.Config, tensor.BF16, tensor.BF16)
	if active := float64(k.LayerParams+k.HeadParams) / 1e9; math.Abs(active-3.04) > 0.05 { // 3.3 with the embedding, of which a token reads a row
		t.Errorf("%.2f billion parameters a token", active)
	}
	if all := float64(k.WeightBytes) / 2e9; math.Abs(all-30.2) > 0.1 {
		t.Errorf("%.1f billion parameters in all", all)
	}
	one, _, _ := k.Decode(1, 0, 48*8)
	if want := 2 * float64(k.LayerParams+k.HeadParams); math.Abs(one-want) > 0.02*want {
		t.Errorf("one row reads %g bytes, want about %g", one, want)
	}
	many, _, _ := k.Decode(10000, 0, 48*128)
	if math.Abs(many-float64(k.WeightBytes)) > 1 {
		t.Errorf("many rows read %g bytes of %d", many, k.WeightBytes)
	}
	if some, _, _ := k.Decode(4, 0, 48*8); math.Abs(some-one) > 1 { // four rows that choose alike
		t.Errorf("%g bytes, want %g", some, one)
	}
	dense := CostsOf(&model.Config{Layers: 2, Hidden: 64, Heads: 2, KVHeads: 2, HeadDim: 32, FFN: 64, Vocab: 64}, tensor.F32, tensor.F32)
	if got, _, _ := dense.Decode(1, 0, 0); got != float64(dense.WeightBytes) {
		t.Errorf("a dense model reads %g of %d bytes", got, dense.WeightBytes)
	}
}

// Latent attention reads one row of 576 values a layer and token, once for all heads.
func TestCostsOfLatents(t *testing.T) {
	ck, err := model.Open("random:deepseek-v2-lite")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	k := CostsOf(&ck.Config, tensor.BF16, tensor.BF16)
	if active := float64(k.LayerParams+k.HeadParams) / 1e9; math.Abs(active-2.45) > 0.05 { // published: 2.4, of 15.7
		t.Errorf("%.2f billion parameters a token", active)
	}
	if all := float64(k.WeightBytes) / 2e9; math.Abs(all-15.5) > 0.1 {
		t.Errorf("%.1f billion parameters in all", all)
	}
	a, _, _ := k.Decode(1, 0, 0)
	b, _, flops := k.Decode(1, 1000, 0)
	if got := b - a; got != 27*576*2*1000 {
		t.Errorf("1000 tokens read %g bytes", got)
	}
	if want := 27 * 16 * 2 * (576 + 512) * 1000.; flops != want {
		t.Errorf("%g operations of attention, want %g", flops, want)
	}
}

// A window bounds what attention reads, and the sums of a prompt agree with counting.
func TestCostsOfWindows(t *testing.T) {
	c := &model.Config{Layers: 3, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 64, Vocab: 64, Windows: []int{10, 0, 100}}
	k := CostsOf(c, tensor.F32, tensor.F32)
	a, _, _ := k.Decode(2, 0, 0)
	b, _, _ := k.Decode(2, 50, 0)
	if got := b - a; got != 2*(10+50+50)*2*32*4 {
		t.Errorf("%g bytes", got)
	}
	pairs := 0
	for i := range 50 {
		pairs += min(i+1, 10) + 2*(i+1)
	}
	if _, got := k.Prefill(50); got != float64(pairs*2*2*(32+32)) {
		t.Errorf("%g operations in a prompt, want %d", got, pairs*2*2*64)
	}
}
