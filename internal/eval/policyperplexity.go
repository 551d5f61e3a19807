package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// PolicyPerplexity is the perplexity of a text under one policy.
type PolicyPerplexity struct {
	Policy     string  `json:"policy"`
	Spec       string  `json:"kv_policy"`
	Tokens     int     `json:"tokens"` // number of scored tokens
	NLL        float64 `json:"nll"`    // mean negative log likelihood per token, in nats
	Perplexity float64 `json:"perplexity"`
	// Match is the fraction of tokens after which the most likely token is that of full attention.
	Match float64 `json:"match"`
}

// PolicyPerplexityConfig configures how a text is split. A policy only affects the tokens after a prompt. So
// the start of each window is read as a prompt, and the rest is decoded, token by token.
type PolicyPerplexityConfig struct {
	Window   int // tokens of a window, including beginning-of-sequence; default 2048
	Prefix   int // tokens of it that are read as a prompt; default half the window
	Windows  int // maximum number of windows; 0: the whole text
	Policies []Policy
	Store    *WindowStore // scores of earlier runs, and of this one; nil: in memory only
	Progress func(done, total int64)
}

// MeasurePolicyPerplexity scores a text under several policies in this process. Every window begins
// without context.
func MeasurePolicyPerplexity(ctx context.Context, tok *tokenizer.Tokenizer, text string, cfg PolicyPerplexityConfig,
	t TogetherConfig) ([]PolicyPerplexity, error) {
	bos := tok.Encode("", true)
	cfg.Window = cmp.Or(cfg.Window, 2048)
	cfg.Prefix = cmp.Or(cfg.Prefix, cfg.Window/2)
	if cfg.Prefix < len(bos)+1 || cfg.Prefix > cfg.Window-2 {
		return nil, fmt.Errorf("%w: window %d and prefix %d: want a prefix of %d to %d tokens", ErrText,
			cfg.Window, cfg.Prefix, len(bos)+1, cfg.Window-2)
	}
	cfg.Policies = slices.Clone(cfg.Policies)
	if i := slices.IndexFunc(cfg.Policies, func(p Policy) bool { return p.Family == truncatedName }); i >= 0 {
		return nil, fmt.Errorf("%w: %s cuts prompts, so it has no perplexity", ErrText, cfg.Policies[i].Name)
	}
	if err := normalForms(cfg.Policies); err != nil {
		return nil, err
	}
	ids, err := tok.TryEncode(ctx, []tokenizer.Part{{Text: text, Literal: true}}, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrText, err)
	}
	windows := windowsOf(ids, bos, cfg)
	if len(windows) == 0 {
		return nil, fmt.Errorf("%w: %d tokens; a prefix of %d leaves nothing to predict", ErrText, len(ids), cfg.Prefix)
	}
	if cfg.Store == nil {
		if cfg.Store, err = OpenWindowStore(""); err != nil {
			return nil, err
		}
	}
	m, err := openOffline(&t)
	if err != nil {
		return nil, err
	}
	defer m.ck.Close()
	return m.perplexities(ctx, windows, cfg, t.Workers)
}

// windowsOf cuts the text. A rest that is too short to score is left out.
func windowsOf(ids, bos []int32, cfg PolicyPerplexityConfig) (windows [][]int32) {
	for part := range slices.Chunk(ids, cfg.Window-len(bos)) {
		if w := slices.Concat(bos, part); len(w) >= cfg.Prefix+2 {
			windows = append(windows, w)
		}
	}
	if cfg.Windows > 0 {
		windows = windows[:min(len(windows), cfg.Windows)]
	}
	return windows
}

func (m *offlineModel) perplexities(ctx context.Context, windows [][]int32, cfg PolicyPerplexityConfig,
	workers int) ([]PolicyPerplexity, error) {
	var next, done atomic.Int64
	group, running := errgroup.WithContext(ctx)
	for range min(workers, len(windows)) {
		group.Go(func() error {
			pool := tensor.NewPool(1)
			defer pool.Close()
			var one *alone.Socket
			defer func() {
				if one != nil {
					one.Close()
				}
			}()
			for running.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= len(windows) {
					return nil
				}
				missing := m.missing(windows[n], &cfg)
				if one == nil && len(missing) > 0 {
					var err error
					if one, err = m.socket(running, pool, max(readChunk, len(cfg.Policies)+1)); err != nil {
						return err
					}
				}
				if err := m.score(running, one, windows[n], missing, &cfg); err != nil {
					return fmt.Errorf("window %d of %d: %w", n+1, len(windows), err)
				}
				if d := done.Add(1); cfg.Progress != nil {
					cfg.Progress(d, int64(len(windows)))
				}
			}
			return context.Cause(running)
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	out := make([]PolicyPerplexity, len(cfg.Policies))
	for i, p := range cfg.Policies {
		var sum WindowRecord
		for _, w := range windows { // in order, for reproducible bits
			s := cfg.Store.get(m.window(w, &cfg, p))
			if s == nil {
				return nil, errors.New("eval: stopped before the end")
			}
			sum.NLL, sum.Tokens, sum.Matches = sum.NLL+s.NLL, sum.Tokens+s.Tokens, sum.Matches+s.Matches
		}
		n := float64(sum.Tokens)
		out[i] = PolicyPerplexity{Policy: p.Name, Spec: p.Spec, Tokens: sum.Tokens, NLL: sum.NLL / n,
			Perplexity: math.Exp(sum.NLL / n), Match: float64(sum.Matches) / n}
	}
	return out, nil
}

func (m *offlineModel) window(ids []int32, cfg *PolicyPerplexityConfig, p Policy) windowKey {
	return windowKey{m.name, m.print, p.Spec, questionHash(ids, nil), cfg.Prefix}
}

// missing returns the policies without a score of the window in the store.
func (m *offlineModel) missing(ids []int32, cfg *PolicyPerplexityConfig) []Policy {
	return slices.DeleteFunc(slices.Clone(cfg.Policies), func(p Policy) bool { return cfg.Store.get(m.window(ids, cfg, p)) != nil })
}

// score scores a window under policies and stores the results.
func (m *offlineModel) score(ctx context.Context, a *alone.Socket, ids []int32, policies []Policy, cfg *PolicyPerplexityConfig) error {
	if len(policies) == 0 {
		return nil
	}
	scores, err := scoreWindow(ctx, a, ids, cfg.Prefix, policies)
	if err != nil {
		return err
	}
	for i, p := range policies {
		k, r := m.window(ids, cfg, p), scores[i]
		r.Model, r.Fingerprint, r.Policy, r.Window, r.Prefix = k.model, k.fingerprint, k.policy, k.window, k.prefix
		if err := cfg.Store.add(&r); err != nil {
			return err
		}
	}
	return nil
}

// scoreWindow reads the prefix once and feeds the other tokens under every policy. The first token
// after the prefix is not scored: prefill attends to everything under every policy.
func scoreWindow(ctx context.Context, a *alone.Socket, ids []int32, prefix int, policies []Policy) ([]WindowRecord, error) {
	const seq = 1
	specs, rows, all := []string{}, []*alone.Row{{Seq: seq}}, []uint64{seq} // the first row is full attention
	of := make([]int, len(policies))                                        // row of each policy
	for i, p := range policies {
		if p.Spec != kvcache.Full().Spec() {
			specs = append(specs, p.Spec)
			of[i] = len(rows)
			all = append(all, seq+uint64(of[i]))
			rows = append(rows, &alone.Row{Seq: seq + uint64(of[i])})
		}
	}
	if _, err := a.PrefillPolicies(ctx, seq, ids[:prefix], specs, readChunk); err != nil {
		return nil, err
	}
	for _, r := range rows {
		r.At, r.Token = prefix, ids[prefix]
	}
	out := make([]WindowRecord, len(policies))
	for _, want := range ids[prefix+1:] {
		scored, err := a.Score(ctx, rows, want)
		if err != nil {
			return nil, err
		}
		for i := range out {
			s := scored[of[i]]
			out[i].NLL -= s.Logprob
			out[i].Tokens++
			if s.Best == scored[0].Best {
				out[i].Matches++
			}
		}
	}
	return out, a.Release(ctx, all)
}

// PerplexityGrid makes a table of the results.
func PerplexityGrid(list []PolicyPerplexity) *Grid {
	g := &Grid{Columns: []string{"perplexity", "nats a token", "match %"}, Digits: 3}
	for _, p := range list {
		match := 100 * p.Match
		g.Title = fmt.Sprintf("%d tokens", p.Tokens)
		g.Rows = append(g.Rows, GridRow{Name: p.Policy, Spec: p.Spec, Cells: []*float64{&p.Perplexity, &p.NLL, &match}})
	}
	return g
}
