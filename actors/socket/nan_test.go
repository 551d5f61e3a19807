package socket

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
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
		for i, policy := range []string{"full", "streaming:sink=4,recent=28", "snapkv:topk=40,obs=8", "snapstream:sink=4,recent=20,topk=24,obs=8", "sage:sink=4,recent=20,topk=24",
			"h2o:recent=20,topk=20", "tova:size=40", "quest:page=16,budget=32", "shadowkv:chunk=8,budget=16,outliers=1,local=1", "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64"} {
			p := greedy(-1)
			if i%2 > 0 {
				p.Temperature, p.Logprobs, p.RepetitionPenalty, p.TopP = 1, 3, 1.2, 0.5
			}
			seq := uint64(i + 1)
			step.Open = append(step.Open, &proto.Open{Seq: seq, Owner: uint32(i % 2), Policy: policy, Sampling: plan.EncodeSampling(&p), PromptTokens: 48})
			step.Chunks = append(step.Chunks, &proto.Chunk{Seq: seq, Tokens: make([]uint32, 48), Prefill: true, Last: true, Sample: true, WantPromptLogprobs: true, PromptLogprobs: 2})
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

// TestBestOfAllRanks checks that the largest logit wins, and the lowest token on a tie. NaN must
// never win, and a token outside of its sender's range must fail the step.
func TestBestOfAllRanks(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	const none, fails = -1, -2
	rows := []topology.Range{{Lo: 0, Hi: 2}, {Lo: 2, Hi: 4}, {Lo: 4, Hi: 4}}
	b := &layer.Batch{}
	for _, r := range rows {
		b.Place.Slices = append(b.Place.Slices, topology.Slice{Vocab: r})
	}
	for _, c := range []struct {
		rank  int // rank that computes the result: 0 or 1; the other is the peer
		peer  float32
		token uint32
		own   [2]float32
		best  int
		want  int32
	}{
		{1, 1, 1, [2]float32{0, 2}, 1, 3},
		{1, 2, 1, [2]float32{0, 2}, 1, 1},
		{0, 2, 3, [2]float32{0, 2}, 1, 1},
		{0, 3, 3, [2]float32{0, 2}, 1, 3},
		{1, nan, 0, [2]float32{-5, -6}, 0, 2},
		{1, -7, 0, [2]float32{nan, nan}, 0, 0},
		{1, nan, 0, [2]float32{nan, nan}, 0, none},
		{1, -inf, 0, [2]float32{-inf, -inf}, 0, none},
		{1, inf, 1, [2]float32{inf, 0}, 0, 1},
		{1, 1, 2, [2]float32{0, 2}, 1, fails},
		{1, 1, math.MaxUint32, [2]float32{0, 2}, 1, fails},
		{0, 1, 1, [2]float32{0, 2}, 1, fails},
		{0, 1, 4, [2]float32{0, 2}, 1, fails},
	} {
		b.Rank = c.rank
		h := head{rows: []layer.LogitRow{{Best: c.best, Logit: c.own[c.best]}}, rankBuffers: rankBuffers{recv: make([][]byte, len(rows))}}
		h.recv[1-c.rank] = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, math.Float32bits(c.peer)), c.token)
		r := h.best(b, 0, make([]int, len(rows)))
		got := r.Token
		switch {
		case errors.Is(r.Err, sampler.ErrNoCandidate):
			got = none
		case r.Err != nil:
			got = fails
		case got < 0:
			t.Errorf("%+v: token %d without an error", c, got)
		}
		if got != c.want {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}
