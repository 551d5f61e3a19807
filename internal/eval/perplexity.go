package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

type Perplexity struct {
	Tokens      int     `json:"tokens"` // number of scored tokens
	Bytes       int     `json:"bytes"`  // bytes of the scored tokens
	Windows     int     `json:"windows"`
	NLL         float64 `json:"nll"` // mean negative log likelihood per token, in nats
	Perplexity  float64 `json:"perplexity"`
	BitsPerByte float64 `json:"bits_per_byte"` // comparable between tokenizers
}

// PerplexityConfig configures how a text is split.
type PerplexityConfig struct {
	// Window is the length of a prompt in tokens, including beginning-of-sequence. Default 2048.
	Window int
	// Stride is the distance of consecutive windows in tokens. Only tokens outside the previous
	// window are scored. Default: Window - 1. A window then starts without context but for
	// beginning-of-sequence, or, if the tokenizer has none, the last token of the previous window.
	Stride      int
	Concurrency int // default 4
	Progress    func(done, total int64)
}

// ErrText: a text cannot be measured.
var ErrText = errors.New("eval: text")

// MeasurePerplexity scores text with the logprobs that the server returns for a prompt (echo with
// logprobs). A prompt is read with full attention, so cache policies have no effect.
func MeasurePerplexity(ctx context.Context, c *Client, tok *tokenizer.Tokenizer, text string, cfg PerplexityConfig) (*Perplexity, error) {
	bos := tok.Encode("", true)
	cfg.Window = cmp.Or(cfg.Window, 2048)
	room := cfg.Window - len(bos)
	before := max(0, 1-len(bos)) // tokens at the start of a window that nothing predicts
	most := room - before
	cfg.Stride = cmp.Or(cfg.Stride, most)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 4)
	if room < 2 || cfg.Stride < 1 || cfg.Stride > most || cfg.Concurrency < 1 {
		return nil, fmt.Errorf("%w: window %d and stride %d: want a window of at least %d tokens and a stride of 1 to %d",
			ErrText, cfg.Window, cfg.Stride, len(bos)+2, most)
	}
	ids, err := tok.TryEncode(ctx, []tokenizer.Part{{Text: text, Literal: true}}, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrText, err)
	}
	if len(ids) < 2 {
		return nil, fmt.Errorf("%w: %d tokens; there is nothing to predict", ErrText, len(ids))
	}
	var starts []int
	for at := 0; ; at += cfg.Stride {
		starts = append(starts, at)
		if at+room >= len(ids) {
			break
		}
	}
	var mu sync.Mutex
	p := &Perplexity{Windows: len(starts)}
	sums, done := make([]float64, len(starts)), int64(0)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cfg.Concurrency)
	for i, at := range starts {
		group.Go(func() error {
			part := ids[at:min(len(ids), at+room)]
			fresh := before // first token of the scored part
			if i > 0 {
				fresh = room - cfg.Stride
			}
			prompt := append(append(make([]int32, 0, cfg.Window), bos...), part...)
			lp, err := c.Logprobs(ctx, prompt) // of prompt[1:]
			if err != nil {
				return fmt.Errorf("window %d of %d: %w", i+1, len(starts), err)
			}
			scored, bytes := part[min(fresh, len(part)):], 0
			for _, id := range scored {
				bytes += len(tok.TokenBytes(id))
			}
			for _, x := range lp[len(lp)-len(scored):] {
				sums[i] -= x
			}
			mu.Lock()
			defer mu.Unlock()
			p.Tokens += len(scored)
			p.Bytes += bytes
			if done++; cfg.Progress != nil {
				cfg.Progress(done, int64(len(starts)))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	total := 0.0
	for _, s := range sums { // in order, for reproducible bits
		total += s
	}
	p.NLL = total / float64(p.Tokens)
	p.Perplexity = math.Exp(p.NLL)
	p.BitsPerByte = total / math.Ln2 / float64(max(1, p.Bytes))
	return p, nil
}
