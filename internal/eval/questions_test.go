package eval

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

func TestReadQuestions(t *testing.T) {
	got, err := ReadQuestions(strings.NewReader(`{"index":0,"input":"Find it. Answer:","outputs":["7","8"],"length":512,"answer_prefix":" It is"}

{"input":"Who?","context":"Ann did.","answers":["Ann"],"dataset":"qa","all_classes":null}
{"input":"Who?","answer":"Bob"}
`))
	want := []Question{
		{Input: "Find it. Answer:", Lead: " It is", Answers: []string{"7", "8"}},
		{Input: "Who?", Context: "Ann did.", Answers: []string{"Ann"}, Set: "qa"},
		{Input: "Who?", Answers: []string{"Bob"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		"":                                  "empty",
		"{}":                                "neither",
		`{"input":"x"}`:                     "no reference",
		"{\"input\":\"x\",\"outputs\":[1]}": "line 1",
		"[]":                                "not a JSON object",
	} {
		if _, err := ReadQuestions(strings.NewReader(text)); !errors.Is(err, ErrQuestions) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzReadQuestions(f *testing.F) {
	f.Add([]byte(`{"input":"a","outputs":"b"}`))
	f.Add([]byte(`{"context":"a","answers":["b",""],"answer_prefix":" c"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, err := ReadQuestions(strings.NewReader(string(b)))
		if (err == nil) != (len(q) > 0) {
			t.Errorf("%d questions, %v", len(q), err)
		}
		for _, x := range q {
			if len(x.Answers) == 0 || x.Input+x.Context == "" {
				t.Errorf("%+v", x)
			}
		}
	})
}

func TestAsk(t *testing.T) {
	tok := testTokenizer(t)
	chat, err := tokenizer.LoadChatTemplate(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("word ", 400)
	questions := []Question{
		{Context: "C<|end|>", Input: "I", Answers: []string{"yes"}, Set: "b"},
		{Input: long, Lead: " It is", Answers: []string{"no"}, Set: "a"},
	}
	var longest int
	f := &fakeServer{complete: func(b map[string]any) any {
		prompt := b["prompt"].([]any)
		longest = max(longest, len(prompt))
		return map[string]any{"choices": []any{map[string]any{"text": "Yes."}}}
	}}
	c := connect(t, f.start(t))
	for _, k := range []QuestionConfig{{}, {Chat: chat}} {
		k.Metric, k.MaxPrompt, k.Concurrency, longest = "exact", 50, 1, 0
		answers, err := SendQuestions(t.Context(), c, tok, questions, k)
		if err != nil {
			t.Fatal(err)
		}
		if longest > 56 || longest < 45 { // in a chat the lead is added
			t.Errorf("longest prompt %d, want about 50", longest)
		}
		rows := SummarizeAnswers(answers)
		if want := []QuestionScore{{"default", "a", 1, 0}, {"default", "b", 1, 100}}; !slices.Equal(rows, want) {
			t.Errorf("%+v", rows)
		}
		first := f.bodies[1]["prompt"].([]any)
		f.bodies = f.bodies[:1]
		specials := 0
		for _, id := range first {
			if tok.IsSpecial(int32(id.(float64))) {
				specials++
			}
		}
		if want := map[bool]int{true: 1, false: 4}[k.Chat == nil]; specials != want {
			t.Errorf("%d special tokens in the prompt, want %d: a question must not steer the model", specials, want)
		}
	}
	if _, err := SendQuestions(t.Context(), c, tok, questions, QuestionConfig{Metric: "x"}); !errors.Is(err, ErrQuestions) ||
		!strings.Contains(err.Error(), "f1") {
		t.Error(err)
	}
	var table strings.Builder
	WriteAnswerTable(&table, "f1", []QuestionScore{{"full", "", 3, 33.3333}})
	if want := "policy  set  questions    f1\nfull      -          3  33.3\n"; table.String() != want {
		t.Error(table.String())
	}
}
