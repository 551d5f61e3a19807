package eval

import (
	"github.com/shoal-llm/shoal/internal/eval/score"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Score is the correctness of an answer.
type Score struct {
	Exact  bool    // every scored token (in any order for lists without an order)
	Tokens float64 // fraction of the scored tokens at their position
	Recall float64 // RULER's measure: fraction of the wanted values found anywhere
}

// Score compares a continuation with the answer like train/evalpol.py: token by token, in
// [From,To). The continuation is text, which any server returns, and is tokenized like the answer.
func (s *Sample) Score(tok *tokenizer.Tokenizer, text string) Score {
	return s.scoreTokens(tok.EncodeLiteral(text), text)
}

func (s *Sample) scoreTokens(got []int32, text string) Score {
	hits := 0
	for i := s.From; i < s.To && i < len(got); i++ {
		if got[i] == s.Answer[i] {
			hits++
		}
	}
	r := Score{Exact: hits == s.To-s.From, Recall: score.Contains(text, s.Wanted)}
	if s.To > s.From {
		r.Tokens = float64(hits) / float64(s.To-s.From)
	}
	if s.AnyOf && r.Recall > 0 {
		r.Recall = 1
	}
	if s.AnyOrder || s.AnyOf {
		r.Exact = r.Recall == 1
	}
	return r
}
