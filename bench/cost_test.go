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
	one, _, _ := k.Decode(1, 0)
	if want := 2 * float64(k.LayerParams+k.HeadParams); math.Abs(one-want) > 0.02*want {
		t.Errorf("one row reads %g bytes, want about %g", one, want)
	}
	many, _, _ := k.Decode(10000, 0)
	if math.Abs(many-float64(k.WeightBytes)) > 1 {
		t.Errorf("many rows read %g bytes of %d", many, k.WeightBytes)
	}
	if got := k.ExpertsHit(16); math.Abs(got-82.4) > 0.1 { // 128 (1 - (15/16)^16)
		t.Errorf("16 rows hit %g of 128 experts", got)
	}
	dense := CostsOf(&model.Config{Layers: 2, Hidden: 64, Heads: 2, KVHeads: 2, HeadDim: 32, FFN: 64, Vocab: 64}, tensor.F32, tensor.F32)
	if got, _, _ := dense.Decode(1, 0); got != float64(dense.WeightBytes) {
		t.Errorf("a dense model reads %g of %d bytes", got, dense.WeightBytes)
	}
}
