package answers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// patience is the deadline of every wait; it allows for a heavily loaded machine.
const patience = 10 * time.Minute

// scoreRun is the number of positions of a prompt's scores that share a hash.
const scoreRun = 32

// request is one sequence of a setup.
type request struct {
	policy, kind string
	prompt       []int32
	output       int
}

func (r request) String() string {
	return fmt.Sprintf("%s %s %d+%d", r.policy, r.kind, len(r.prompt), r.output)
}

// seed depends only on the request's text, so that a new row of the matrix changes no other row.
func (r request) seed() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, r.policy, " ", r.kind)
	return h.Sum64()
}

// The kinds of requests: the sampling of tokens and the parts of the answer.
const (
	greedy = "greedy" // temperature 0, with log probabilities
	drawn  = "drawn"  // seeded, with penalties and log probabilities
	argmax = "argmax" // temperature 0, only ids: sockets need not send logits
	scores = "scores" // log probabilities of the prompt
)

func newRequest(c *model.Config, policy, kind string, prompt, output int) request {
	r := request{policy: policy, kind: kind, output: output}
	r.prompt = makePrompt(c.Vocab, prompt, r.seed())
	return r
}

// requests returns the requests of a setup: one per policy, alternately greedy and sampled, one
// with ids only, and one with a prompt's scores. The main types add long prompts, and bf16 adds
// long answers.
func (s setup) requests(c *model.Config) []request {
	var all []request
	add := func(policy, kind string, prompt, output int) {
		if holds(c, policy) {
			all = append(all, newRequest(c, policy, kind, prompt, output))
		}
	}
	for _, p := range policies {
		seed := request{policy: p}.seed()
		add(p, [2]string{greedy, drawn}[(seed+uint64(s.number))%2], 121+int(seed/2%140), 16)
	}
	add("full", argmax, 77, 16)
	add("full", scores, 150, 1)
	if s.main && c.MaxPositions > 1600 {
		for i, p := range longPolicies {
			add(p, greedy, 1350+50*i, 12)
		}
	}
	if s.grows() {
		all = append(all, growing(c)...)
		for _, p := range growingSelectors {
			add(p, greedy, 75, 72)
			add(p, drawn, 76, 72)
		}
	}
	return all
}

// holds reports whether a policy supports this model: low-rank keys do not support all, nor do norms after rotation.
func holds(c *model.Config, policy string) bool {
	p, err := kvpolicy.Parse(policy)
	g := kvcache.Geometry{KVHeads: c.KVHeads, Layout: tensor.KVLayout{KDim: c.HeadDim, Latent: c.Latent.Rank > 0},
		Unturned: c.QKNormOf == model.OfRotatedHeads || c.Latent.Index.Heads > 0}
	return err != nil || g.Fits(p) == nil // the cluster must refuse unknown names
}

// growing returns requests whose caches exceed two blocks during decode. With little cache memory
// they are preempted, and rebuilt by prefill and by replay.
func growing(c *model.Config) (all []request) {
	for _, p := range growingPolicies {
		all = append(all, newRequest(c, p, greedy, 60, 72), newRequest(c, p, drawn, 61, 72))
	}
	return all
}

// makePrompt returns random tokens with repetitions, so that attention has structure.
func makePrompt(vocab, n int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 16))
	p := make([]int32, n)
	for i := range p {
		if p[i] = int32(r.IntN(vocab)); i > 40 && r.IntN(3) > 0 {
			p[i] = p[i-37]
		}
	}
	return p
}

func (r request) api(i int) *engine.Request {
	p := sampler.Default()
	p.Temperature, p.Logprobs = 0, 3
	a := &engine.Request{ID: fmt.Sprint("answer-", i), Prompt: r.prompt, MaxTokens: r.output,
		IgnoreEOS: true, PromptLogprobs: -1, Policy: r.policy}
	switch r.kind {
	case drawn:
		p.Temperature, p.TopP, p.TopK, p.MinP, p.Seed, p.Logprobs = 0.9, 0.95, 200, 0.001, r.seed(), 1
		p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty = 1.1, 0.2, 0.1
		p.LogitBias = []sampler.Bias{{Token: 5, Value: 0.5}, {Token: 9, Value: -1}}
	case argmax:
		p.Logprobs = -1
	case scores:
		a.PromptLogprobs = 2
	}
	a.Sampling = p
	return a
}

// hash hashes 32-bit values one by one.
type hash uint32

func newHash() hash { h := fnv.New32a(); return hash(h.Sum32()) }

func (h *hash) add(v uint32) {
	for i := 0; i < 32; i += 8 {
		*h = (*h ^ hash(v>>i&0xff)) * 16777619
	}
}

func (h *hash) logprobs(own float32, top []sampler.TokenLogprob) {
	h.add(math.Float32bits(own))
	for _, t := range top {
		h.add(uint32(t.Token))
		h.add(math.Float32bits(t.Logprob))
	}
}

// ask submits one request and returns its answer.
func ask(ctx context.Context, e engine.Engine, r request, i int) (answer, error) {
	events, err := e.Submit(ctx, r.api(i))
	if err != nil {
		return answer{}, err
	}
	var a answer
	var failed error
	for ev := range events {
		if ev.Err != nil {
			failed = ev.Err
		}
		for at := 1; at < len(ev.PromptLogprobs); at += scoreRun { // the first token has none
			h := newHash()
			for _, p := range ev.PromptLogprobs[at:min(at+scoreRun, len(ev.PromptLogprobs))] {
				h.logprobs(p.Logprob, p.Top)
			}
			a.hashes = append(a.hashes, uint32(h))
		}
		if ev.Token == engine.NoToken || r.kind == scores {
			continue
		}
		h := newHash()
		h.add(uint32(ev.Token))
		if r.kind != argmax {
			h.logprobs(ev.Logprob, ev.Top)
		}
		a.ids, a.hashes = append(a.ids, ev.Token), append(a.hashes, uint32(h))
	}
	if failed == nil && len(a.hashes) == 0 {
		failed = fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return a, failed
}

// asked has the answers of a setup in one configuration.
type asked struct {
	cut      cut
	requests []request
	answers  []answer
}

// run submits all requests of s at once in one configuration.
func (s setup) run(ctx context.Context, dir string, c cut) (*asked, error) {
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return nil, err
	}
	config := ck.Config
	if err := ck.Close(); err != nil {
		return nil, err
	}
	if c.device != "" {
		return s.onCard(ctx, dir, &config, c)
	}
	if c.tight {
		return s.ask(ctx, dir, c, growing(&config), littleCache(&config))
	}
	return s.ask(ctx, dir, c, s.requests(&config), 1<<30)
}

// onCard runs the requests of s that a graphics card supports, on the card.
func (s setup) onCard(ctx context.Context, dir string, config *model.Config, c cut) (*asked, error) {
	weights, err := tensor.ParseDType(s.weights)
	if err != nil {
		return nil, err
	}
	serves := accelerator.Supports(config, weights) == nil
	if !serves {
		return &asked{cut: c}, nil
	}
	served := slices.DeleteFunc(s.requests(config), func(r request) bool { return !cluster.CardComputes(r.policy) })
	return s.ask(ctx, dir, c, served, 1<<28)
}

// ask submits requests at once in one configuration. budget is the memory of a node's caches in bytes.
func (s setup) ask(ctx context.Context, dir string, c cut, requests []request, budget int64) (*asked, error) {
	out := &asked{cut: c, requests: requests, answers: make([]answer, len(requests))}
	prefill := booking.Auto
	if c.layers {
		prefill = booking.Layers
	}
	e, err := cluster.New(ctx,
		cluster.LocalConfig{Device: c.device, Sockets: c.sockets, Shares: c.shares, Threads: c.threads, KVBudget: budget,
			Serve: cluster.ServeConfig{
				Model: dir, Weights: s.weights, KV: s.kv, Mapping: c.mapping, StepTokens: c.step, Chunk: c.chunk, Prefill: prefill,
				StepDeadline: patience, SyncDeadline: patience, LoadDeadline: patience, Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	g, ctx := errgroup.WithContext(ctx)
	for i, r := range out.requests {
		g.Go(func() (err error) {
			if out.answers[i], err = ask(ctx, e, r, i); err != nil {
				err = fmt.Errorf("%v: %w", r, err)
			}
			return err
		})
	}
	return out, g.Wait()
}

// littleCache fits one and a half growing sequences at their end, and two at their beginning.
func littleCache(c *model.Config) int64 {
	row := 2 * c.KVHeads * c.HeadDim * 2 // bf16
	if c.Latent.Rank > 0 {
		row = c.Latent.Row() * 2
	}
	return int64(192 * row * c.Layers * 3 / 2)
}

// runAll runs all matching setups, workers at a time.
func runAll(root string, only *regexp.Regexp, workers int) (*record, error) {
	all := setups()
	if *device == "" {
		if err := complete(all, root); err != nil {
			return nil, err
		}
	}
	tmp, err := os.MkdirTemp("", "shoal-answers-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	results := make([][]*asked, len(all))
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(max(workers, 1))
	dirs := map[string]string{}
	for i, s := range all {
		if !only.MatchString(s.String()) {
			continue
		}
		dir := filepath.Join(root, s.dir)
		if s.make != nil {
			if dirs[s.name] == "" {
				dirs[s.name] = filepath.Join(tmp, s.name)
				if err := errors.Join(os.MkdirAll(dirs[s.name], 0o755), s.make(root, dirs[s.name])); err != nil {
					return nil, errors.Join(err, g.Wait())
				}
			}
			dir = dirs[s.name]
		}
		g.Go(func() error {
			for _, c := range s.cutsOf() {
				ctx, cancel := context.WithTimeout(ctx, patience)
				a, err := s.run(ctx, dir, c)
				cancel()
				if err != nil {
					return fmt.Errorf("answers: %v on %v: %w", s, c, err)
				}
				results[i] = append(results[i], a)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	r := newRecord()
	for i, cuts := range results {
		for _, a := range cuts {
			for j, q := range a.requests {
				r.add(key{all[i].String(), q.String()}, a.answers[j], a.cut.String())
			}
		}
	}
	return r, nil
}
