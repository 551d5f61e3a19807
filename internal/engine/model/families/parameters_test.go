package families

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/safetensors"
)

// The tensors' parameters add up to the published sizes.
func TestLlamaParameterCounts(t *testing.T) {
	for name, test := range map[string]struct {
		c    model.Config
		want int64
	}{
		"fry": {model.Config{Hidden: 384, Layers: 8, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024, Vocab: 4096, Tied: true},
			15_735_168},
		"Llama 2 7B":   {model.Config{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 32, HeadDim: 128, FFN: 11008, Vocab: 32000}, 6_738_415_616},
		"Llama 3.1 8B": {model.Config{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336, Vocab: 128256}, 8_030_261_248},
		"Llama 3.2 1B": {model.Config{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Vocab: 128256, Tied: true},
			1_235_814_400},
	} {
		test.c.Architecture = "LlamaForCausalLM"
		var got int64
		for _, s := range test.c.Tensors() {
			n, ok := safetensors.ByteSize(s.Shape, 1)
			if !ok {
				t.Fatal(s)
			}
			got += n
		}
		if got != test.want {
			t.Errorf("%s: %d parameters, want %d", name, got, test.want)
		}
	}
}

func TestArchitectures(t *testing.T) {
	if got := model.Architectures(); !slices.Equal(got, slices.Sorted(slices.Values(families))) {
		t.Errorf("known: %v", got)
	}
}
