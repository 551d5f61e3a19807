package socket

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// sweep returns the next sweep of a prompt, of at most n tokens.
func (q *request) sweep(n, layers, group int) *proto.Sweep {
	to, end := min(q.layer+group, layers), min(q.at+n, len(q.prompt))
	w := &proto.Sweep{Seq: q.id, FromLayer: uint32(q.layer), ToLayer: uint32(to), Start: uint32(q.at)}
	for _, t := range q.prompt[q.at:end] {
		w.Tokens = append(w.Tokens, uint32(t))
	}
	q.at = end
	if end == len(q.prompt) {
		if q.layer, w.Sample = to, to == layers; !w.Sample {
			q.at = 0
		}
	}
	return w
}

// Prompts that are read layer by layer give the bits of prompts that are read in chunks, under every
// policy that drops tokens.
func TestLayersSameBits(t *testing.T) {
	policies := []string{"streaming:sink=4,recent=60", "snapkv:topk=56,obs=8,pool=5", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7",
		"sage:sink=4,recent=30,topk=50", "h2o:recent=40,topk=40", "h2o:recent=40,topk=40,step=1,positions=cache,half=1", "tova:size=80", "knorm:sink=4,recent=40,topk=40"}
	cuts := []rigConfig{
		{sockets: 1, mapping: topology.Gather, sweep: 64}, {sockets: 3, mapping: topology.Gather, sweep: 31, shares: []float64{1, 5, 2}},
		{sockets: 4, mapping: topology.Reduce, sweep: 50}, {sockets: 3, mapping: topology.Reduce, sweep: 64, group: 2},
	}
	for i, policy := range policies {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			alone := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, kv: tensor.BF16})
			want := mixed(policy)
			for _, q := range want {
				q.arrives = 0
				alone.generate(512, q)
			}
			for j, c := range cuts {
				if (i+j)%2 > 0 {
					continue
				}
				c.dir, c.kv = goldenDir, tensor.BF16
				r, got := newRig(t, c), mixed(policy)
				r.generate(130, got...)
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Errorf("%d sockets, %s: sweeps of %d layers in passes of %d tokens give other results than chunks", c.sockets, c.mapping, max(1, c.group), c.sweep)
				}
			}
		})
	}
}

// The same for layers of other architectures: windows, latents, experts, norms before or after, sinks,
// adapters' rows, and quantized norms of rows that stay with their owners.
func TestLayersSameBitsFamilies(t *testing.T) {
	const policy = "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"
	for i, name := range []string{"qwen3", "mistral_window", "cohere2", "gpt_oss", "olmo2", "gemma2", "gemma3", "llama4", "deepseek_v2", "deepseek_v32", "glm4_moe", "granite", "phi3_longrope"} {
		of := []topology.Mapping{topology.Gather, topology.Reduce}[i%2]
		sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, name)}, policy, 100, rigConfig{sockets: 3, mapping: of, sweep: 32, shares: []float64{1, 4, 2}})
	}
	for _, m := range []topology.Mapping{topology.Gather, topology.Reduce} {
		sameAsAlone(t, rigConfig{dir: goldenDir, weights: "q8_0"}, policy, 128, rigConfig{sockets: 3, mapping: m, sweep: 64}, rigConfig{sockets: 1, mapping: m, sweep: 64})
	}
}
