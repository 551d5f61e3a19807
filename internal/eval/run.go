package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

type Config struct {
	Tasks       []string // default: all except those that must be named
	Lengths     []int    // prompt tokens; default 4096
	Samples     int      // per task and length; default 20
	Policies    []Policy // default: the server's own
	Concurrency int      // concurrent requests; default 4
	// Progress is called after every answer, from any goroutine. It may be nil.
	Progress func(done, total int64)
}

func (c *Config) ensureDefaults() {
	if len(c.Tasks) == 0 {
		c.Tasks = defaultTasks()
	}
	if len(c.Lengths) == 0 {
		c.Lengths = []int{4096}
	}
	c.Samples = cmp.Or(c.Samples, 20)
	if len(c.Policies) == 0 {
		c.Policies = []Policy{{Name: DefaultPolicy, Family: DefaultPolicy}}
	}
	c.Concurrency = cmp.Or(c.Concurrency, 4)
}

// Validate sets the defaults and checks the other values.
func (c *Config) Validate() error {
	c.ensureDefaults()
	for _, t := range c.Tasks {
		if !slices.Contains(TaskNames(), t) {
			return fmt.Errorf("%w %q; known are %s", ErrTask, t, strings.Join(TaskNames(), ", "))
		}
	}
	for _, l := range c.Lengths {
		if l < MinLength || l > MaxLength {
			return fmt.Errorf("%w: %d tokens; want %d to %d", ErrLength, l, MinLength, MaxLength)
		}
	}
	if c.Samples < 1 || c.Samples > 100_000 {
		return fmt.Errorf("eval: %d samples a task; want 1 to 100000", c.Samples)
	}
	if c.Concurrency < 1 || c.Concurrency > 1024 {
		return fmt.Errorf("eval: %d requests at a time; want 1 to 1024", c.Concurrency)
	}
	return nil
}

// job is one unanswered question.
type job struct {
	task          string
	length, index int
	policy        Policy
}

// Run sends every question that has no result in store, and returns all records of the config, in
// order. After an error, the earlier answers are in the store.
func Run(ctx context.Context, c *Client, tok *tokenizer.Tokenizer, g Source, store *Store, cfg Config) ([]Record, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var jobs []job
	var keys []key
	model, fingerprint := c.Model()
	// Samples outermost: an interrupted run has covered everything evenly.
	for i := range cfg.Samples {
		for _, l := range cfg.Lengths {
			for _, t := range cfg.Tasks {
				for _, p := range cfg.Policies {
					jobs = append(jobs, job{t, l, i, p})
					keys = append(keys, key{model, fingerprint, g.Corpus(), p.Name, t, g.Seed(), l, i})
				}
			}
		}
	}
	var done atomic.Int64
	progress := func() {
		n := done.Add(1)
		if cfg.Progress != nil {
			cfg.Progress(n, int64(len(jobs)))
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cfg.Concurrency)
	for i, j := range jobs {
		if store.get(keys[i]) != nil {
			progress()
			continue
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			r, err := evaluate(ctx, c, tok, g, j)
			if err != nil {
				return fmt.Errorf("%s, %d tokens, sample %d, policy %s: %w", j.task, j.length, j.index, j.policy.Name, err)
			}
			r.Model, r.Fingerprint, r.Corpus, r.Seed = model, fingerprint, g.Corpus(), g.Seed()
			progress()
			return store.add(r)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	records := make([]Record, 0, len(keys))
	for _, k := range keys {
		r := store.get(k)
		if r == nil {
			return nil, errors.Join(errors.New("eval: stopped before the end"), context.Cause(ctx))
		}
		records = append(records, *r)
	}
	return records, nil
}

func evaluate(ctx context.Context, c *Client, tok *tokenizer.Tokenizer, g Source, j job) (*Record, error) {
	s, err := g.Sample(j.task, j.length, j.index)
	if err != nil {
		return nil, err
	}
	if s.Given > 0 && !NeedsChat(j.task) {
		return nil, fmt.Errorf("%w: %s gives the model a part of its answer, which servers do not support: use --together", ErrTask, j.task)
	}
	began := time.Now()
	out, err := c.Complete(ctx, j.policy.prompt(s.Prompt), s.MaxTokens(), j.policy.Spec)
	if err != nil {
		return nil, err
	}
	return s.record(j.policy, s.Score(tok, out.Text), out.Text, time.Since(began).Milliseconds()), nil
}

// record builds the record of a sample. The caller adds the run's identity.
func (s *Sample) record(p Policy, score Score, output string, millis int64) *Record {
	r := &Record{Policy: p.Name, Task: s.Task, Length: s.Length, Index: s.Index, Exact: score.Exact,
		Tokens: score.Tokens, Recall: score.Recall,
		Answer: s.Text, Output: output, Millis: millis}
	if s.Depth >= 0 {
		r.Depth = &s.Depth
	}
	return r
}
