package eval

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TestLongAnswers: the bundled model elver answers 300 tokens, several times the rings of the policies. Running sums
// need ten addends of the prompt at every step, so a policy that keeps them for the whole answer solves them, and one
// with only the newest tokens does not. A copy needs the whole prompt: only full attention solves it.
func TestLongAnswers(t *testing.T) {
	const dir, tokens = "../../models/elver", 300
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	c := embedded(t, cluster.ServeConfig{Model: dir})
	s, questions, err := LongSuite(4, tokens, 1)
	if err != nil {
		t.Fatal(err)
	}
	policies := []struct {
		spec       string
		copy, sums [2]float64 // bounds of the mean score
	}{
		{"full", [2]float64{0.9, 1}, [2]float64{1, 1}},
		{"streaming:recent=64", [2]float64{0, 0.1}, [2]float64{0, 0.1}},
		{"snapstream:recent=32,topk=64", [2]float64{0, 0.1}, [2]float64{0.3, 0.9}},
		{"resnap:topk=96,every=16", [2]float64{0, 0.1}, [2]float64{0.4, 0.9}},
		{"snapkv:topk=96,ring=32", [2]float64{0, 0.1}, [2]float64{1, 1}},
	}
	var specs []string
	for _, p := range policies {
		specs = append(specs, p.spec)
	}
	cfg := SuiteConfig{Concurrency: 4}
	if cfg.Policies, err = ParsePolicies(specs); err != nil {
		t.Fatal(err)
	}
	store, err := OpenSuiteStore("")
	if err != nil {
		t.Fatal(err)
	}
	records, err := RunSuite(t.Context(), c, tok, s.Name, questions, store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := SummarizeSuite(s, records, cfg.Policies, ByTask, nil)
	for i, p := range policies {
		for column, bounds := range map[string][2]float64{"copy": p.copy, "sums": p.sums} {
			score := *g.Rows[i].Cells[slices.Index(g.Columns, column)] / 100
			if t.Logf("%s, %s: %.3f", p.spec, column, score); score < bounds[0] || score > bounds[1] {
				t.Errorf("%s, %s: %.3f, want %v", p.spec, column, score, bounds)
			}
		}
	}
}
