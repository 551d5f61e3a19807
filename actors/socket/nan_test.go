package socket

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// TestWeightsThatAreNoNumbers checks that a checkpoint full of NaN gives no tokens and does no
// other harm, with every policy and architecture.
func TestWeightsThatAreNoNumbers(t *testing.T) {
	for _, arch := range []string{"llama", "qwen3_moe", "deepseek_v3", "gemma3", "gemma4_26b", "gemma4_e2b"} {
		dir := t.TempDir()
		files, err := os.ReadDir(filepath.Join(modelData, arch))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(modelData, arch, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f.Name(), ".safetensors") {
				for i := 8 + binary.LittleEndian.Uint64(b); i < uint64(len(b)); i++ {
					b[i] = 0xff // NaN in every type
				}
			}
			if err := os.WriteFile(filepath.Join(dir, f.Name()), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := newRig(t, rigConfig{dir: dir, sockets: 2, mapping: topology.Gather, kv: tensor.BF16})
		step := &proto.StepRequest{}
		for i, policy := range []string{"full", "streaming:sink=4,recent=28", "snapkv:topk=40,obs=8",
			"snapstream:sink=4,recent=20,topk=24,obs=8", "sage:sink=4,recent=20,topk=24",
			"h2o:recent=20,topk=20", "tova:size=40", "quest:page=16,budget=32", "shadowkv:chunk=8,budget=16,outliers=1,local=1",
			"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64"} {
			p := greedy(-1)
			if i%2 > 0 {
				p.Temperature, p.Logprobs, p.RepetitionPenalty, p.TopP = 1, 3, 1.2, 0.5
			}
			seq := uint64(i + 1)
			step.Open = append(step.Open,
				&proto.Open{Seq: seq, Owner: uint32(i % 2), Policy: policy, Sampling: plan.EncodeSampling(&p), PromptTokens: 48})
			step.Chunks = append(step.Chunks, &proto.Chunk{Seq: seq, Tokens: make([]uint32, 48), Prefill: true,
				Last: true, Sample: true, WantPromptLogprobs: true, PromptLogprobs: 2})
		}
		for n := range 3 {
			got := r.run(step)
			next := &proto.StepRequest{}
			for _, c := range step.Chunks {
				if s := got[c.Seq]; len(s.GetDrawn()) != 1 || s.Drawn[0].HasToken {
					t.Errorf("%s, step %d, sequence %d: %v", arch, n, c.Seq, s)
				}
				next.Chunks = append(next.Chunks, &proto.Chunk{Seq: c.Seq, Start: uint32(48 + n), Tokens: []uint32{0}, Sample: true})
			}
			step = next
		}
	}
}
