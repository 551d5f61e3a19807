package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TogetherConfig configures a model that runs without a server.
type TogetherConfig struct {
	Model   string // folder or file
	SwiftKV string // folder of an adapter for the model; empty: none
	Weights string // type of the weights; "": the server's default
	KV      string // type of the cache; "": the server's default
	Workers int    // concurrent prompts, each on its own single-threaded socket; default: the number of CPUs
}

// offlineModel is a model that runs without a server.
type offlineModel struct {
	ck          *checkpoint.Checkpoint
	weights, kv tensor.DType
	name, print string
}

// openOffline opens the model, and sets the default of t.Workers.
func openOffline(t *TogetherConfig) (_ *offlineModel, err error) {
	t.Workers = cmp.Or(t.Workers, runtime.GOMAXPROCS(0))
	if t.Workers < 1 || t.Workers > 1024 {
		return nil, fmt.Errorf("eval: %d workers; want 1 to 1024", t.Workers)
	}
	m := &offlineModel{}
	if m.ck, err = checkpoint.OpenSwiftKV(t.Model, t.SwiftKV); err != nil {
		return nil, err
	}
	s := cluster.ServeConfig{Model: t.Model, Weights: t.Weights, KV: t.KV}
	m.name, m.print = cluster.Identify(m.ck, &s)
	err = s.Validate(&m.ck.Config)
	if err == nil {
		m.weights, err = tensor.ParseDType(s.Weights)
	}
	if err == nil {
		m.kv, err = tensor.ParseDType(s.KV)
	}
	if err != nil {
		return nil, errors.Join(err, m.ck.Close())
	}
	return m, nil
}

// socket starts a socket whose steps have at most tokens tokens.
func (m *offlineModel) socket(ctx context.Context, pool *tensor.Pool, tokens int) (*alone.Socket, error) {
	return alone.New(ctx, alone.Config{Checkpoint: m.ck, Pool: pool, Weights: m.weights, KV: m.kv, KVBudget: 1 << 40, StepTokens: tokens})
}

// offlineRunner runs a model under all policies at once.
type offlineRunner struct {
	*offlineModel
	tok     *tokenizer.Tokenizer
	samples Source
	store   *Store
}

// RunTogether does the same as Run, in this process. Each prompt is read once, and every policy
// compresses it and answers (alone.PrefillPolicies). The answers equal a server's, token by token. It runs
// all tasks of one sample number before the next, so an interrupted run has covered everything
// evenly.
func RunTogether(ctx context.Context, tok *tokenizer.Tokenizer, g Source, store *Store, cfg Config, t TogetherConfig) ([]Record, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := normalForms(cfg.Policies); err != nil {
		return nil, err
	}
	m, err := openOffline(&t)
	if err != nil {
		return nil, err
	}
	defer m.ck.Close()
	w := &offlineRunner{offlineModel: m, tok: tok, samples: g, store: store}
	return w.all(ctx, cfg, t.Workers)
}

// normalForms replaces each policy's text by its normal form. Full attention may occur once.
func normalForms(policies []Policy) error {
	whole := 0
	for i := range policies {
		p, err := kvpolicy.Parse(policies[i].Spec)
		if err != nil {
			return err
		}
		if p.RebuildsByPrefill() && policies[i].Family != truncatedName {
			whole++
		}
		if policies[i].Spec = p.Spec(); whole > 1 {
			return fmt.Errorf("eval: policy %s is named twice: full attention", policies[i].Name)
		}
	}
	return nil
}

func (w *offlineRunner) all(ctx context.Context, cfg Config, workers int) ([]Record, error) {
	var jobs []job
	for i := range cfg.Samples {
		for _, l := range cfg.Lengths {
			for _, t := range cfg.Tasks {
				jobs = append(jobs, job{task: t, length: l, index: i})
			}
		}
	}
	total := int64(len(jobs) * len(cfg.Policies))
	var next, done atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range min(workers, len(jobs)) {
		group.Go(func() error {
			pool := tensor.NewPool(1)
			defer pool.Close()
			var one *alone.Socket
			defer func() {
				if one != nil {
					one.Close()
				}
			}()
			for ctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(jobs) {
					return nil
				}
				policies := w.missing(jobs[n], cfg.Policies)
				if one == nil && len(policies) > 0 {
					var err error
					if one, err = w.socket(ctx, pool, max(readChunk, len(cfg.Policies)+1)); err != nil {
						return err
					}
				}
				if len(policies) > 0 {
					if err := w.answer(ctx, one, jobs[n], policies); err != nil {
						return fmt.Errorf("%s, %d tokens, sample %d: %w", jobs[n].task, jobs[n].length, jobs[n].index, err)
					}
				}
				if d := done.Add(int64(len(cfg.Policies))); cfg.Progress != nil {
					cfg.Progress(d, total)
				}
			}
			return context.Cause(ctx)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var records []Record
	for _, j := range jobs {
		for _, p := range cfg.Policies {
			r := w.store.get(w.key(j, p))
			if r == nil {
				return nil, errors.New("eval: stopped before the end")
			}
			records = append(records, *r)
		}
	}
	return records, nil
}

func (w *offlineRunner) key(j job, p Policy) key {
	return key{w.name, w.print, w.samples.Corpus(), p.Name, j.task, w.samples.Seed(), j.length, j.index}
}

// missing returns the policies without an answer in the store.
func (w *offlineRunner) missing(j job, all []Policy) []Policy {
	return slices.DeleteFunc(slices.Clone(all), func(p Policy) bool { return w.store.get(w.key(j, p)) != nil })
}

// truncatedSeq is the first number of the sequences whose text is cut. It is above those of other policies.
const truncatedSeq = 1 << 20

// readChunk is the number of prompt tokens per step. It never changes a bit.
const readChunk = 256

// continuation is one policy's answer so far.
type continuation struct {
	alone.Row
	ids  []int32 // without the end token
	over bool
}

// add adds a drawn token. Where the first words of the answer are given, they replace the drawn
// tokens.
func (c *continuation) add(s *Sample, eos []int32) {
	if len(c.ids) < s.Given {
		c.Token = s.Answer[len(c.ids)]
	} else if slices.Contains(eos, c.Token) {
		c.over = true
		return
	}
	c.ids = append(c.ids, c.Token)
	c.over = len(c.ids) == s.MaxTokens()
}

// answer reads one prompt and answers it under every policy.
func (w *offlineRunner) answer(ctx context.Context, a *alone.Socket, j job, policies []Policy) error {
	s, err := w.samples.Sample(j.task, j.length, j.index)
	if err != nil {
		return err
	}
	began := time.Now()
	const seq = 1
	var specs []string
	all, answers := []uint64{seq}, make([]continuation, len(policies))
	for i, p := range policies {
		answers[i].At = len(p.prompt(s.Prompt))
		if p.Family == truncatedName {
			answers[i].Seq = uint64(truncatedSeq + i)
			all = append(all, answers[i].Seq)
			continue
		}
		answers[i].Seq = seq // full attention continues the prompt's own sequence
		if p.Spec != kvcache.Full().Spec() {
			specs = append(specs, p.Spec)
			answers[i].Seq = uint64(seq + len(specs))
			all = append(all, answers[i].Seq)
		}
	}
	first, err := a.PrefillPolicies(ctx, seq, s.Prompt, specs, readChunk)
	if err != nil {
		return err
	}
	eos := w.ck.Config.EOS
	for i := range answers {
		if policies[i].Family != truncatedName {
			answers[i].Token = first[answers[i].Seq-seq]
		} else if answers[i].Token, err = readTruncated(ctx, a, answers[i].Seq, policies[i].prompt(s.Prompt)); err != nil {
			return err
		}
	}
	for {
		var rows []*alone.Row
		for i := range answers {
			if c := &answers[i]; !c.over {
				if c.add(s, eos); !c.over {
					rows = append(rows, &c.Row)
				}
			}
		}
		if len(rows) == 0 {
			break
		}
		if _, _, _, err := a.Decode(ctx, rows); err != nil {
			return err
		}
	}
	millis := time.Since(began).Milliseconds() / int64(len(policies))
	for i, p := range policies {
		text := w.tok.Decode(answers[i].ids, true)
		r := s.record(p, s.scoreOf(w.tok, answers[i].ids, text), text, millis)
		r.Model, r.Fingerprint, r.Corpus, r.Seed = w.name, w.print, w.samples.Corpus(), w.samples.Seed()
		if err := w.store.add(r); err != nil {
			return err
		}
	}
	return a.Release(ctx, all)
}

// scoreOf scores like Run: from the text, as any server returns it, or by tokens if the first ones
// are given.
func (s *Sample) scoreOf(tok *tokenizer.Tokenizer, ids []int32, text string) Score {
	if s.ByTokens {
		return s.scoreTokens(ids, text)
	}
	return s.Score(tok, text)
}
