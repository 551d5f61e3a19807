package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/internal/eval/suite"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// SuiteConfig configures how the questions of a suite are asked.
type SuiteConfig struct {
	Policies    []Policy
	Chat        *tokenizer.ChatTemplate // nil: plain prompts only
	MaxPrompt   int                     // tokens; the middle of longer prompts is removed; 0: no limit
	MaxTokens   int                     // upper limit of an answer, below the task's own; 0: the task's
	Samples     int                     // answers of each question; default 1
	Temperature float64                 // 0: greedy; several samples need more
	Seed        uint64                  // of the first sample; each further one has the next
	Concurrency int                     // default 4
	Progress    func(done, total int64) // called after every answer, from any goroutine; may be nil
}

// ErrSuiteConfig: a value of a SuiteConfig is out of range.
var ErrSuiteConfig = errors.New("eval: suite")

// Validate sets the defaults and checks the other values.
func (c *SuiteConfig) Validate() error {
	if len(c.Policies) == 0 {
		c.Policies = []Policy{{Name: DefaultPolicy, Family: DefaultPolicy}}
	}
	c.Samples, c.Concurrency = cmp.Or(c.Samples, 1), cmp.Or(c.Concurrency, 4)
	switch {
	case c.Samples < 1 || c.Samples > 1000:
		return fmt.Errorf("%w: %d samples of a question; want 1 to 1000", ErrSuiteConfig, c.Samples)
	case c.Samples > 1 && c.Temperature <= 0:
		return fmt.Errorf("%w: %d samples with temperature 0 are all equal: set a temperature", ErrSuiteConfig, c.Samples)
	case c.Temperature < 0 || c.Temperature > 2:
		return fmt.Errorf("%w: temperature %g; want 0 to 2", ErrSuiteConfig, c.Temperature)
	case c.Concurrency < 1 || c.Concurrency > 1024:
		return fmt.Errorf("%w: %d requests at a time; want 1 to 1024", ErrSuiteConfig, c.Concurrency)
	}
	return nil
}

// SuiteRecord is one answer to one question, a line of results.jsonl.
type SuiteRecord struct {
	Model       string   `json:"model"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Suite       string   `json:"suite"`
	Task        string   `json:"task"`
	Set         string   `json:"set,omitempty"`
	ID          string   `json:"id"`
	Question    string   `json:"question"` // hash of the prompt's tokens and the references
	Policy      string   `json:"policy"`
	Sample      int      `json:"sample"`
	Temperature float64  `json:"temperature,omitempty"`
	Seed        uint64   `json:"seed,omitempty"`
	MaxTokens   int      `json:"max_tokens"`
	Prompt      int      `json:"prompt_tokens"`
	Score       float64  `json:"score"`
	Output      string   `json:"output"`
	Answers     []string `json:"answers"`
	Millis      int64    `json:"ms"`
}

// suiteKey identifies an answer. A question of which anything changed has another hash.
type suiteKey struct {
	model, fingerprint, suite, task, id, question, policy string
	sample, tokens                                        int
	temperature                                           float64
	seed                                                  uint64
}

func (r *SuiteRecord) key() suiteKey {
	return suiteKey{r.Model, r.Fingerprint, r.Suite, r.Task, r.ID, r.Question, r.Policy, r.Sample, r.MaxTokens, r.Temperature, r.Seed}
}

func (r *SuiteRecord) complete() error {
	if r.Suite == "" || r.Task == "" || r.Question == "" {
		return errors.New("it has no suite, task or question")
	}
	return nil
}

// SuiteStore keeps the answers of suites.
type SuiteStore struct {
	resultSet[suiteKey, SuiteRecord, *SuiteRecord]
}

// OpenSuiteStore opens or creates a file of answers. path "" keeps them in memory only. Errors wrap
// ErrStore.
func OpenSuiteStore(path string) (*SuiteStore, error) {
	s := new(SuiteStore)
	return s, s.open(path)
}

// RunSuite sends every question under every policy that has no answer in store. It returns all
// records, ordered by question, policy and sample. After an error the earlier answers are in the
// store.
func RunSuite(ctx context.Context, c *Client, tok *tokenizer.Tokenizer, name string, questions []suite.Question, store *SuiteStore,
	cfg SuiteConfig) ([]SuiteRecord, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	model, fingerprint := c.Model()
	each := len(cfg.Policies) * cfg.Samples
	out := make([]SuiteRecord, len(questions)*each)
	var done atomic.Int64
	group, running := errgroup.WithContext(ctx)
	group.SetLimit(cfg.Concurrency)
	for n := range questions {
		if running.Err() != nil {
			break
		}
		q := &questions[n]
		group.Go(func() error { // one goroutine a question: its answers share the prompt in the prefix cache
			chat := cfg.Chat
			if q.Task.Plain {
				chat = nil
			}
			prompt, err := promptOf(tok, chat, q.Prompt, q.Lead, cfg.MaxPrompt)
			if err != nil {
				return fmt.Errorf("%s, question %s: %w", q.Task.Name, q.ID, err)
			}
			hash := questionHash(prompt, q.Ref.Answers)
			for i := range each {
				p, sample := cfg.Policies[i/cfg.Samples], i%cfg.Samples
				r := SuiteRecord{Model: model, Fingerprint: fingerprint, Suite: name, Task: q.Task.Name, Set: q.Set,
					ID: q.ID, Question: hash, Policy: p.Name,
					Sample: sample, Temperature: cfg.Temperature, MaxTokens: q.Task.MaxTokens, Answers: q.Ref.Answers}
				if cfg.MaxTokens > 0 {
					r.MaxTokens = min(r.MaxTokens, cfg.MaxTokens)
				}
				if cfg.Temperature > 0 {
					r.Seed = cfg.Seed + uint64(sample)
				}
				have := store.get(r.key())
				if have == nil {
					r, err = askSuite(running, c, q, r, p, prompt)
					if err == nil {
						have, err = &r, store.add(&r)
					}
					if err != nil {
						return fmt.Errorf("%s, question %s, policy %s: %w", q.Task.Name, q.ID, p.Name, err)
					}
				}
				out[n*each+i] = *have
				out[n*each+i].Score = q.Score(have.Output) // the file may be of a version with another rule
				if d := done.Add(1); cfg.Progress != nil {
					cfg.Progress(d, int64(len(out)))
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return out, context.Cause(ctx)
}

func askSuite(ctx context.Context, c *Client, q *suite.Question, r SuiteRecord, p Policy, prompt []int32) (SuiteRecord, error) {
	began := time.Now()
	read := p.prompt(prompt)
	a, err := c.Draw(ctx, read, Drawing{MaxTokens: r.MaxTokens, Policy: p.Spec, Temperature: r.Temperature, Seed: r.Seed})
	r.Prompt, r.Output, r.Score, r.Millis = len(read), a.Text, q.Score(a.Text), time.Since(began).Milliseconds()
	return r, err
}

func questionHash(prompt []int32, answers []string) string {
	h := fnv.New64a()
	for _, id := range prompt {
		_, _ = h.Write([]byte{byte(id), byte(id >> 8), byte(id >> 16), byte(id >> 24)}) // a hash write never fails
	}
	for _, a := range answers {
		_, _ = h.Write([]byte("\x00" + a))
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
