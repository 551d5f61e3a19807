package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestCardPlan: weights, activations, caches and the margin fit in the free memory; where they do not,
// the error has the figures.
func TestCardPlan(t *testing.T) {
	ck, err := checkpoint.Random("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	c := &ck.Config
	serves := CardServes{"q8_0", "bf16", 512, 32 << 10}
	for _, free := range []int64{12 << 30, 24<<30 + 12345, 80 << 30} {
		m, err := serves.Plan(c, 0, free)
		mapped := memory.MappedBytes(m.Caches, c.CacheLayout(tensor.BF16).BlockBytes())
		if err != nil || m.Weights+m.Activations+m.Margin+mapped > free || m.Weights+m.Activations+m.Margin+mapped < free-(64<<20) {
			t.Errorf("%d bytes free: %+v, %v", free, m, err)
		}
		if again, err := serves.Plan(c, m.Caches, free); err != nil || again.Caches != m.Caches {
			t.Errorf("the budget of the plan: %+v, %v", again, err)
		}
		if _, err := serves.Plan(c, m.Caches+(1<<30), free); !errors.Is(err, ErrCardMemory) {
			t.Errorf("a larger budget: %v", err)
		}
	}
	for _, x := range []struct {
		free         int64
		tokens, want int
	}{{9 << 30, 512, 512}, {12 << 30, 512, 1024}, {24 << 30, 512, 2048}, {24 << 30, 300, 300}, {24 << 30, 3000, 3000}} {
		serves.StepTokens = x.tokens
		if m, err := serves.Plan(c, 0, x.free); err != nil || m.StepTokens != x.want || x.tokens == 512 && m.Activations > 1<<30+x.free/16 {
			t.Errorf("%d tokens a step, %d bytes free: %+v, %v; want %d tokens", x.tokens, x.free, m, err, x.want)
		}
	}
	serves.StepTokens = 512
	if _, err := serves.Plan(c, 0, 8<<30); !errors.Is(err, ErrCardMemory) || !strings.Contains(err.Error(), "weights as q8_0 need 7.") {
		t.Errorf("a card of 8 GiB: %v", err)
	}
	serves.Context = 1 << 10
	mixture := *c
	mixture.MoE.Experts, mixture.MoE.PerToken, mixture.MoE.FFN = 16, 8, 64
	for _, x := range []struct {
		of     *model.Config
		tokens int
		fits   bool
	}{{c, 65535, true}, {c, 65536, false}, {&mixture, 8191, true}, {&mixture, 8192, false}} { // rows of a grid
		serves.StepTokens = x.tokens
		if m, err := serves.Plan(x.of, 0, 1<<40); (err == nil) != x.fits || err != nil && !strings.Contains(err.Error(), "step-tokens") {
			t.Errorf("%d tokens a step, %d experts: %+v, %v", x.tokens, x.of.MoE.Experts, m, err)
		}
	}
	serves.StepTokens, serves.Weights = 512, "iq4_nl"
	if _, err := serves.Plan(c, 0, 80<<30); err == nil || !strings.Contains(err.Error(), "iq4_nl") {
		t.Errorf("iq4_nl: %v", err)
	}
	for device, want := range map[string]bool{"": true, "auto": true, "cpu": true, "cuda:0": true,
		"cuda:11": true, "cuda": false, "cuda:": false, "cuda:-1": false, "gpu": false, "cuda:0x1": false} {
		r := Resources{Device: device}
		if err := r.checkDevice(); (err == nil) != want {
			t.Errorf("%q: %v", device, err)
		}
	}
}
