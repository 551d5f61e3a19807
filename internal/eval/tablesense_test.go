package eval

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/eval/suite"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TestTablesMakeSense measures a part of each table of RULER's tasks with fry: full attention is the best row, and a
// row that reads or keeps more than another one is not worse.
func TestTablesMakeSense(t *testing.T) {
	for name, orders := range map[string][][2]string{ // the first is better, or both are the same
		"snapstream": {{"full", "SnapStream 1/16, recall 1/64"}, {"SnapStream 1/16, recall 1/64", "SnapStream 1/16"},
			{"SnapStream 1/16", "StreamingLLM 1/16"}, {"SnapStream 1/16", "SAGE-KV 1/16"}},
		"shadowkv": {{"full", "Quest 1/16"}, {"Quest 1/16", "Quest 1.56 %"}, {"full", "Loki 1.56 %"}, {"full", "InfiniGen, at most 1.6 %"},
			{"full", "ShadowKV 1.56 %"}, {"ShadowKV 1.56 %", "ShadowKV 1.56 %, 8 outliers"},
			{"ShadowKV 1.56 %", "Quest 1.56 %"}},
		"squeezed": {{"full", "Sq-70%"}, {"Sq-70%", "Sq-80%"}, {"Sq-80%", "Sq-90%"}, {"full", "Quest 21.5 %"}, {"Quest 21.5 %", "Quest 16.8 %"},
			{"Sq-90%", "H-Sq-90%"}},
		"swiftkv": {{"full", "SingleInputKV 50 %"}, {"full", "and AcrossKV"}},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := FindTable(name)
			if err != nil {
				t.Fatal(err)
			}
			cfg := Config{Tasks: []string{"niah_multiquery", "kv_hex", "vt"}, Lengths: []int{1024}, Samples: 1}
			if testlevel.Long() {
				cfg.Samples = 4
			}
			mean := map[string]float64{}
			for _, rows := range table.Groups() {
				if cfg.Policies, err = table.Policies(rows); err != nil {
					t.Fatal(err)
				}
				at := TogetherConfig{Model: modelDir}
				if rows[0].Adapter != "" {
					at.SwiftKV = "../../" + rows[0].Adapter
				}
				store, err := OpenStore("")
				if err != nil {
					t.Fatal(err)
				}
				records, err := RunTogether(t.Context(), testTokenizer(t), testGenerator(t, 1), store, cfg, at)
				if err != nil {
					t.Fatal(err)
				}
				all := RulerGrid(Summarize(records, cfg), []RulerColumn{{"all", cfg.Tasks}})
				for i, p := range cfg.Policies {
					mean[p.Name] = *all.Rows[i].Cells[0]
				}
			}
			t.Log(mean)
			if mean["full"] < 100 || len(mean) != len(table.Rows) {
				t.Errorf("full attention has %.1f %% of the values", mean["full"])
			}
			worst := 100.0
			for _, x := range mean {
				worst = min(worst, x)
			}
			if worst > 50 && slices.Contains([]string{"snapstream", "shadowkv"}, name) {
				t.Error("the smallest caches have most of the values: the test cannot fail")
			}
			for _, o := range orders {
				better, known := mean[o[0]]
				worse, also := mean[o[1]]
				if !known || !also || better < worse {
					t.Errorf("%s has %.1f %% of the values, %s %.1f %%", o[0], better, o[1], worse)
				}
			}
		})
	}
}

// TestPerplexitiesMakeSense: in the table of EQUIP full attention has the lowest perplexity, and a choice by attention
// is better than the newest tokens.
func TestPerplexitiesMakeSense(t *testing.T) {
	table, err := FindTable("equip")
	if err != nil {
		t.Fatal(err)
	}
	cfg := PolicyPerplexityConfig{Window: 512, Windows: 1}
	if cfg.Policies, err = table.Policies(table.Rows); err != nil {
		t.Fatal(err)
	}
	list, err := MeasurePolicyPerplexity(t.Context(), testTokenizer(t), OwnCorpus().English, cfg, TogetherConfig{Model: modelDir})
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]PolicyPerplexity{}
	for _, p := range list {
		t.Logf("%s: %.3f, match %.3f", p.Policy, p.Perplexity, p.Match)
		at[p.Policy] = p
		if full := list[0]; p.Perplexity < full.Perplexity || (p.Match == 1) != (p.Policy == full.Policy) {
			t.Errorf("%+v, full attention %+v", p, full)
		}
	}
	for _, chosen := range []string{"SnapKV 1/5", "Ada-KV 1/5"} {
		if x, newest := at[chosen], at["StreamingLLM 1/5"]; x.Tokens == 0 || x.Perplexity >= newest.Perplexity || x.Match <= newest.Match {
			t.Errorf("%+v is not better than %+v", x, newest)
		}
	}
}

// TestCutPrompts: in SnapStream's table 2 one row reads a quarter of the prompt's text, the others all of it. Under
// SnapStream with a quarter, more answers begin like those of full attention than after the cut.
func TestCutPrompts(t *testing.T) {
	table, err := FindTable("snapstream-r1")
	if err != nil {
		t.Fatal(err)
	}
	policies, err := table.Policies(table.Rows)
	if err != nil {
		t.Fatal(err)
	}
	chat, err := tokenizer.LoadChatTemplate(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	c := embedded(t, cluster.ServeConfig{Model: modelDir})
	var questions []suite.Question
	for _, part := range table.Parts {
		s, err := suite.Find(part.Suite)
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Load(s.StandIns(), part.Tasks, 2)
		if err != nil {
			t.Fatal(err)
		}
		questions = append(questions, list...)
	}
	store, err := OpenSuiteStore("")
	if err != nil {
		t.Fatal(err)
	}
	records, err := RunSuite(t.Context(), c, testTokenizer(t), "r1", questions, store,
		SuiteConfig{Policies: policies, Chat: chat, Concurrency: 4, MaxTokens: 8})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(records, func(a, b SuiteRecord) int { return cmp.Compare(a.Task+a.ID, b.Task+b.ID) })
	like := map[string]int{} // common first bytes with the answer of full attention
	for of := range slices.Chunk(records, len(policies)) {
		for _, r := range of {
			whole := of[slices.IndexFunc(of, func(r SuiteRecord) bool { return r.Policy == "full" })]
			want := whole.Prompt
			if strings.HasPrefix(r.Policy, "cut") {
				want /= 4
			}
			if r.Prompt != want || r.Task+r.ID != whole.Task+whole.ID {
				t.Errorf("%s, %s: a prompt of %d tokens, want %d", r.Policy, r.Task, r.Prompt, want)
			}
			for i := 0; i < min(len(r.Output), len(whole.Output)) && r.Output[i] == whole.Output[i]; i++ {
				like[r.Policy]++
			}
		}
	}
	t.Log(len(records), like)
	if like["SnapStream 1/4"] <= like["cut to 1/4"] || like["full"] < like["SnapStream 1/4"] {
		t.Errorf("answers that begin like those of full attention: %v", like)
	}
}
