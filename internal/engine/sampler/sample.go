package sampler

import (
	"errors"
	"math"
	"math/bits"
)

var (
	// ErrNoCandidate: every logit of the model is NaN or -Inf, so the checkpoint or a kernel is
	// broken.
	ErrNoCandidate = errors.New("sampler: no token can be chosen: every logit of the model is NaN or -Inf; the checkpoint may be damaged")
	// ErrBanned: the settings of the request ban every candidate of the model.
	ErrBanned = errors.New("sampler: no token is left to choose: allowed_token_ids, bad_words, min_tokens, logit_bias and the grammar of " +
		"this request ban every token at this place")
)

// TokenLogprob is a token with its log-probability.
type TokenLogprob struct {
	Token   int32
	Logprob float32
}

// Result is the result for one position. Logprob and Top are set when Params.Logprobs >= 0 and come
// from the raw logits: the model's own distribution, before bias, penalties and temperature (vLLM's
// raw_logprobs). Top is sorted by (logprob descending, token ascending), excludes impossible
// tokens, and belongs to the caller.
type Result struct {
	Token   int32
	Logprob float32
	Top     []TokenLogprob
	Err     error // ErrNoCandidate or ErrBanned; Token is then 0 and must not be used
}

// Scratch is memory that calls of Sample reuse. The zero value is ready. It is not safe for
// concurrent use.
type Scratch struct {
	keys  []uint64
	items []weighted
	bins  []uint8 // bin of each logit; empty if items holds all candidates
	sums  [unweighed + 1]uint64
	undo  []edit

	allowed []float32 // logits of the allowed tokens, -Inf for the others
}

// Sample chooses the token of one position; logits: [vocabulary].
//
// Order: allowed tokens; bad words; logit bias; repetition penalty; frequency and presence penalty;
// MinTokens; temperature; min_p; top_k; top_p (over the tokens that min_p and top_k left, as in vLLM).
// Then it inverts the cumulative distribution over tokens sorted by (probability descending, token
// ascending). Each cut keeps a prefix of that order, so at least one token remains.
//
// h may be nil without penalties, MinTokens and bad words. s may be nil. Logits are changed during
// the call and restored before it returns. Without Top, Sample does not allocate once s has grown.
func Sample(logits []float32, p *Params, position int, h *History, s *Scratch) Result {
	return SampleAmong(logits, p, position, h, nil, s)
}

// SampleAmong is Sample restricted to the tokens whose bits are set, 64 ids a word; nil: all. If
// only tokens of Stop are allowed, MinTokens is ignored. Logprobs are still those of the model's
// own distribution.
func SampleAmong(logits []float32, p *Params, position int, h *History, allowed []uint64, s *Scratch) Result {
	if s == nil {
		s = new(Scratch)
	}
	s.undo = s.undo[:0]
	from := logits
	if allowed != nil || p.Allowed != nil {
		from = s.among(logits, allowed, p.Allowed)
	}
	if p.edits() {
		s.adjust(from, p, h)
	}
	token := s.choose(from, p, position)
	s.restore(from)
	if token < 0 && allowed != nil && p.MinTokens > 0 {
		free := *p
		free.MinTokens = 0
		return SampleAmong(logits, &free, position, h, allowed, s)
	}
	if token < 0 {
		return Result{Err: unchosen(logits)}
	}
	if p.Logprobs < 0 {
		return Result{Token: token}
	}
	return Logprobs(logits, token, p.Logprobs, s)
}

// unchosen returns the reason why no token was chosen, given the model's logits.
func unchosen(logits []float32) error {
	if argMax(logits) < 0 {
		return ErrNoCandidate
	}
	return ErrBanned
}

// among copies the logits of the tokens that both sets allow. Either set may be nil: any token.
func (s *Scratch) among(logits []float32, allowed, also []uint64) []float32 {
	if allowed == nil {
		allowed, also = also, nil
	}
	never := float32(math.Inf(-1))
	if cap(s.allowed) < len(logits) {
		s.allowed = make([]float32, len(logits))
	}
	out := s.allowed[:len(logits)]
	for i := range out {
		out[i] = never
	}
	for w, word := range allowed {
		if also != nil && w >= len(also) {
			break
		} else if also != nil {
			word &= also[w]
		}
		for ; word != 0; word &= word - 1 {
			if i := w*64 + bits.TrailingZeros64(word); i < len(out) {
				out[i] = logits[i]
			}
		}
	}
	return out
}

// choose returns -1 if there is no candidate.
func (s *Scratch) choose(logits []float32, p *Params, position int) int32 {
	best := argMax(logits)
	if best < 0 || p.argmax() {
		return best
	}
	w := weigher{
		top:   logits[best],
		temp:  float64(p.Temperature),
		minP:  float64(p.MinP),
		scale: float64(uint64(1) << min(44, 63-bits.Len(uint(len(logits))))),
	}
	var total, above uint64
	if k := p.TopK; k > 0 && k < len(logits) {
		total = s.best(logits, k, &w)
	} else {
		total = s.spread(logits, &w)
	}
	if p.TopP < 1 {
		// The smallest set that reaches top_p: exceeding need-1 means reaching need.
		need := max(uint64(math.Ceil(float64(p.TopP)*float64(total))), 1)
		if len(s.bins) > 0 {
			last, _ := s.passes(min(need, total) - 1)
			s.gather(logits, &w, 0, last)
		}
		s.items = s.items[:prefix(s.items, min(need, total)-1)]
		total = 0
		for _, it := range s.items {
			total += it.weight
		}
	}
	target, _ := bits.Mul64(draw(p.Seed, position), total) // uniform in [0, total)
	if !(p.TopP < 1) && len(s.bins) > 0 {
		bin, better := s.passes(target)
		s.gather(logits, &w, bin, bin)
		above = better
	}
	return keyToken(s.items[prefix(s.items, target-above)-1].key)
}

// best puts the k best candidates into items, unordered, and returns the sum of their weights.
func (s *Scratch) best(logits []float32, k int, w *weigher) (total uint64) {
	s.keys, s.items, s.bins = topKeys(s.keys, logits, k), s.items[:0], s.bins[:0]
	for _, key := range s.keys {
		if x, _ := w.weight(keyLogit(key)); x > 0 {
			s.items = append(s.items, weighted{key, x})
			total += x
		}
	}
	return total
}

// spread puts all candidates into bins by their logits, and returns the sum of their weights. The
// sums of the bins determine the bin of a draw, so only few candidates are ever listed or ordered.
func (s *Scratch) spread(logits []float32, w *weigher) (total uint64) {
	if cap(s.bins) < len(logits) {
		s.bins = make([]uint8, len(logits))
	}
	s.bins, s.sums = s.bins[:len(logits)], [unweighed + 1]uint64{}
	for i, l := range logits {
		x, bin := w.weight(l)
		s.bins[i] = bin
		s.sums[bin] += x
		total += x
	}
	return total
}

// passes returns the bin at which the cumulative weight exceeds target, and the sum of the better
// bins.
func (s *Scratch) passes(target uint64) (bin int, above uint64) {
	for above+s.sums[bin] <= target {
		above += s.sums[bin]
		bin++
	}
	return bin, above
}

// gather puts the candidates of some bins into items.
func (s *Scratch) gather(logits []float32, w *weigher, first, last int) {
	s.items = s.items[:0]
	for i, bin := range s.bins {
		if int(bin) < first || int(bin) > last {
			continue
		}
		if x, _ := w.weight(logits[i]); x > 0 {
			s.items = append(s.items, weighted{makeKey(logits[i], i), x})
		}
	}
}

// weigher computes exp((logit-max)/temperature) in fixed point for the candidates that pass
// temperature and min_p. The best candidate weighs 2^44, or less if the vocabulary exceeds half a
// million, so that sums fit 64 bits. A candidate that weighs less than 1 can never be drawn.
type weigher struct {
	top               float32
	temp, minP, scale float64
}

const (
	lightest    = -31 // e^-31 < 2^-44
	binsPerUnit = 8   // of (logit-max)/temperature
	unweighed   = 255 // the bin of candidates without weight
)

// weight returns the weight and the bin. A greater logit has a lower bin.
func (w *weigher) weight(l float32) (x uint64, bin uint8) {
	if l == w.top { // also where both are +Inf
		return uint64(w.scale), 0
	}
	z := (float64(l) - float64(w.top)) / w.temp
	if !(z > lightest) { // NaN ends here too
		return 0, unweighed
	}
	e := exp(z)
	if e < w.minP {
		return 0, unweighed
	}
	return uint64(float64(e * w.scale)), uint8(z * -binsPerUnit)
}

// argMax returns the lowest index of the greatest candidate, or -1 if there is none.
func argMax(logits []float32) int32 {
	best, at := float32(math.Inf(-1)), int32(-1)
	for i, l := range logits {
		if l > best {
			best, at = l, int32(i)
		}
	}
	return at
}
