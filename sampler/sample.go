package sampler

import (
	"errors"
	"math"
	"math/bits"
)

// ErrNoCandidate: every logit is NaN or -Inf, so there is nothing to choose from.
var ErrNoCandidate = errors.New("sampler: no token can be chosen: every logit is NaN or -Inf (a bad checkpoint, or min_tokens and logit_bias ban the whole vocabulary)")

// TokenLogprob is a token with its log-probability.
type TokenLogprob struct {
	Token   int32
	Logprob float32
}

// Result of one position. Logprob and Top are set when Params.Logprobs >= 0 and
// come from the raw logits: the model's own distribution, before bias,
// penalties and temperature (vLLM's raw_logprobs). Top is sorted by (logprob
// descending, token ascending), leaves out impossible tokens, and belongs to the caller.
type Result struct {
	Token   int32
	Logprob float32
	Top     []TokenLogprob
	Err     error // ErrNoCandidate; Token is then 0 and must not be used
}

// Scratch is memory that calls of Sample reuse. The zero value is ready; one
// goroutine at a time.
type Scratch struct {
	keys  []uint64
	items []weighted
	undo  []edit
}

// Sample chooses the token of one position; logits: [vocabulary].
//
// Order: logit bias; repetition penalty; frequency and presence penalty;
// MinTokens; temperature; min_p; top_k; top_p (over what the two before left,
// as vLLM does); then the inverse of the cumulative distribution over tokens
// sorted by (probability descending, token ascending). A prefix of that order
// survives each cut, so at least one token always does.
//
// h may be nil when !p.NeedsHistory(). s may be nil. Logits are changed in
// place during the call and restored before it returns.
// Without Top, Sample does not allocate once s has grown.
func Sample(logits []float32, p *Params, position int, h *History, s *Scratch) Result {
	if s == nil {
		s = new(Scratch)
	}
	s.undo = s.undo[:0]
	if p.edits() {
		s.adjust(logits, p, h)
	}
	token := s.choose(logits, p, position)
	s.restore(logits)
	if token < 0 {
		return Result{Err: ErrNoCandidate}
	}
	if p.Logprobs < 0 {
		return Result{Token: token}
	}
	return Logprobs(logits, token, p.Logprobs, s)
}

// choose returns -1 if there is no candidate.
func (s *Scratch) choose(logits []float32, p *Params, position int) int32 {
	best := argMax(logits)
	if best < 0 || p.argmax() {
		return best
	}
	items, total := s.weigh(logits, p, logits[best])
	if p.TopP < 1 {
		// The smallest set that reaches top_p: passing need-1 is reaching need.
		need := max(uint64(math.Ceil(float64(p.TopP)*float64(total))), 1)
		items = items[:prefix(items, min(need, total)-1)]
		total = 0
		for _, it := range items {
			total += it.weight
		}
	}
	target, _ := bits.Mul64(draw(p.Seed, position), total) // uniform in [0, total)
	return keyToken(items[prefix(items, target)-1].key)
}

// weigh lists the candidates that temperature, min_p and top_k leave, in no
// order, with exp((logit-max)/temperature) in fixed point, and the sum of these.
// The best candidate weighs 2^44 (less if the vocabulary is beyond half a
// million, so that sums fit 64 bits); what weighs less than 1 can never be drawn.
func (s *Scratch) weigh(logits []float32, p *Params, top float32) (items []weighted, total uint64) {
	w := weigher{
		top:   top,
		temp:  float64(p.Temperature),
		minP:  float64(p.MinP),
		scale: float64(uint64(1) << min(44, 63-bits.Len(uint(len(logits))))),
	}
	items = s.items[:0]
	if k := p.TopK; k > 0 && k < len(logits) {
		s.keys = topKeys(s.keys, logits, k)
		for _, key := range s.keys {
			if x := w.weight(keyLogit(key)); x > 0 {
				items = append(items, weighted{key, x})
				total += x
			}
		}
	} else {
		for i, l := range logits {
			if x := w.weight(l); x > 0 {
				items = append(items, weighted{makeKey(l, i), x})
				total += x
			}
		}
	}
	s.items = items
	return items, total
}

type weigher struct {
	top               float32
	temp, minP, scale float64
}

func (w *weigher) weight(l float32) uint64 {
	if l == w.top { // also where both are +Inf
		return uint64(w.scale)
	}
	z := (float64(l) - float64(w.top)) / w.temp
	if !(z > -31) { // e^-31 < 2^-44; NaN ends here too
		return 0
	}
	e := exp(z)
	if e < w.minP {
		return 0
	}
	return uint64(float64(e * w.scale))
}

// argMax returns the lowest index of the greatest candidate, -1 without one.
func argMax(logits []float32) int32 {
	best, at := float32(math.Inf(-1)), int32(-1)
	for i, l := range logits {
		if l > best {
			best, at = l, int32(i)
		}
	}
	return at
}
