package socket

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// cardPolicies are the cache policies that a card computes, with sizes that short prompts exceed. Each has
// a model, and types of weights and caches.
var cardPolicies = []struct {
	model, weights string
	kv             tensor.DType
	spec           string
}{
	{"llama", "q8_0", tensor.BF16, "streaming:sink=4,recent=8"},
	{"llama", "q8_0", tensor.BF16, "snapkv:topk=20,obs=8,pool=5"},
	{"llama", "q4_0", tensor.Int8, "snapkv:topk=20,obs=8,pool=5,ring=3"},
	{"llama", "q8_0", tensor.BF16, "snapstream:sink=4,recent=8,topk=20,obs=6,pool=3"},
	{"llama", "f32", tensor.F32, "snapstream:sink=4,recent=8,topk=20,obs=6,pool=3,votes=candidates"},
	{"llama", "q8_0", tensor.BF16, "sage:sink=4,recent=8,topk=20"},
	{"llama", "q8_0", tensor.BF16, "h2o:recent=8,topk=20"},
	{"llama", "q8_0", tensor.Int8, "h2o:recent=8,topk=20,step=1"},
	{"qwen3", "bf16", tensor.BF16, "h2o:recent=8,topk=20,step=1"},
	{"llama", "q8_0", tensor.BF16, "tova:size=30"},
	{"llama", "q8_0", tensor.BF16, "resnap:topk=10,every=4,obs=3,pool=3"},
	{"llama", "q8_0", tensor.F32, "knorm:sink=4,recent=8,topk=20"},
	{"llama", "q8_0", tensor.BF16, "pyramidkv:topk=20,obs=8,pool=5,beta=4"},
	{"llama", "q8_0", tensor.BF16, "lagkv:sink=4,lag=16,topk=10"},
	{"gemma3", "q8_0", tensor.BF16, "h2o:recent=8,topk=20,step=1"}, // layers with windows
	{"mistral_window", "q8_0", tensor.BF16, "streaming:sink=4,recent=8"},
}

// TestCardPolicies checks that sequences under each policy have exactly the processor's tokens and
// log-probabilities: in mixed steps, with several tokens of a sequence in a step, and with rejected drafts,
// whose evictions are undone. Sequences with other policies share the steps.
func TestCardPolicies(t *testing.T) {
	c := testCard(t)
	for i, p := range cardPolicies {
		if !testlevel.Long() && realCard == "" && i%3 != 1 { // both kinds of eviction, once and in each step
			continue
		}
		t.Run(fmt.Sprint(p.model, " ", p.weights, " ", p.kv, " ", p.spec), func(t *testing.T) {
			requests := func() []*request {
				all := loadOf(p.spec, 90)
				for _, q := range all {
					q.max = 7
				}
				all[0].policy = "full"
				return all
			}
			base := rigConfig{dir: filepath.Join(modelData, p.model), sockets: 1, mapping: topology.Gather, weights: p.weights, kv: p.kv}
			want := requests()
			newRig(t, base).generate(200, want...)
			base.device = onCard(t, c, 1<<25, base.dir, p.kv)
			mixed := requests()
			newRig(t, base).generate(37, mixed...)
			if !bytes.Equal(bits(t, mixed), bits(t, want)) {
				t.Error("results differ from those of the processor")
			}
			long, n := want[2], want[2].max-1
			got := &request{prompt: long.prompt, max: 1, policy: long.policy, params: long.params, owner: long.owner}
			r := newRig(t, base)
			r.generate(200, got)
			chunk := &proto.Chunk{Seq: got.id, Start: uint32(got.at), Sample: true} // its draft is the token that will be sampled
			for _, x := range long.tokens[:n] {
				chunk.Tokens = append(chunk.Tokens, uint32(x))
			}
			got.take(t, r.run(&proto.StepRequest{Passes: 1, Chunks: []*proto.Chunk{chunk}})[got.id], n)
			if !bytes.Equal(bits(t, []*request{got}), bits(t, want[2:3])) {
				t.Errorf("%d tokens in a step: results differ from those of single ones", n)
			}
			drafted := func() []*request { return someRequests(p.spec, 12) }
			base.device = nil
			want = drafted()
			newRig(t, base).generate(200, want...)
			base.device = onCard(t, c, 1<<25, base.dir, p.kv)
			rowsOfSeveral(t, newRig(t, base), want, drafted())
		})
	}
}
