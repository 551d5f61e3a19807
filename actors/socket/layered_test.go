package socket

import (
	"bytes"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// sweep returns the next sweep of a prompt, of at most n tokens.
func (q *request) sweep(n int, s layered.Shape) *proto.Sweep {
	to, end := s.To(q.layer), min(q.at+n, len(q.prompt))
	w := &proto.Sweep{Seq: q.id, FromLayer: uint32(q.layer), ToLayer: uint32(to), Start: uint32(q.at)}
	for _, t := range q.prompt[q.at:end] {
		w.Tokens = append(w.Tokens, uint32(t))
	}
	q.at = end
	if end == len(q.prompt) {
		if q.layer, w.Sample = to, to == s.Layers; !w.Sample {
			q.at = 0
		}
	}
	return w
}

// evicting are policies that drop tokens.
var evicting = []string{"streaming:sink=4,recent=60", "snapkv:topk=56,obs=8,pool=5", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7",
	"sage:sink=4,recent=30,topk=50", "h2o:recent=40,topk=40", "h2o:recent=40,topk=40,step=1,positions=cache,half=1",
	"tova:size=80", "knorm:sink=4,recent=40,topk=40",
	"snapkv:topk=56,obs=8,pool=5,votes=prefix", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7,votes=candidates",
	"pyramidkv:topk=50,obs=8,pool=5,beta=4", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7,layers=pyramid,beta=3",
	"lagkv:sink=4,lag=16,topk=70", "resnap:topk=30,every=9,obs=8,pool=5", "adakv:topk=70,obs=8,pool=5",
	"snapstream:sink=4,recent=20,topk=64,obs=8,pool=7,heads=ada,floor=0", "snapkv:topk=40,obs=8,pool=5,ring=20"}

// sameByLayers compares prompts that are read in chunks on one socket with some of the given ways to read them layer by
// layer: each second, or each sixth on 16 sockets, unless the test may be long.
func sameByLayers(t *testing.T, number int, base rigConfig, policy string, cuts []rigConfig) {
	t.Parallel()
	base.sockets, base.mapping, base.kv = 1, topology.Gather, tensor.BF16
	alone := newRig(t, base)
	want := mixed(policy)
	for _, q := range want {
		q.arrives = 0
		alone.generate(512, q)
	}
	for j, c := range cuts {
		every := 2
		if c.sockets == 16 {
			every = 6
		}
		if (number+j)%every > 0 && !testlevel.Long() || raceEnabled && c.sockets == 16 { // slow under the race detector
			continue
		}
		c.dir, c.weights, c.kv = base.dir, base.weights, base.kv
		r, got := newRig(t, c), mixed(policy)
		r.generate(130, got...)
		if !bytes.Equal(bits(t, got), bits(t, want)) {
			t.Errorf("%d sockets, %s: sweeps of %d layers in passes of %d tokens give other results than chunks",
				c.sockets, c.mapping, max(1, c.group), c.sweep)
		}
	}
}

// Prompts that are read layer by layer give the bits of prompts that are read in chunks, under every
// policy that drops tokens.
func TestLayersSameBits(t *testing.T) {
	cuts := []rigConfig{
		{sockets: 1, mapping: topology.Gather, sweep: 64}, {sockets: 3, mapping: topology.Gather, sweep: 31, shares: []float64{1, 5, 2}},
		{sockets: 4, mapping: topology.Reduce, sweep: 50}, {sockets: 3, mapping: topology.Reduce, sweep: 64, group: 2},
		{sockets: 16, mapping: topology.Gather, sweep: 40},
	}
	for i, policy := range evicting {
		t.Run(policy, func(t *testing.T) { sameByLayers(t, i, rigConfig{dir: goldenDir}, policy, cuts) })
	}
}

// The same for SwiftKV, whose later layers take their keys and values from one stored residual stream.
func TestLayersSameBitsSwiftKV(t *testing.T) {
	cuts := []rigConfig{
		{sockets: 1, mapping: topology.Gather, sweep: 64},
		{sockets: 3, mapping: topology.Gather, sweep: 31, shares: []float64{1, 5, 2}, micro: 2},
		{sockets: 4, mapping: topology.Reduce, sweep: 50}, {sockets: 3, mapping: topology.Reduce, sweep: 30, group: 2, micro: 2},
		{sockets: 16, mapping: topology.Gather, sweep: 40}, {sockets: 16, mapping: topology.Reduce, sweep: 65, group: 3},
	}
	for i, policy := range evicting {
		model, weights := []string{"swiftkv", "swiftkv_across", "swiftkv_bias"}[i%3], []string{"F32", "q8_0"}[i%2]
		t.Run(strings.Join([]string{model, policy, weights}, "/"), func(t *testing.T) {
			sameByLayers(t, i, rigConfig{dir: filepath.Join(modelData, model), weights: weights}, policy, cuts)
		})
	}
}

// The residual stream may be in files of the sockets. A file that fails makes its sequence lost. The
// sockets with the error report that, and the step ends as usual.
func TestLayersInFiles(t *testing.T) {
	const policy = "snapkv:topk=56,obs=8,pool=5"
	disk, err := tier.OpenScratch(filepath.Join(t.TempDir(), "kv"), 1<<24, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(disk.Close)
	sameAsAlone(t, rigConfig{dir: goldenDir}, policy, 100, rigConfig{sockets: 3, mapping: topology.Gather, sweep: 32, disk: disk},
		rigConfig{sockets: 1, mapping: topology.Gather, sweep: 50, disk: disk})
	for _, model := range []string{"swiftkv", "swiftkv_across"} {
		sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, model)}, policy, 100,
			rigConfig{sockets: 3, mapping: topology.Reduce, sweep: 32, disk: disk})
	}
	if s := disk.Stats(); s.Wrote == 0 || s.Read == 0 || s.Failed > 0 {
		t.Errorf("the files: %+v", s)
	}
	for _, limit := range []int64{1, 1 << 24} { // no room for a file; a disk that fails
		broken := tier.NewScratch(func() (tier.Medium, error) { return badMedium{}, nil }, limit, slog.New(slog.DiscardHandler))
		t.Cleanup(broken.Close)
		r := newRig(t, rigConfig{dir: goldenDir, sockets: 2, mapping: topology.Gather, kv: tensor.BF16, sweep: 64, disk: broken})
		q := &request{id: 1, prompt: somePrompt(100, 1), params: greedy(-1), policy: policy}
		s := &proto.StepRequest{Open: []*proto.Open{{Seq: 1, Policy: policy, Sampling: plan.EncodeSampling(&q.params),
			PromptTokens: 100, PassRows: 64, ResidualInFile: true}},
			Sweeps: []*proto.Sweep{q.sweep(100, layered.Shape{Group: 1, Layers: 3})}}
		r.run(s)
		if !slices.Contains(r.lost, 1) {
			t.Errorf("files of at most %d bytes: lost are %v", limit, r.lost)
		}
		r.run(&proto.StepRequest{Sweeps: []*proto.Sweep{q.sweep(100, layered.Shape{Group: 2, Layers: 3})}}) // not dropped yet
	}
}

// badMedium is a file whose disk is broken.
type badMedium struct{}

func (badMedium) ReadAt([]byte, int64) (int, error)  { return 0, io.ErrUnexpectedEOF }
func (badMedium) WriteAt([]byte, int64) (int, error) { return 0, io.ErrShortWrite }
func (badMedium) Close() error                       { return nil }

// The same for layers of other architectures: windows, latents, experts, norms before or after, sinks,
// adapters' rows, and quantized norms of rows that stay with their owners.
func TestLayersSameBitsFamilies(t *testing.T) {
	const policy = "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"
	for i, name := range []string{"qwen3", "mistral_window", "cohere2", "gpt_oss", "olmo2", "gemma2",
		"gemma3", "gemma4_31b", "gemma4_26b", "llama4", "deepseek_v2", "deepseek_v32", "glm4_moe", "granite", "phi3_longrope"} {
		of := []topology.Mapping{topology.Gather, topology.Reduce}[i%2]
		sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, name)}, policy,
			100, rigConfig{sockets: 3, mapping: of, sweep: 32, shares: []float64{1, 4, 2}})
	}
	for i, name := range []string{"qwen3_next", "qwen3_5_uneven", "falcon_h1", "nemotron_h", "lfm2", "granite_hybrid"} { // recurrent states
		of := []topology.Mapping{topology.Gather, topology.Reduce}
		for j, policy := range []string{policy, "h2o:recent=40,topk=40"} {
			sameAsAlone(t, rigConfig{dir: filepath.Join(modelData, name)}, policy,
				100, rigConfig{sockets: 3, mapping: of[(i+j)%2], sweep: 32, shares: []float64{1, 4, 2}, micro: 1 + i%2})
		}
	}
	for _, m := range []topology.Mapping{topology.Gather, topology.Reduce} {
		sameAsAlone(t, rigConfig{dir: goldenDir, weights: "q8_0"}, policy, 128,
			rigConfig{sockets: 3, mapping: m, sweep: 64}, rigConfig{sockets: 1, mapping: m, sweep: 64})
	}
}
