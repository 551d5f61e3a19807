package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"shoal/api"
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
	Rows    []PrefixRow `json:"rows"`
}

// PrefixRow is a policy's; seconds are medians of all rounds.
type PrefixRow struct {
	Policy string    `json:"policy"`
	Cached int       `json:"cached_tokens"`
	Cold   float64   `json:"cold_s"`
	Warm   float64   `json:"warm_s"`
	Share  float64   `json:"warm_over_cold"`
	Colds  []float64 `json:"colds_s"`
	Warms  []float64 `json:"warms_s"`
}

// MeasurePrefix reads, in each round, a prompt that nobody has read, and then one that
// differs from it in its last hundredth.
func MeasurePrefix(ctx context.Context, o ProcessOptions, policies []string) (*Prefix, error) {
	co := o.Coordinator
	p := &Prefix{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes, Prompt: o.Prompt}
	vocab, number := co.Checkpoint().Config.Vocab, 0
	for _, policy := range policies {
		row := PrefixRow{Policy: policy}
		for range o.Repeat {
			number += 2
			cold, warm := request(number, o.Prompt, 1, vocab), request(number+1, o.Prompt, 1, vocab)
			copy(warm.Prompt[:o.Prompt-max(1, o.Prompt/100)], cold.Prompt)
			for _, r := range []*api.Request{cold, warm} {
				r.NoCache, r.Policy = false, policy
				began := time.Now()
				cached, err := firstToken(ctx, co, r)
				if err != nil {
					return nil, err
				}
				took := time.Since(began).Seconds()
				switch {
				case r == warm:
					row.Warms, row.Cached = append(row.Warms, took), cached
				case cached > 0:
					return nil, fmt.Errorf("bench: a prompt that nobody has read was cached: %d tokens", cached)
				default:
					row.Colds = append(row.Colds, took)
				}
			}
		}
		row.Cold, row.Warm = middle(row.Colds), middle(row.Warms)
		row.Share = row.Warm / row.Cold
		p.Rows = append(p.Rows, row)
	}
	return p, nil
}

// firstToken waits for the first token, then for the end.
func firstToken(ctx context.Context, e api.Engine, r *api.Request) (cached int, err error) {
	events, err := e.Submit(ctx, r)
	if err != nil {
		return 0, err
	}
	tokens := 0
	for ev := range events {
		if ev.Err != nil {
			return 0, ev.Err
		}
		if ev.Token != api.NoToken {
			tokens, cached = tokens+1, ev.Cached
		}
	}
	if tokens == 0 {
		return 0, errors.Join(errors.New("bench: a prompt ended without a token"), context.Cause(ctx))
	}
	return cached, nil
}
