package eval

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestAnswering(t *testing.T) {
	g := testGenerator(t, 1)
	s, err := g.Sample("qa", 1024, 0)
	if err != nil {
		t.Fatal(err)
	}
	prompt := testTokenizer(t).Decode(s.Prompt, true)
	if len(s.Prompt) != 1024 || strings.Count(prompt, "Document ") < 3 || !strings.Contains(prompt, s.Wanted[0]) {
		t.Errorf("%d tokens: %q", len(s.Prompt), prompt)
	}
	for text, want := range map[string]bool{" " + s.Wanted[0]: true, "It is " + s.Wanted[0] + ", I think": true, "7": false} {
		if got := s.Score(testTokenizer(t), text); got.Exact != want || (got.Recall == 1) != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	before := g.Corpus()
	g.SetParagraphs([]Paragraph{
		{Text: "Ann lives in Rome."},
		{Text: "Ben lives in Oslo.", Questions: []ParagraphQuestion{{"Where does Ben live?", []string{"Oslo", "in Oslo"}}}},
	})
	if s, err = g.Sample("qa", 600, 3); err != nil {
		t.Fatal(err)
	}
	prompt = testTokenizer(t).Decode(s.Prompt, true)
	for _, part := range []string{"Document 1:", "Document 2:", "Ann lives in Rome.", "Ben lives in Oslo.",
		"Question: Where does Ben live?\nAnswer:"} {
		if !strings.Contains(prompt, part) {
			t.Errorf("no %q in %q", part, prompt)
		}
	}
	if g.Corpus() == before {
		t.Error("answers to other paragraphs must not count for these")
	}
}

func TestReadParagraphs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	read := func(text string) ([]Paragraph, error) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return ReadParagraphs(path)
	}
	want := []Paragraph{{Text: "one", Questions: []ParagraphQuestion{{"q1", []string{"a", "b"}}, {"q2", []string{"c"}}}}, {Text: "two"}}
	for _, text := range []string{
		`{"version":"v2.0","data":[{"title":"t","paragraphs":[{"context":"one","qas":[{"question":"q1","answers":[{"text":"a"},{"text":"b"}]},{"question":"q2","answers":[{"text":"c"}]},{"question":"impossible","answers":[],"is_impossible":true}]},{"context":"two","qas":[]}]}]}`,
		`{"context":"one","question":"q1","answers":["a","b"]}` + "\n" + `{"context":"one","question":"q2","answers":"c"}` + "\n\n" + `{"context":"two","question":"?","answers":[""]}`,
	} {
		if got, err := read(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	for text, says := range map[string]string{
		"":                                       "0 paragraphs",
		"{\"context\":\"x\"}\n[1]":               "line 2",
		"{\"context\":\" \"}":                    "line 1: no text",
		"{\"context\":\"x\"}":                    "1 paragraphs with 0 questions",
		`{"data":[{"paragraphs":[{"qas":[]}]}]}`: "paragraph 1 has no text",
	} {
		if _, err := read(text); !errors.Is(err, ErrParagraphs) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
}

func FuzzParagraphs(f *testing.F) {
	f.Add([]byte(`{"data":[{"paragraphs":[{"context":"one","qas":[{"question":"q","answers":[{"text":"a"}]}]}]}]}`))
	f.Add([]byte(`{"context":"one","question":"q1","answers":["a","b"]}` + "\n{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseParagraphs(strings.NewReader(string(b)))
		if (err == nil) != (len(list) > 1) {
			t.Errorf("%d paragraphs, %v", len(list), err)
		}
		for _, p := range list {
			for _, q := range p.Questions {
				if q.Question == "" || len(q.Answers) == 0 || strings.TrimSpace(p.Text) == "" {
					t.Errorf("%+v", p)
				}
			}
		}
	})
}
