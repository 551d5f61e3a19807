package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Prefix compares the time to first token of a prompt with a cold and a warm prefix cache, over
// node processes.
type Prefix struct {
	Machine Machine      `json:"machine"`
	Model   string       `json:"model"`
	Quant   string       `json:"quant"`
	Mapping string       `json:"mapping"`
	Nodes   int          `json:"nodes"`
	Prompt  int          `json:"prompt_tokens"`
	Cold    float64      `json:"cold_s"`  // under the first policy; others take as long or longer
	Colds   []float64    `json:"colds_s"` // by round
	Rows    []PrefixRow  `json:"rows"`
	Misses  *PrefixMiss  `json:"misses,omitempty"`
	Chat    []PrefixChat `json:"chat,omitempty"`
}

// PrefixRow is the result of one policy; seconds are medians of all rounds.
type PrefixRow struct {
	Policy string    `json:"policy"`
	Cached int       `json:"cached_tokens"`
	Warm   float64   `json:"warm_s"`
	Share  float64   `json:"warm_over_cold"`
	Warms  []float64 `json:"warms_s"`
}

// PrefixMiss compares loads of unknown prompts with and without the cache, in pairs.
type PrefixMiss struct {
	Pairs  int     `json:"pairs"`
	Prompt int     `json:"prompt_tokens"`
	With   float64 `json:"with_s"` // all prompts together
	Plain  float64 `json:"without_s"`
	Ratio  float64 `json:"ratio"` // median over the pairs
}

// PrefixChat compares a conversation under a policy with and without the cache. The answers are the
// same.
type PrefixChat struct {
	Policy string  `json:"policy"`
	Turns  int     `json:"turns"`
	With   float64 `json:"with_s"`
	Plain  float64 `json:"without_s"`
	Cached int     `json:"cached_tokens"` // all prompts together
	Read   int     `json:"prompt_tokens"`
}

// Tokens that each turn of a conversation adds, as question and as answer; and the prompt tokens of
// a load of misses.
const (
	asked      = 256
	answered   = 64
	missTokens = 512
)

// PrefixOptions selects the measurements of MeasurePrefix in addition to repeated prompts.
type PrefixOptions struct {
	Policies []string
	Turns    int // turns of a conversation under the first policy; 0: none
	Misses   int // pairs; 0: none
}

// MeasurePrefix reads, in each round, an unknown prompt, and then for each policy a prompt that
// differs from it only in its last hundredth.
func MeasurePrefix(ctx context.Context, o ProcessOptions, p PrefixOptions) (*Prefix, error) {
	co := o.Coordinator
	f := &Prefix{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes, Prompt: o.Prompt,
		Rows: make([]PrefixRow, len(p.Policies))}
	vocab, number := co.Checkpoint().Config.Vocab, 1000*o.Prompt
	read := func(like *engine.Request, policy string) (*engine.Request, float64, int, error) {
		number++
		r := request(number, o.Prompt, 1, vocab)
		if r.NoCache, r.Policy = false, policy; like != nil {
			copy(r.Prompt[:o.Prompt-max(1, o.Prompt/100)], like.Prompt)
		}
		began := time.Now()
		_, cached, err := answerTo(ctx, co, r)
		return r, time.Since(began).Seconds(), cached, err
	}
	for range o.Repeat {
		first, took, cached, err := read(nil, p.Policies[0])
		if err != nil {
			return nil, err
		}
		if cached > 0 {
			return nil, fmt.Errorf("bench: %d tokens of a new prompt were cached", cached)
		}
		f.Colds = append(f.Colds, took)
		for i, policy := range p.Policies {
			row := &f.Rows[i]
			row.Policy = policy
			if _, took, row.Cached, err = read(first, policy); err != nil {
				return nil, err
			}
			row.Warms = append(row.Warms, took)
		}
	}
	f.Cold = medianOf(f.Colds)
	for i := range f.Rows {
		row := &f.Rows[i]
		row.Warm = medianOf(row.Warms)
		row.Share = row.Warm / f.Cold
	}
	if err := f.misses(ctx, o, p.Misses); err != nil {
		return nil, err
	}
	if p.Turns == 0 {
		return f, nil
	}
	return f, f.chat(ctx, o, p.Policies[0], p.Turns)
}

// misses reads unknown prompts alternately with and without the cache. The order changes from pair
// to pair.
func (f *Prefix) misses(ctx context.Context, o ProcessOptions, pairs int) error {
	if pairs == 0 {
		return nil
	}
	m := &PrefixMiss{Pairs: pairs, Prompt: missTokens}
	vocab := o.Coordinator.Checkpoint().Config.Vocab
	var ratios []float64
	for pair := range pairs {
		var took [2]float64 // with, without
		for k := range 2 {
			plain := (pair + k) % 2
			r := request(1_000_000_000+2*pair+plain, missTokens, 1, vocab)
			r.NoCache = plain == 1
			began := time.Now()
			if _, _, err := answerTo(ctx, o.Coordinator, r); err != nil {
				return err
			}
			took[plain] = time.Since(began).Seconds()
		}
		m.With, m.Plain, ratios = m.With+took[0], m.Plain+took[1], append(ratios, took[0]/took[1])
	}
	m.Ratio = medianOf(ratios)
	f.Misses = m
	return nil
}

// chat runs a conversation twice. Each prompt is the previous one, its answer, and a new question.
func (f *Prefix) chat(ctx context.Context, o ProcessOptions, policy string, turns int) error {
	c := PrefixChat{Policy: policy, Turns: turns}
	vocab := o.Coordinator.Checkpoint().Config.Vocab
	var history [2][]int32
	for without := range 2 {
		began := time.Now()
		for i := range turns {
			r := request(2_000_000_000+i, asked, answered, vocab)
			r.Prompt, r.NoCache, r.Policy = append(history[without], r.Prompt...), without == 1, policy
			answer, cached, err := answerTo(ctx, o.Coordinator, r)
			if err != nil {
				return err
			}
			history[without] = append(slices.Clone(r.Prompt), answer...)
			if without == 0 {
				c.Cached, c.Read = c.Cached+cached, c.Read+len(r.Prompt)
			}
		}
		if took := time.Since(began).Seconds(); without == 1 {
			c.Plain = took
		} else {
			c.With = took
		}
	}
	f.Chat = append(f.Chat, c)
	if !slices.Equal(history[0], history[1]) {
		return errors.New("bench: a conversation differs with and without the prefix cache")
	}
	return nil
}

// answerTo waits for the end of an answer.
func answerTo(ctx context.Context, e engine.Engine, r *engine.Request) (answer []int32, cached int, err error) {
	events, err := e.Submit(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	for ev := range events {
		if ev.Err != nil {
			return nil, 0, ev.Err
		}
		if ev.Token != engine.NoToken {
			answer, cached = append(answer, ev.Token), ev.Cached
		}
	}
	if len(answer) == 0 {
		return nil, 0, errors.Join(errors.New("bench: a prompt ended without a token"), context.Cause(ctx))
	}
	return answer, cached, nil
}
