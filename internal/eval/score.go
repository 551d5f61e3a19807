package eval

import (
	"slices"
	"strings"
	"unicode"

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
	r := Score{Exact: hits == s.To-s.From, Recall: recall(text, s.Wanted)}
	if s.To > s.From {
		r.Tokens = float64(hits) / float64(s.To-s.From)
	}
	if s.AnyOrder {
		r.Exact = r.Recall == 1
	}
	return r
}

// recall returns the fraction of wanted strings in text, ignoring case.
func recall(text string, wanted []string) float64 {
	if len(wanted) == 0 {
		return 0
	}
	found, text := 0, strings.ToLower(text)
	for _, w := range wanted {
		if strings.Contains(text, strings.ToLower(w)) {
			found++
		}
	}
	return float64(found) / float64(len(wanted))
}

// Metrics lists the ways to compare a textual answer with references.
func Metrics() []string { return []string{"exact", "contains", "f1"} }

// Compare scores text against references, 0 to 1.
//
//	exact     the normalized text equals a reference
//	contains  the fraction of references in the text (RULER's string_match_all)
//	f1        the best F1 of words (LongBench's qa_f1_score)
//
// Normalized: lower case, no punctuation, no articles, single spaces.
func Compare(metric, text string, references []string) float64 {
	switch metric {
	case "contains":
		return recall(text, references)
	case "exact":
		for _, r := range references {
			if slices.Equal(normalized(text), normalized(r)) {
				return 1
			}
		}
	case "f1":
		best := 0.0
		for _, r := range references {
			best = max(best, f1(normalized(text), normalized(r)))
		}
		return best
	}
	return 0
}

func normalized(s string) []string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPunct(r) || unicode.IsSymbol(r) && r < unicode.MaxASCII {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
	return slices.DeleteFunc(strings.Fields(s), func(w string) bool { return w == "a" || w == "an" || w == "the" })
}

func f1(got, want []string) float64 {
	left := map[string]int{}
	for _, w := range want {
		left[w]++
	}
	same := 0
	for _, w := range got {
		if left[w] > 0 {
			left[w]--
			same++
		}
	}
	if same == 0 {
		return 0
	}
	precision, recall := float64(same)/float64(len(got)), float64(same)/float64(len(want))
	return 2 * precision * recall / (precision + recall)
}
