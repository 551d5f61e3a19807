// Package sampler turns the logits of one position into one token.
//
// Sample is a pure function of its arguments. Random numbers come from a counter (seed, position).
// Probabilities are integers, so their sums do not depend on the order of addition. exp and log are
// this package's own. So the same request yields the same tokens on any machine, in any batch, and
// after the loss of a node.
package sampler

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/text/grammar"
)

// Bias is added to the logit of one token before all other changes.
type Bias struct {
	Token int32
	Value float32 // [-100, 100], as OpenAI's logit_bias
}

// Params are the sampling parameters of a request. Start from Default: in the zero value
// Temperature is 0, and TopP 0 keeps only the most likely token.
type Params struct {
	Temperature       float32 // 0: greedy, lowest token id on a tie
	TopP              float32 // [0, 1]; 1: off; 0: the most likely token only
	MinP              float32 // [0, 1]; 0: off; relative to the most likely token
	RepetitionPenalty float32 // 0 or 1: off; over prompt and output (Hugging Face)
	PresencePenalty   float32 // [-2, 2]; once per token in the output (OpenAI)
	FrequencyPenalty  float32 // [-2, 2]; per occurrence in the output (OpenAI)
	TopK              int     // 0 or -1: off
	Seed              uint64
	LogitBias         []Bias    // sorted by token, no duplicates
	Allowed           []uint64  // one bit per token that may be drawn, 64 ids a word; nil: any
	BadWords          [][]int32 // the last token of each is banned while the output ends with the others (vLLM)
	Logprobs          int       // -1: none; 0: of the chosen token; k: also the k most likely
	MinTokens         int       // the number of output tokens before which no token of Stop may be chosen
	Stop              []int32   // ids banned until MinTokens

	// Grammar constrains the output; nil: anything. The caller of Sample keeps the grammar's state
	// and passes the allowed tokens.
	Grammar *grammar.Spec

	// Trace holds output tokens that replace the sampled ones, in order (vLLM's trace replay). A
	// model with random weights then decodes a real text, with the time of sampling included. Trace
	// cannot be combined with a grammar or log-probabilities.
	Trace []int32
}

// Default returns OpenAI's defaults: temperature 1, everything else off.
func Default() Params {
	return Params{Temperature: 1, TopP: 1, RepetitionPenalty: 1, Logprobs: -1}
}

// Greedy reports whether the argmax of the unmodified logits decides and no logprobs are requested. The
// cluster may then reduce (maximum, index) instead of gathering logits.
func (p *Params) Greedy() bool {
	return p.argmax() && p.Logprobs < 0 && !p.edits() && p.Allowed == nil && p.Grammar == nil
}

// argmax reports whether the most likely token is chosen for every random number.
func (p *Params) argmax() bool {
	return p.Temperature == 0 || p.TopK == 1 || p.TopP == 0
}

// edits reports whether logits are changed before sampling.
func (p *Params) edits() bool {
	return len(p.LogitBias) > 0 || len(p.BadWords) > 0 || p.penalises() || (p.MinTokens > 0 && len(p.Stop) > 0)
}

func (p *Params) penalises() bool {
	return p.repeats() || p.PresencePenalty != 0 || p.FrequencyPenalty != 0
}

// repeats reports whether the repetition penalty is on. 0 (unset) means off, so nothing is divided
// by zero.
func (p *Params) repeats() bool { return p.RepetitionPenalty != 1 && p.RepetitionPenalty > 0 }

// ParamError names the wrong request parameter, in OpenAI's spelling.
type ParamError struct{ Param, Message string }

func (e *ParamError) Error() string { return "sampler: " + e.Param + " " + e.Message }

// Validate checks every range, given the size of the model's vocabulary. Its errors are
// *ParamError.
func (p *Params) Validate(vocab int) error {
	ranges := []struct {
		name      string
		v, lo, hi float32
	}{
		{name: "temperature", v: p.Temperature, lo: 0, hi: math.MaxFloat32},
		{name: "top_p", v: p.TopP, lo: 0, hi: 1},
		{name: "min_p", v: p.MinP, lo: 0, hi: 1},
		{name: "repetition_penalty", v: p.RepetitionPenalty, lo: 0, hi: math.MaxFloat32},
		{name: "presence_penalty", v: p.PresencePenalty, lo: -2, hi: 2},
		{name: "frequency_penalty", v: p.FrequencyPenalty, lo: -2, hi: 2},
	}
	for _, r := range ranges {
		switch {
		case r.v >= r.lo && r.v <= r.hi:
		case r.hi == math.MaxFloat32:
			return &ParamError{r.name, fmt.Sprintf("must be finite and not negative, got %v", r.v)}
		default:
			return &ParamError{r.name, fmt.Sprintf("must be between %v and %v, got %v", r.lo, r.hi, r.v)}
		}
	}
	switch {
	case p.TopK < -1:
		return &ParamError{"top_k", fmt.Sprintf("must be -1 or 0 (off) or positive, got %d", p.TopK)}
	case p.Logprobs < -1:
		return &ParamError{"logprobs", fmt.Sprintf("must not be negative, got %d", p.Logprobs)}
	case p.Logprobs > vocab:
		return &ParamError{"logprobs", fmt.Sprintf("is %d, but the vocabulary has %d tokens", p.Logprobs, vocab)}
	case p.MinTokens < 0:
		return &ParamError{"min_tokens", fmt.Sprintf("must not be negative, got %d", p.MinTokens)}
	}
	if len(p.Trace) > 0 && (p.Grammar != nil || p.Logprobs >= 0) {
		return &ParamError{"trace", "cannot be replayed with a grammar or log-probabilities"}
	}
	for _, t := range p.Trace {
		if t < 0 || int(t) >= vocab {
			return &ParamError{"trace", fmt.Sprintf("has token %d, but the vocabulary has %d", t, vocab)}
		}
	}
	if p.Allowed != nil && !slices.ContainsFunc(p.Allowed, func(w uint64) bool { return w != 0 }) {
		return &ParamError{"allowed_token_ids", "must not be empty"}
	}
	if n := len(p.Allowed); n > 0 && (n-1)*64+bits.Len64(p.Allowed[n-1]) > vocab {
		return &ParamError{"allowed_token_ids",
			fmt.Sprintf("names token %d, but the vocabulary has %d", (n-1)*64+bits.Len64(p.Allowed[n-1])-1, vocab)}
	}
	for _, word := range p.BadWords {
		if len(word) == 0 {
			return &ParamError{"bad_words", "must not hold an empty word"}
		}
		for _, t := range word {
			if t < 0 || int(t) >= vocab {
				return &ParamError{"bad_words", fmt.Sprintf("has token %d, but the vocabulary has %d", t, vocab)}
			}
		}
	}
	for i, b := range p.LogitBias {
		switch {
		case b.Token < 0:
			return &ParamError{"logit_bias", fmt.Sprintf("has the negative token id %d", b.Token)}
		case i > 0 && b.Token == p.LogitBias[i-1].Token:
			return &ParamError{"logit_bias", fmt.Sprintf("names token %d twice", b.Token)}
		case i > 0 && b.Token < p.LogitBias[i-1].Token:
			return &ParamError{"logit_bias", fmt.Sprintf("must be sorted by token: %d follows %d", b.Token, p.LogitBias[i-1].Token)}
		case !(b.Value >= -100 && b.Value <= 100):
			return &ParamError{"logit_bias", fmt.Sprintf("of token %d must be between -100 and 100, got %v", b.Token, b.Value)}
		case int(b.Token) >= vocab:
			return &ParamError{"logit_bias", fmt.Sprintf("names token %d, but the vocabulary has %d", b.Token, vocab)}
		}
	}
	return nil
}
