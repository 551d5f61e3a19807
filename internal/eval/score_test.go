package eval

import (
	"math"
	"testing"
)

func TestScoreByHand(t *testing.T) {
	tok := testTokenizer(t)
	text := func(answer string, wanted ...string) *Sample {
		s := &Sample{Answer: tok.EncodeLiteral(answer + "\n"), Wanted: wanted}
		s.To = len(s.Answer) - 1
		return s
	}
	number := text(" 7012345.", "7012345") // " " "701" "234" "5" ".\n"
	if len(number.Answer) != 5 {
		t.Fatalf("tokens of the answer: %v", number.Answer)
	}
	chat := &Sample{Answer: tok.EncodeLiteral("The pass key is"), Wanted: []string{"12345"}}
	chat.From = len(chat.Answer)
	chat.Answer = append(chat.Answer, tok.EncodeLiteral(" 12345.")...)
	chat.To = len(chat.Answer)
	chat.Answer = append(chat.Answer, 4)
	words := &Sample{Answer: tok.EncodeLiteral(" 1. red 2. fox"), To: 3, Wanted: []string{"red", "fox"}, AnyOrder: true}
	for _, c := range []struct {
		name   string
		s      *Sample
		got    string
		exact  bool
		tokens float64
		recall float64
	}{
		{"right", number, " 7012345.\n", true, 1, 1},
		{"right, then more", number, " 7012345.\nQuestion:", true, 1, 1},
		{"the last token does not count", number, " 7012345 and", true, 1, 1},
		{"a digit too many", number, " 70123456.\n", false, 0.75, 1},
		{"a wrong group", number, " 7012995.\n", false, 0.75, 0},
		{"cut short", number, " 701", false, 0.5, 0},
		{"nothing", number, "", false, 0, 0},
		{"at another place", number, " it is 7012345.", false, 0, 1},
		{"chat", chat, "The pass key is 12345.", true, 1, 1},
		{"the full stop counts in a chat", chat, "The pass key is 12345", false, 0.75, 1},
		{"any order", words, " 1. fox 2. red", true, 1, 1},
		{"half of them", words, " fox", false, 0, 0.5},
	} {
		r := c.s.Score(tok, c.got)
		if r.Exact != c.exact || r.Recall != c.recall || math.Abs(r.Tokens-c.tokens) > 1e-9 {
			t.Errorf("%s: %q scores %+v; want %v, %.2f, %.2f", c.name, c.got, r, c.exact, c.tokens, c.recall)
		}
	}
}

// TestLeadDoesNotCount: a chat model may word the lead differently if the answer is at its
// position.
func TestLeadDoesNotCount(t *testing.T) {
	s := &Sample{Answer: []int32{10, 11, 12, 13, 4}, From: 2, To: 4}
	for _, c := range []struct {
		got  []int32
		want Score
	}{
		{[]int32{10, 11, 12, 13, 4}, Score{Exact: true, Tokens: 1}},
		{[]int32{90, 91, 12, 13}, Score{Exact: true, Tokens: 1}},
		{[]int32{10, 12, 13, 4}, Score{}},
		{[]int32{10, 11, 12}, Score{Tokens: 0.5}},
	} {
		if got := s.scoreTokens(c.got, ""); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.got, got, c.want)
		}
	}
}
