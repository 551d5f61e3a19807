package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/api"
)

// Prefix is what it takes to the first token of a prompt, read whole and with most of it in
// the prefix cache, over node processes.
type Prefix struct {
	Machine Machine     `json:"machine"`
	Model   string      `json:"model"`
	Quant   string      `json:"quant"`
	Mapping string      `json:"mapping"`
	Nodes   int         `json:"nodes"`
	Prompt  int         `json:"prompt_tokens"`
	Turns   int         `json:"turns"`
	Rows    []PrefixRow `json:"rows"`
}

// PrefixRow is a policy's; seconds are medians of all rounds.
type PrefixRow struct {
	Policy string    `json:"policy"`
	Cached int       `json:"cached_tokens"`
	Cold   float64   `json:"cold_s"`
	Warm   float64   `json:"warm_s"`
	Share  float64   `json:"warm_over_cold"`
	Chat   []float64 `json:"chat_s,omitempty"` // of a conversation: all turns with the cache, and without
	Plain  float64   `json:"plain_s"`          // without the cache
	Miss   float64   `json:"cold_over_plain"`  // the median of the rounds' ratios
	Plains []float64 `json:"plains_s"`
	Colds  []float64 `json:"colds_s"`
	Warms  []float64 `json:"warms_s"`
}

// turn is what each turn of a conversation adds: so many tokens asked, as many answered.
const turn = 128

// chat is how long a conversation takes: each prompt is the one before, the answer to it,
// and a new question.
func chat(ctx context.Context, e api.Engine, number, turns, vocab int, policy string, without bool) (float64, error) {
	var said []int32
	began := time.Now()
	for i := range turns {
		r := request(number+i, turn, turn, vocab)
		r.Prompt, r.NoCache, r.Policy = append(said, r.Prompt...), without, policy
		answer, _, err := answerTo(ctx, e, r)
		if err != nil {
			return 0, err
		}
		said = append(slices.Clone(r.Prompt), answer...)
	}
	return time.Since(began).Seconds(), nil
}

// MeasurePrefix reads, in each round, a prompt without the cache, one that nobody has read
// with it, and one that differs from that in its last hundredth.
func MeasurePrefix(ctx context.Context, o ProcessOptions, policies []string, turns int) (*Prefix, error) {
	co := o.Coordinator
	p := &Prefix{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes, Prompt: o.Prompt, Turns: turns}
	vocab, number := co.Checkpoint().Config.Vocab, 1000*o.Prompt
	for _, policy := range policies {
		row := PrefixRow{Policy: policy}
		for round := range o.Repeat {
			number += 3
			cold, warm, plain := request(number, o.Prompt, 1, vocab), request(number+1, o.Prompt, 1, vocab), request(number+2, o.Prompt, 1, vocab)
			copy(warm.Prompt[:o.Prompt-max(1, o.Prompt/100)], cold.Prompt)
			order := []*api.Request{plain, cold, warm}
			if round%2 == 1 { // neither always finds what the other has left
				order = []*api.Request{cold, plain, warm}
			}
			for _, r := range order {
				r.NoCache, r.Policy = r == plain, policy
				began := time.Now()
				_, cached, err := answerTo(ctx, co, r)
				if err != nil {
					return nil, err
				}
				took := time.Since(began).Seconds()
				switch {
				case r == warm:
					row.Warms, row.Cached = append(row.Warms, took), cached
				case r == plain:
					row.Plains = append(row.Plains, took)
				case cached > 0:
					return nil, fmt.Errorf("bench: a prompt that nobody has read was cached: %d tokens", cached)
				default:
					row.Colds = append(row.Colds, took)
				}
			}
		}
		row.Plain, row.Cold, row.Warm = middle(row.Plains), middle(row.Colds), middle(row.Warms)
		var misses []float64
		for i, cold := range row.Colds {
			misses = append(misses, cold/row.Plains[i])
		}
		row.Share, row.Miss = row.Warm/row.Cold, middle(misses)
		for i := range 2 * min(turns, 1) {
			number += turns
			took, err := chat(ctx, co, number, turns, vocab, policy, i == 1)
			if err != nil {
				return nil, err
			}
			row.Chat = append(row.Chat, took)
		}
		p.Rows = append(p.Rows, row)
	}
	return p, nil
}

// answerTo waits for the end of an answer.
func answerTo(ctx context.Context, e api.Engine, r *api.Request) (answer []int32, cached int, err error) {
	events, err := e.Submit(ctx, r)
	if err != nil {
		return nil, 0, err
	}
	for ev := range events {
		if ev.Err != nil {
			return nil, 0, ev.Err
		}
		if ev.Token != api.NoToken {
			answer, cached = append(answer, ev.Token), ev.Cached
		}
	}
	if len(answer) == 0 {
		return nil, 0, errors.Join(errors.New("bench: a prompt ended without a token"), context.Cause(ctx))
	}
	return answer, cached, nil
}
