package eval

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/eval/suite"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TestRunSuite: a run sends its questions to a server, continues from its file, and repeats changed
// questions.
func TestRunSuite(t *testing.T) {
	tok := testTokenizer(t)
	chat, err := tokenizer.LoadChatTemplate(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := suite.Find("longbench")
	if err != nil {
		t.Fatal(err)
	}
	questions, err := s.Load(s.StandIns(), []string{"narrativeqa", "trec"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{"narrativeqa": questions[0].Ref.Answers[0], "trec": "x"}
	f := &fakeServer{complete: func(b map[string]any) any {
		text := answers["trec"]
		if b["max_tokens"] == 128. {
			text = answers["narrativeqa"]
		}
		return map[string]any{"choices": []any{map[string]any{"text": text}}}
	}}
	c := connect(t, f.start(t))
	path := filepath.Join(t.TempDir(), "results.jsonl")
	policies, err := ParsePolicies([]string{"full truncated/25%"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := SuiteConfig{Policies: policies, Chat: chat, Concurrency: 1}
	run := func(wantAsked int) []SuiteRecord {
		t.Helper()
		f.bodies = nil
		store, err := OpenSuiteStore(path)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		records, err := RunSuite(t.Context(), c, tok, s.Name, questions, store, cfg)
		if err != nil || len(records) != 4*max(1, cfg.Samples) || len(f.bodies) != wantAsked {
			t.Fatalf("%d records, %d requests, want %d: %v", len(records), len(f.bodies), wantAsked, err)
		}
		return records
	}
	records := run(4)
	full, cut := len(f.bodies[0]["prompt"].([]any)), len(f.bodies[1]["prompt"].([]any))
	if cut != full/4 || records[1].Prompt != cut || records[0].Score != 1 || records[2].Score != 0 {
		t.Errorf("prompts of %d and %d tokens: %+v", full, cut, records)
	}
	special := func(b map[string]any) (n int) {
		for _, id := range b["prompt"].([]any) {
			if tok.IsSpecial(int32(id.(float64))) {
				n++
			}
		}
		return n
	}
	if special(f.bodies[0]) != 4 || special(f.bodies[2]) != 1 { // trec is never a chat
		t.Errorf("%d and %d special tokens", special(f.bodies[0]), special(f.bodies[2]))
	}
	text, err := os.ReadFile(path) // as an earlier version with another rule has left it
	if err == nil {
		err = os.WriteFile(path, bytes.ReplaceAll(text, []byte(`"score":1,`), []byte(`"score":0.5,`)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again := run(0); !slices.Equal([]float64{again[0].Score, again[2].Score}, []float64{1, 0}) {
		t.Errorf("stored answers have the scores of another rule: %+v", again)
	}
	questions[1].Prompt += " Now."
	run(2)
	cfg.Samples, cfg.Temperature, cfg.Seed = 2, 0.5, 7
	run(8)
	if a, b := f.bodies[0]["seed"], f.bodies[1]["seed"]; a != 7. || b != 8. || f.bodies[0]["temperature"] != 0.5 {
		t.Errorf("seeds %v and %v", a, b)
	}
	if err := os.WriteFile(path, []byte("{\"suite\":\"x\"}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSuiteStore(path); !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), "line 1") {
		t.Error(err)
	}
	for _, bad := range []SuiteConfig{{Samples: 2}, {Samples: -1}, {Temperature: -1}, {Concurrency: 5000}} {
		if err := bad.Validate(); !errors.Is(err, ErrSuiteConfig) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestSuiteSummaryByHand(t *testing.T) {
	s, err := suite.Find("longbench")
	if err != nil {
		t.Fatal(err)
	}
	r := func(policy, task, id string, score float64) SuiteRecord {
		return SuiteRecord{Policy: policy, Task: task, ID: id, Score: score}
	}
	records := []SuiteRecord{
		r("a", "qasper", "1", 1), r("a", "qasper", "1", 0), r("a", "qasper", "2", 0.5), r("a", "qasper", "2", 0.5),
		r("a", "narrativeqa", "1", 1), r("a", "narrativeqa", "1", 1),
		r("a", "lcc", "1", 0.25), r("b", "qasper", "1", 0),
	}
	policies := []Policy{{Name: "a"}, {Name: "b"}}
	show := func(g *Grid) string {
		var b strings.Builder
		g.WriteMarkdown(&b)
		return b.String()
	}
	// qasper: (0.5 + 0.5) / 2 = 50 %; with narrativeqa 75 %.
	if got, want := show(SummarizeSuite(s, records, policies, ByGroup, nil)),
		"| policy | Single-Doc QA | Code |\n| --- | --- | --- |\n| a | 75.0 | 25.0 |\n| b | 0.0 | - |\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// pass@1: question 1 has one right of two, question 2 none.
	if got, want := show(SummarizeSuite(s, records, policies, ByTask, []int{1, 2})),
		"| policy | narrativeqa pass@1 | narrativeqa pass@2 | qasper pass@1 | qasper pass@2 | lcc pass@1 | lcc pass@2 |\n"+
			"| --- | --- | --- | --- | --- | --- | --- |\n"+
			"| a | 100.0 | 100.0 | 25.0 | 50.0 | 0.0 | 0.0 |\n| b | - | - | 0.0 | 0.0 | - | - |\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	var table strings.Builder
	SummarizeSuite(s, records, policies, ByGroup, nil).WriteTable(&table)
	if want := "        Single-Doc\npolicy          QA  Code\na             75.0  25.0\nb              0.0     -\n"; table.String() != want {
		t.Errorf("got\n%swant\n%s", table.String(), want)
	}
}
