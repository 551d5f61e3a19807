package sampler

import "math"

// edit records the original value of a logit, so that raw logprobs can be computed after the choice
// without a copy of the vocabulary.
type edit struct {
	token int32
	logit float32
}

// adjust applies bad words, bias, penalties and MinTokens in place.
func (s *Scratch) adjust(logits []float32, p *Params, h *History) {
	for _, word := range p.BadWords {
		if h.endsWith(word[:len(word)-1]) {
			if l, ok := s.edit(logits, word[len(word)-1]); ok {
				*l = float32(math.Inf(-1))
			}
		}
	}
	for _, b := range p.LogitBias {
		if l, ok := s.edit(logits, b.Token); ok {
			*l += b.Value
		}
	}
	if h != nil && p.penalises() {
		for _, t := range h.seen {
			if l, ok := s.edit(logits, t.token); ok {
				*l = penalise(*l, p, t.outputs)
			}
		}
	}
	if h.Outputs() < p.MinTokens {
		for _, t := range p.Stop {
			if l, ok := s.edit(logits, t); ok {
				*l = float32(math.Inf(-1))
			}
		}
	}
}

// penalise applies the repetition penalty of CTRL (Keskar et al., 2019, section 4.1) in Hugging
// Face's form, then OpenAI's frequency and presence penalties. The explicit conversions prevent
// fused multiply-add.
func penalise(l float32, p *Params, outputs int32) float32 {
	if p.repeats() {
		if l > 0 {
			l = float32(l / p.RepetitionPenalty)
		} else {
			l = float32(l * p.RepetitionPenalty)
		}
	}
	if outputs > 0 {
		l = float32(l - float32(p.FrequencyPenalty*float32(outputs)))
		l = float32(l - p.PresencePenalty)
	}
	return l
}

// edit returns a pointer to a token's logit; false for tokens outside the vocabulary.
func (s *Scratch) edit(logits []float32, token int32) (*float32, bool) {
	if token < 0 || int(token) >= len(logits) {
		return nil, false
	}
	s.undo = append(s.undo, edit{token, logits[token]})
	return &logits[token], true
}

func (s *Scratch) restore(logits []float32) {
	for i := len(s.undo) - 1; i >= 0; i-- {
		logits[s.undo[i].token] = s.undo[i].logit
	}
}
