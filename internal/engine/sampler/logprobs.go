package sampler

import (
	"math"
	"slices"
)

// Logprobs scores a given token under the unmodified logits and lists the k most likely tokens. It
// serves chosen tokens and prompt tokens. Impossible tokens (-Inf or NaN logits) score -Inf and are
// not in Top. The logits are only read.
func Logprobs(logits []float32, token int32, k int, s *Scratch) Result {
	if s == nil {
		s = new(Scratch)
	}
	best := argMax(logits)
	if best < 0 {
		return Result{Err: ErrNoCandidate}
	}
	n := newNormaliser(logits, logits[best])
	r := Result{Token: token, Logprob: float32(math.Inf(-1))}
	if token >= 0 && int(token) < len(logits) {
		r.Logprob = n.logprob(logits[token])
	}
	if k <= 0 {
		return r
	}
	s.keys = topKeys(s.keys, logits, k)
	slices.Sort(s.keys)
	r.Top = make([]TokenLogprob, len(s.keys))
	for i, key := range s.keys {
		r.Top[len(r.Top)-1-i] = TokenLogprob{keyToken(key), n.logprob(keyLogit(key))}
	}
	return r
}

// normaliser computes log-softmax: logprob = (logit - top) - logSum.
type normaliser struct {
	top    float32
	logSum float64 // log sum exp(logit - top), summed in token order
}

func newNormaliser(logits []float32, top float32) normaliser {
	sum := 0.0
	for _, l := range logits {
		if l == top {
			sum++
		} else {
			sum += exp(float64(l) - float64(top)) // 0 for -Inf and NaN
		}
	}
	return normaliser{top, log(sum)}
}

func (n normaliser) logprob(l float32) float32 {
	switch {
	case l == n.top: // also +Inf
		return float32(0 - n.logSum)
	case !candidate(l):
		return float32(math.Inf(-1))
	}
	return float32((float64(l) - float64(n.top)) - n.logSum)
}
