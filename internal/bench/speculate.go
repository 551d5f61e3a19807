package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// SpeculateOptions has the texts that an engine answers with and without drafts.
type SpeculateOptions struct {
	Engine engine.Engine
	Texts  []SpeculateText
	Batch  []int         // concurrent requests
	Modes  []string      // modes compared with off
	Rounds int           // minimum rounds; every round runs all modes, in alternating order; the median of the ratios counts
	For    time.Duration // time for further rounds
	Alone  bool          // the engine computes in this process
}

// mostRounds is the maximum number of rounds of a text.
const mostRounds = 99

// SpeculateText is one kind of text: prompts, used in turn.
type SpeculateText struct {
	Kind     string
	Prompts  [][]int32
	Replay   [][]int32 // replayed answers, replacing the model's; none: the model's own
	Tokens   int       // maximum per answer
	ToEnd    bool      // answers end where the model ends them
	Sampling func(i int) sampler.Params
}

// Speculate is the effect of drafts on one kind of text.
type Speculate struct {
	Text       string  `json:"text"`
	Batch      int     `json:"batch"`
	Mode       string  `json:"mode"`
	TokensPerS float64 `json:"tokens_per_s"` // median round
	Off        float64 `json:"off_tokens_per_s"`
	Over       float64 `json:"over_off"` // median of the rounds' ratios to off
	Low        float64 `json:"over_off_low"`
	High       float64 `json:"over_off_high"`                // lower and upper quartile of the ratios
	Work       float64 `json:"processor_over_off,omitempty"` // ratio of the CPU time per token, if this process computes: median of the rounds
	Acceptance float64 `json:"acceptance"`                   // fraction of accepted draft tokens
	PerStep    float64 `json:"tokens_per_row"`               // decoded tokens divided by decode rows
	Drafted    uint64  `json:"draft_tokens"`
	Tokens     int     `json:"tokens"` // per round

	Pairs []Pair `json:"pairs"` // of rounds
}

// Pair has the rates of two consecutive rounds, in tokens a second.
type Pair struct {
	Off float64 `json:"off"`
	On  float64 `json:"on"`
}

// RunSpeculate compares each mode with off, for one text after another. The answers must be equal.
func RunSpeculate(ctx context.Context, o SpeculateOptions, each func(Speculate)) ([]Speculate, error) {
	var all []Speculate
	for _, text := range o.Texts {
		for _, batch := range o.Batch {
			rows, err := o.text(ctx, text, batch)
			if err != nil {
				return all, fmt.Errorf("bench: %s, %d requests at once: %w", text.Kind, batch, err)
			}
			for _, r := range rows {
				each(r)
			}
			all = append(all, rows...)
		}
	}
	return all, nil
}

// answers has the answers of one round.
type answers struct {
	tokens   [][]int32
	rate     float64 // tokens a second, after all have started
	worked   float64 // CPU seconds per token, after all have started
	decoded  uint64
	drafted  uint64
	accepted uint64
}

func (o *SpeculateOptions) text(ctx context.Context, text SpeculateText, batch int) ([]Speculate, error) {
	modes := append([]string{"off"}, o.Modes...)
	ratios, works := make([][]float64, len(modes)), make([][]float64, len(modes))
	rows := make([]Speculate, len(modes))
	var decoded, accepted [8]uint64
	began := time.Now()
	for round := 0; round <= o.Rounds || round < mostRounds && time.Since(began) < o.For; round++ {
		results := make([]*answers, len(modes))
		for k := range modes {
			i := k
			if round%2 == 1 {
				i = len(modes) - 1 - k // alternating the order cancels a drift of the machine's load
			}
			// A separate tenant per round: no drafts from the answers of earlier rounds.
			a, err := o.sendBatch(ctx, text, batch, modes[i], fmt.Sprint(text.Kind, batch, modes[i], round), round)
			if err != nil {
				return nil, err
			}
			results[i] = a
		}
		for i, a := range results {
			off := results[0]
			for k := range a.tokens {
				if !slices.Equal(a.tokens[k], off.tokens[k]) {
					return nil, fmt.Errorf("request %d: %s gives other tokens than off: %v and %v", k, modes[i], a.tokens[k], off.tokens[k])
				}
			}
			if round == 0 {
				continue // warm-up round
			}
			ratios[i], works[i] = append(ratios[i], a.rate/off.rate), append(works[i], a.worked/max(off.worked, 1e-12))
			r := &rows[i]
			r.Pairs = append(r.Pairs, Pair{Off: off.rate, On: a.rate})
			r.Text, r.Batch, r.Mode, r.Tokens = text.Kind, batch, modes[i], 0
			for _, t := range a.tokens {
				r.Tokens += len(t)
			}
			r.Drafted += a.drafted
			accepted[i], decoded[i] = accepted[i]+a.accepted, decoded[i]+a.decoded
		}
	}
	for i := range rows {
		r := &rows[i]
		var on, off []float64
		for _, p := range r.Pairs {
			on, off = append(on, p.On), append(off, p.Off)
		}
		r.TokensPerS, r.Off = quantile(on, 0.5), quantile(off, 0.5)
		r.Over, r.Low, r.High = quantile(ratios[i], 0.5), quantile(ratios[i], 0.25), quantile(ratios[i], 0.75)
		if o.Alone {
			r.Work = quantile(works[i], 0.5)
		}
		if r.Drafted > 0 {
			r.Acceptance = float64(accepted[i]) / float64(r.Drafted)
		}
		r.PerStep = float64(decoded[i]) / float64(decoded[i]-accepted[i])
	}
	return rows, nil
}

// quantile returns the element of x at a quantile.
func quantile(x []float64, below float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[int(below*float64(len(x)-1)+0.5)]
}

// sendBatch sends a batch. The measured time begins when every request has its first token, and ends with the
// last token of all.
func (o *SpeculateOptions) sendBatch(ctx context.Context, text SpeculateText, batch int, mode, tenant string, round int) (*answers, error) {
	a := &answers{tokens: make([][]int32, batch)}
	var ended sync.WaitGroup
	var mu sync.Mutex
	var failed error
	at := make([][]time.Time, batch) // arrival of each token
	var before time.Duration         // until every prompt was read
	for i := range batch {
		k := (round*batch + i) % len(text.Prompts)
		r := &engine.Request{ID: fmt.Sprint(tenant, "/", i), Prompt: text.Prompts[k], MaxTokens: text.Tokens, Sampling: text.Sampling(k),
			IgnoreEOS: !text.ToEnd, PromptLogprobs: -1, Speculate: mode, Tenant: tenant}
		if text.Replay != nil {
			r.Sampling.Trace = text.Replay[k]
			r.IgnoreEOS, r.MaxTokens = true, min(text.Tokens, len(r.Sampling.Trace))
		}
		events, err := o.Engine.Submit(ctx, r)
		if err != nil {
			return nil, err
		}
		ended.Go(func() {
			for e := range events {
				if e.Token != engine.NoToken {
					a.tokens[i], at[i] = append(a.tokens[i], e.Token), append(at[i], time.Now())
				}
				mu.Lock()
				if len(at[i]) == 1 {
					before = cpuTime()
				}
				if e.Drafts != nil {
					a.drafted, a.accepted = a.drafted+e.Drafts.Drafted, a.accepted+e.Drafts.Accepted
				}
				failed = errors.Join(failed, e.Err)
				mu.Unlock()
			}
		})
	}
	ended.Wait()
	var first, last time.Time
	for _, times := range at {
		if len(times) > 0 {
			a.decoded += uint64(len(times) - 1)
			first, last = later(first, times[0]), later(last, times[len(times)-1])
		}
	}
	counted := 0
	for _, times := range at {
		for _, t := range times {
			if t.After(first) {
				counted++
			}
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err // answers are truncated
	}
	if counted == 0 && failed == nil {
		failed = errors.New("all other sequences ended before the last prompt was read: increase the number of tokens")
	}
	a.worked = (cpuTime() - before).Seconds() / float64(max(1, counted))
	a.rate = float64(counted) / max(last.Sub(first).Seconds(), 1e-9)
	return a, failed
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
