// Package arithmetic makes a fingerprint of this process's arithmetic: the results of the kernels
// in use for fixed numbers, and those of every architecture and cache policy for a fixed prompt.
// Processes with the same fingerprint produce the same bits.
package arithmetic

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/selftest"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Fingerprint is the version of the canonical arithmetic and a hash, "1-5f0c6a1b22d3". It is the
// same on every machine that follows the rules. A process computes it once, in tens of milliseconds
// on one thread.
var Fingerprint = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), selfTestTimeout)
	defer cancel()
	cases, err := selfTest(ctx)
	if err != nil {
		return "", fmt.Errorf("arithmetic: self-test: %w", err)
	}
	h := sha256.New()
	for _, c := range cases {
		fmt.Fprintf(h, "%s %x\n", c.name, c.sum)
	}
	return fmt.Sprintf("%d-%x", tensor.Arithmetic, h.Sum(nil)[:6]), nil
})

// result is the hash of one case's output in the self-test.
type result struct {
	name string
	sum  []byte
}

func selfTest(ctx context.Context) ([]result, error) {
	kernels, err := selftest.Sum()
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	out := []result{{"kernels", kernels[:]}}
	pool := tensor.NewPool(1)
	defer pool.Close()
	sys := alone.NewSystem()
	defer sys.Close()
	for _, s := range served() {
		ck, err := checkpoint.Tiny(s.name)
		if err == nil {
			out, err = answers(ctx, out, s.name, alone.Config{Checkpoint: ck, Pool: pool, System: sys, Weights: s.weights, KV: s.kv,
				KVBudget: 16 << 20, StepTokens: len(policies) * promptTokens})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return out, nil
}

// typed is an architecture with its types.
type typed struct {
	name        string
	weights, kv tensor.DType
}

// served lists every architecture with the types that typesOf assigns. Types that were added later come
// last, since within typesOf they would change the other assignments.
func served() (out []typed) {
	for _, name := range model.Architectures() {
		weights, kv := typesOf(name)
		out = append(out, typed{name, weights, kv})
	}
	return append(out, typed{"LlamaForCausalLM", tensor.Int4, tensor.BF16}, typed{"GptOssForCausalLM", tensor.MXFP4, tensor.BF16})
}

// selfTestTimeout suffices for starved machines and machines without vector units.
const selfTestTimeout = 2 * time.Minute

// policies lists every policy, each with few slots, so that it evicts or selects.
var policies = []string{
	"full", "streaming:sink=2,recent=9", "snapkv:topk=12,obs=4,pool=3", "snapstream:sink=2,recent=5,topk=6,obs=4,pool=3,positions=cache",
	"sage:sink=2,recent=4,topk=6", "h2o:recent=6,topk=6,step=1", "tova:size=14", "knorm:sink=2,recent=5,topk=6",
	"quest:page=16,budget=32,skip=1", "shadowkv:chunk=4,budget=8,outliers=1,local=2",
	"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=2,obs=4",
	"pyramidkv:topk=10,obs=4,pool=3,beta=4", "lagkv:sink=2,lag=6,topk=9",
	"loki:budget=12,dims=0.5,calib=16", "infinigen:alpha=1,most=0.3,dims=0.3,calib=16",
	"resnap:topk=6,every=2,obs=4,pool=3", "adakv:topk=8,obs=4,pool=3",
}

// types are pairs of weight type and cache type, assigned to the architectures.
var types = [...][2]tensor.DType{{tensor.BF16, tensor.BF16}, {tensor.F32, tensor.F32}, {tensor.Q8_0, tensor.Int8},
	{tensor.Q4_0, tensor.BF16}, {tensor.IQ4_NL, tensor.F32}, {tensor.F16, tensor.BF16}}

const (
	promptTokens = 40
	decodeSteps  = 3
)

// typesOf assigns types by a hash of the name, so that a new architecture changes no other.
func typesOf(architecture string) (weights, kv tensor.DType) {
	n := fnv.New32a()
	n.Write([]byte(architecture))
	t := types[n.Sum32()%uint32(len(types))]
	return t[0], t[1]
}

// answers reads a prompt with a model, once per policy, and samples some tokens.
func answers(ctx context.Context, out []result, name string, c alone.Config) ([]result, error) {
	a, err := alone.New(ctx, c)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	if c.Checkpoint.Config.Headless {
		return vectors(ctx, out, name, c, a)
	}
	vocab := uint32(c.Checkpoint.Config.Vocab)
	req := &proto.StepRequest{DeadlineMillis: uint32(selfTestTimeout.Milliseconds())}
	for i, policy := range policies {
		seq := uint64(i + 1)
		if c.Checkpoint.Config.Latent.Index.Heads > 0 {
			policy = strings.TrimSuffix(policy, ",positions=cache") // which such a model does not have
		}
		req.Open = append(req.Open, &proto.Open{Seq: seq, Policy: policy, PromptTokens: promptTokens,
			Sampling: &proto.Sampling{Temperature: 0.8, TopP: 0.9, MinP: 0.01, RepetitionPenalty: 1.1, PresencePenalty: 0.1,
				FrequencyPenalty: 0.1, Seed: 7, Logprobs: int32(vocab)}})
		chunk := &proto.Chunk{Seq: seq, Prefill: true, Last: true, Sample: true, WantPromptLogprobs: i == 0}
		for t := range uint32(promptTokens) {
			chunk.Tokens = append(chunk.Tokens, (t*t+t/3)%vocab)
		}
		req.Chunks = append(req.Chunks, chunk)
	}
	sums := make([]hash.Hash, len(policies))
	for i := range sums {
		sums[i] = sha256.New()
	}
	for step := range uint32(1 + decodeSteps) {
		reply, _, _, err := a.Step(ctx, req)
		if err != nil {
			return nil, err
		}
		req = &proto.StepRequest{DeadlineMillis: req.DeadlineMillis}
		for _, s := range reply.Sampled {
			write(sums[s.Seq-1], s)
			if len(s.Drawn) != 1 || !s.Drawn[0].HasToken {
				return nil, fmt.Errorf("no token was sampled for %s", policies[s.Seq-1])
			}
			req.Chunks = append(req.Chunks, &proto.Chunk{Seq: s.Seq, Start: promptTokens + step, Tokens: []uint32{s.Drawn[0].Token}, Sample: true})
		}
	}
	for i, policy := range policies {
		out = append(out, result{fmt.Sprintf("%s %v %v %s", name, c.Weights, c.KV, policy), sums[i].Sum(nil)})
	}
	return out, nil
}

func write(h hash.Hash, s *proto.Sampled) {
	b := binary.LittleEndian.AppendUint64(nil, s.Seq)
	token := func(id uint32, logprob float32) {
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, id), math.Float32bits(logprob))
	}
	for _, p := range s.Prompt {
		token(p.Position, p.Logprob)
	}
	for _, d := range s.Drawn {
		token(d.Token, d.Logprob)
		for _, t := range d.Top {
			token(t.Token, t.Logprob)
		}
	}
	h.Write(b)
}
