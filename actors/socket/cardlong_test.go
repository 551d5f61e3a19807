package socket

import (
	"bytes"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestCardRuns checks a sequence that grows from one run of attention (tensor.RunSlots) into the next while
// it decodes, in one step with a short one.
func TestCardRuns(t *testing.T) {
	c := testCard(t)
	requests := func() (all []*request) {
		for i, n := range []int{tensor.RunSlots - 3, 40} {
			all = append(all, &request{prompt: somePrompt(n, i+1), max: 7, params: greedy(i)})
		}
		return all
	}
	base := rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, weights: "q8_0", kv: tensor.BF16}
	want, got := requests(), requests()
	newRig(t, base).generate(256, want...)
	base.device = onCard(t, c, 1<<26, goldenDir, tensor.BF16)
	newRig(t, base).generate(256, got...)
	for i := range want {
		if !bytes.Equal(bits(t, got[i:i+1]), bits(t, want[i:i+1])) {
			t.Errorf("request %d: tokens %v, not %v", i, got[i].tokens, want[i].tokens)
		}
	}
}
