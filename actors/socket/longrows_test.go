package socket

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// TestSameBitsOfRuns checks that a sequence of several runs (tensor.RunBlocks) has the same bits on one
// thread and on many, which share its runs. With a policy that keeps everything, a decoded token must
// also have the bits of a prompt token.
func TestSameBitsOfRuns(t *testing.T) {
	for _, c := range []struct {
		model, policy string
		kv            tensor.DType
		prompt        int
		weights       string
	}{
		{"llama", "full", tensor.BF16, 2030, "q8_0"}, // attention outputs are quantized by the thread that completes them
		{"llama", "h2o:recent=900,topk=800,step=1", tensor.Int8, 1900, "f32"},
		{"llama", "streaming:sink=4,recent=1500,positions=cache", tensor.BF16, 1900, "f32"},
		{"llama", "quest:page=16,budget=1600", tensor.BF16, 1900, "f32"},
		{"gemma3", "full", tensor.BF16, 1090, "f32"}, // a window over the end of a run
		{"deepseek_v3", "full", tensor.BF16, 2500, "f32"},
		{"deepseek_v3", "tova:size=1700", tensor.Int8, 2000, "f32"},
	} {
		if raceEnabled && c.policy != "full" || testing.Short() && c.model == "llama" && c.policy != "full" {
			continue
		}
		t.Run(c.model+" "+c.policy, func(t *testing.T) {
			t.Parallel()
			const output = 5
			ask := func(sockets, threads, chunk, more int, after []int32) *request {
				r := newRig(t, rigConfig{dir: filepath.Join(modelData, c.model), sockets: sockets, mapping: topology.Reduce,
					kv: c.kv, threads: threads, weights: c.weights})
				q := &request{max: output - more, policy: c.policy, params: greedy(5)}
				for i := range c.prompt {
					q.prompt = append(q.prompt, int32((i*i*7+i*3)%490+5))
				}
				q.prompt = append(q.prompt, after...)
				r.generate(chunk, q)
				return q
			}
			want := ask(1, 1, 512, 0, nil)
			for _, threads := range []int{2, 9, 40} {
				if got := ask(1, threads, 300, 0, nil); !bytes.Equal(bits(t, []*request{got}), bits(t, []*request{want})) {
					t.Errorf("different bits on %d threads", threads)
				}
			}
			if got := ask(3, 16, 100, 0, nil); !bytes.Equal(bits(t, []*request{got}), bits(t, []*request{want})) {
				t.Error("different bits on 3 sockets")
			}
			if c.policy == "full" {
				got := ask(1, 1, 77, 3, want.tokens[:3])
				rest := *want
				rest.scores = rest.scores[3:]
				if !bytes.Equal(bits(t, []*request{got}), bits(t, []*request{&rest})) {
					t.Error("prompt tokens and decoded tokens have different bits")
				}
			}
		})
	}
}
