package bench

import (
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// One row reads its chosen experts, many rows read all, and counts in between agree with a random
// draw of experts.
func TestCostsOfExperts(t *testing.T) {
	ck, err := checkpoint.Open("random:qwen3-30b-a3b")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	k := CostsOf(&ck.Config, tensor.BF16, tensor.BF16)
	// 3.3 with the embedding, of which a token reads one row
	if active := float64(k.LayerParams+k.HeadParams) / 1e9; math.Abs(active-3.04) > 0.05 {
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
	if some, _, _ := k.Decode(4, 0, 48*8); math.Abs(some-one) > 1 { // four rows with the same choice
		t.Errorf("%g bytes, want %g", some, one)
	}
	dense := CostsOf(&model.Config{Layers: 2, Hidden: 64, Heads: 2, KVHeads: 2, HeadDim: 32, FFN: 64, Vocab: 64}, tensor.F32, tensor.F32)
	if got, _, _ := dense.Decode(1, 0, 0); got != float64(dense.WeightBytes) {
		t.Errorf("a dense model reads %g of %d bytes", got, dense.WeightBytes)
	}
}

// Latent attention reads one row of 576 values per layer and token, once for all heads.
func TestCostsOfLatents(t *testing.T) {
	ck, err := checkpoint.Open("random:deepseek-v2-lite")
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

// A window bounds the bytes that attention reads. The operations of a prompt equal a count of its pairs.
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

// In SwiftKV's later layers a prompt computes keys and values, and everything only for its last
// token. A generated token computes them completely. Shared caches are held once.
func TestCostsOfSwiftKV(t *testing.T) {
	c := &model.Config{Layers: 4, Hidden: 64, Heads: 2, KVHeads: 1, HeadDim: 32, FFN: 96, Vocab: 64,
		SwiftKV: model.SwiftKV{Layers: 2, Group: 2}}
	k := CostsOf(c, tensor.F32, tensor.F32)
	const q, kv, rest = 64 * 64, 2 * 32 * 64, 64*64 + 3*64*96
	if want := int64(4*(q+rest) + 3*kv); k.LayerParams != want {
		t.Errorf("a token multiplies %d elements, want %d", k.LayerParams, want)
	}
	mat, attn := k.Prefill(50)
	if want := 2. * (50*(2*(q+kv+rest)+kv) + 2*(q+rest) + 64*64); mat != want {
		t.Errorf("a prompt takes %g operations of matrices, want %g", mat, want)
	}
	if want := float64(2*50*51/2+2*50) * 2 * 2 * 64; attn != want {
		t.Errorf("a prompt takes %g operations of attention, want %g", attn, want)
	}
}

// TestSwiftKVBench: a run has a row without SwiftKV and one per share.
func TestSwiftKVBench(t *testing.T) {
	s, err := RunSwiftKV(t.Context(), Options{Model: "fry", Weights: tensor.Q8_0, KV: tensor.BF16,
		Threads: 1, Context: 40, Chunk: 16, Policy: "full", Repeat: 1}, []float64{0.5}, 2, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 2 || s.Rows[1].Layers != 4 || s.Rows[1].Caches != 6 ||
		s.Rows[1].TokenBytes*8 != s.Rows[0].TokenBytes*6 || s.Rows[1].Arithmetic < 1.5 || s.Rows[1].TokensPerS <= 0 {
		t.Errorf("%+v", s.Rows)
	}
	if _, err := RunSwiftKV(t.Context(), Options{Model: "fry", Weights: tensor.Q8_0, KV: tensor.BF16, Threads: 1, Context: 40, Repeat: 1},
		[]float64{1.5}, 1, func(string) {}); err == nil {
		t.Error("a share of 1.5 was measured")
	}
}
