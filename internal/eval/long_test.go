package eval

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestLongSuite(t *testing.T) {
	tok := testTokenizer(t)
	s, questions, err := LongSuite(2, 300, 1)
	if err != nil || len(questions) != 6 || len(s.Tasks) != 3 {
		t.Fatal(len(questions), err)
	}
	_, again, err := LongSuite(2, 300, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range questions {
		answer := q.Ref.Answers[0]
		words := strings.Fields(answer)
		if q.Prompt != again[i].Prompt || q.Score(answer) != 1 ||
			math.Abs(q.Score(strings.Join(words[:len(words)/2], " "))-0.5) > 0.02 || q.Task.MaxTokens != 302 {
			t.Errorf("%s: %q", q.Task.Name, q.Prompt)
		}
		switch q.Task.Name {
		case "copy":
			if q.Prompt != "c"+answer+"\n=" || len(tok.EncodeLiteral(answer)) != 300 {
				t.Errorf("%q", q.Prompt)
			}
		case "sort":
			if !slices.IsSorted(words) || len(words) != 100 {
				t.Errorf("%q", answer)
			}
		case "sums":
			head, _, _ := strings.Cut(q.Prompt, "\n")
			if b := strings.Fields(head)[2]; len(words) != 100 || words[0][1:] != "0"+strings.Fields(head)[1][1:] || b[0] != 'b' {
				t.Errorf("%q: %q", q.Prompt, answer)
			}
		}
	}
	if _, _, err := LongSuite(1, LongTokens+1, 1); !errors.Is(err, ErrSuiteConfig) {
		t.Error(err)
	}
}
