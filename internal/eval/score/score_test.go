package score

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"
)

// TestGoldens compares with the packages that LongBench uses (train/goldens_scores.py).
func TestGoldens(t *testing.T) {
	raw, err := os.ReadFile("testdata/goldens.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Metric, Text     string
		Answers, Classes []string
		Want             float64
	}
	if err := json.Unmarshal(raw, &cases); err != nil || len(cases) < 200 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		m, ok := Lookup(c.Metric)
		if !ok {
			t.Fatal(c.Metric)
		}
		if got := m.Score(c.Text, Reference{Answers: c.Answers, Classes: c.Classes}); math.Abs(got-c.Want) > 1e-9 {
			t.Errorf("%s of %q against %q: %v, want %v", c.Metric, c.Text, c.Answers, got, c.Want)
		}
	}
}

func TestByHand(t *testing.T) {
	for _, c := range []struct {
		metric, text string
		answers      []string
		want         float64
	}{
		{"exact", "The Eiffel Tower!", []string{"x", "eiffel tower"}, 1},
		{"exact", "Eiffel Towers", []string{"eiffel tower"}, 0},
		{"contains", "7 and EIGHT", []string{"eight", "nine"}, 0.5},
		{"contains", "x", nil, 0},
		{"any", "7 and EIGHT", []string{"eight", "nine"}, 1},
		{"any", "seven", []string{"eight", "nine"}, 0},
		{"until", " 417 032 999 1", []string{" 417 032 111 1"}, 0.5},
		{"until", "417", []string{" 417 032 111 222"}, 0.25},
		{"until", "", []string{"1"}, 0},
		{"f1", "the quick brown fox", []string{"a quick fox"}, 0.8},
		{"f1", "fox fox", []string{"fox"}, 2. / 3},
		{"f1", "", []string{"fox"}, 0},
		{"f1_zh", "狐狸，跑了。", []string{"狐狸跑"}, 2 * (3. / 4) * 1 / (3./4 + 1)},
		{"rouge_l_zh", "狐狸跑了", []string{"狐狸跑"}, 2 * (3. / 4) * 1 / (3./4 + 1 + 1e-8)},
		{"edit", "kitten", []string{"sitting"}, 0.62}, // 8 of 13 characters stay
		{"class", "Place", []string{"Place"}, 0},      // without classes nothing is named
		{"count", "5 or 6, maybe 5", []string{"5"}, 2. / 3},
		{"count", "none", []string{"5"}, 0},
		{"paragraph", "Paragraph 12", []string{"Paragraph 12"}, 1},
		{"paragraph", "12 or 13", []string{"段落12"}, 0.5},
		{"paragraph", "12", []string{"12"}, 0},
		{"letter", "The correct answer is (B).", []string{"B"}, 1},
		{"letter", "**The correct answer is C**", []string{"C"}, 1},
		{"letter", "The correct answer is (E)", []string{"E"}, 0},
		{"letter", "B", []string{"B"}, 0},
		{"option", "B. a fox", []string{"a fox", "B"}, 1},
		{"option", "I think the answer is: C", []string{"an owl", "C"}, 1},
		{"option", "I think the answer is: x C", []string{"an owl", "C"}, 0},
		{"option", "perhaps D", []string{"a crow", "D"}, 1},
		{"option", "", []string{"", "D"}, 0},
		{"option", "The answer is: a crow, I think", []string{"a crow", "D"}, 1}, // the text of the option
		{"option", "I say the answer is an owl.", []string{"a crow", "D"}, 0},
		{"option", "The answer is:D", []string{"a crow", "D"}, 0}, // the original skips a character
		{"option", "AB or D", []string{"a crow", "D"}, 0},
		{"option", "not AB but D", []string{"a crow", "D"}, 0}, // AB is in "ABCD"
		{"debug", "B: step_fox", []string{"step_fox", "B"}, 1},
		{"debug", "The answer is: step_fox", []string{"step_fox", "B"}, 1},
		{"debug", "The answer is: Option B", []string{"step_fox", "B"}, 1},
		{"debug", "The answer is: C", []string{"step_fox", "B"}, 0},
		{"debug", "perhaps B", []string{"step_fox", "B"}, 0},
		{"debug", "The answer is:B", []string{"step_fox", "B"}, 0},
		{"rouge_lsum", "The fox, the FOX!\nran.", []string{"a fox\nran; the fox"}, 0.8},
		{"rouge_lsum", "the the the the", []string{"the fox"}, 2 * (1. / 4) * (1. / 2) / (1./4 + 1./2)},
		{"rouge_lsum", "The cat.It sat", []string{"it sat. the cat"}, 0.5},
		{"rouge_lsum", "...", []string{"it sat"}, 0},
		{"word", `{"red-fox": "1234567"}`, []string{"1234567"}, 1},
		{"word", "12345678", []string{"1234567"}, 0},
		{"name", "It was Ann.", []string{"ANN"}, 1},
		{"name", "It was Anne.", []string{"ANN"}, 0},
		{"first_integer", " is 71432. 5", []string{"71432"}, 1},
		{"first_integer", " is 5, 71432", []string{"71432"}, 0},
		{"first_number", "about 2.50!", []string{"2.5"}, 1},
		{"first_number", "3", []string{"3.0"}, 1},
		{"first_number", "4", []string{"3"}, 0},
		{"integers", "[5, 7, 8]", []string{"5", "7", "9", "1"}, 0.5},
		{"integers", "", []string{"5"}, 0},
		{"last_integer", "It returns `-7`.", []string{"-7"}, 1},
		{"last_integer", "It returns 0x7", []string{"7"}, 0},
		{"gsm8k", "So 3 * 400 = $1,200.00.", []string{"... = 1200\n#### 1,200"}, 1},
		{"gsm8k", "The answer is -5", []string{"#### 5"}, 0},
		{"gsm8k", "no number", []string{"#### 5"}, 0},
		{"gsm8k", strings.Repeat("9", 5000), []string{"#### 5"}, 0},
		{"math", `So \boxed{\dfrac12}.`, []string{`\frac{1}{2}`}, 1},
		{"math", `\boxed{1} no, \boxed{x = 0.5 }`, []string{"1/2"}, 1},
		{"math", `\boxed{\left(3, \sqrt2\right)}`, []string{`(3,\sqrt{2})`}, 1},
		{"math", `\boxed{90^\circ}`, []string{"90"}, 1},
		{"math", `\boxed{12\text{ cm}}`, []string{"12"}, 1},
		{"math", `\boxed{\$1.50}`, []string{"1.50"}, 1},
		{"math", `\boxed{50\%}`, []string{`so it is \boxed{50}`}, 1},
		{"math", `\fbox{.7}`, []string{"0.7"}, 1},
		{"math", `\boxed 7$ is it`, []string{"7"}, 1},
		{"math", `\boxed{\frac{1}{2}`, []string{`\frac{1}{2}`}, 0}, // it does not end
		{"math", "1/2", []string{"1/2"}, 0},
		{"math", `\boxed{\\left(1,2\\right)}`, []string{"(1,2)"}, 1}, // doubled backslashes
		{"math", `\boxed{90^{\\circ}}`, []string{"90"}, 1},
		{"math", `\boxed{\frac{1}{3}}`, []string{`\frac{1}{2}`}, 0},
	} {
		m, ok := Lookup(c.metric)
		if !ok {
			t.Fatal(c.metric)
		}
		if got := m.Score(c.text, Reference{Answers: c.answers}); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s of %q against %q: %v, want %v", c.metric, c.text, c.answers, got, c.want)
		}
	}
	if _, ok := Lookup("unknown"); ok || len(Names()) != len(metrics) || strings.Count(Help(), "\n") != len(metrics) {
		t.Error("names and help do not list the metrics")
	}
}

// TestPassAtK compares the product with counting subsets.
func TestPassAtK(t *testing.T) {
	choose := func(n, k int) float64 {
		c := 1.0
		for i := range k {
			c = c * float64(n-i) / float64(i+1)
		}
		return c
	}
	for n := 1; n <= 8; n++ {
		for c := range n + 1 {
			for k := 1; k <= n; k++ {
				want := 1 - choose(n-c, k)/choose(n, k)
				if got := PassAtK(n, c, k); math.Abs(got-want) > 1e-12 {
					t.Errorf("pass@%d of %d right among %d: %v, want %v", k, c, n, got, want)
				}
			}
		}
	}
}

// FuzzMetrics: no text makes a metric fail, and every score is a share.
func FuzzMetrics(f *testing.F) {
	for _, s := range []string{"", "\\boxed{", "\\frac", "Paragraph 1", "A", "answer is:", "....", "-.5e999", "The correct answer is ("} {
		f.Add(s, "\\boxed{\\sqrt}")
		f.Add("Paragraph 7. The answer is: B", s)
	}
	f.Fuzz(func(t *testing.T, text, want string) {
		for _, m := range metrics {
			if s := m.Score(text, Reference{Answers: []string{want, "x"}, Classes: []string{want, "x", ""}}); !(s >= 0 && s <= 1) {
				t.Errorf("%s of %q against %q: %v", m.Name, text, want, s)
			}
		}
	})
}
