package eval

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Table has the rows of a paper's table, for any model: its policies at its shares of the context, and its
// measures.
type Table struct {
	Name  string
	About string
	Rows  []TableRow
	Parts []TablePart
}

// TableRow is a row of a table: a policy, and for SwiftKV an adapter that comes with Shoal.
type TableRow struct {
	Name, Policy string
	Adapter      string // folder such as models/fry-swiftkv; "": none
}

// TablePart is one benchmark's columns. Suite is a suite of package suite, GeneratedRuler or
// Perplexities.
type TablePart struct {
	Suite string
	Tasks []string // of the suite; empty: all
	By    SuiteColumns
	// Columns are those of GeneratedRuler: the mean of tasks of this package.
	Columns []RulerColumn
}

// RulerColumn is the mean of generated tasks.
type RulerColumn struct {
	Name  string
	Tasks []string
}

// Parts that no suite of files has.
const (
	GeneratedRuler = "RULER, generated"
	Perplexities   = "perplexity"
)

// ErrTable: there is no such table.
var ErrTable = errors.New("eval: unknown table")

var (
	full        = TableRow{Name: "full", Policy: "full"}
	rulerGroups = []RulerColumn{
		{"RULER Retrieval", []string{"niah_single_noise", "niah_single_text", "niah_multikey", "niah_multivalue", "niah_multiquery"}},
		{"RULER MH-Tracing", []string{"vt"}},
		{"RULER Aggregation", []string{"cwe", "fwe"}},
		{"RULER QA", []string{"qa"}},
	}
	rulerTasks = []RulerColumn{
		{"S1", []string{"niah_single_noise"}}, {"S2", []string{"niah_single_text"}},
		{"MK1", []string{"niah_multikey"}}, {"MK2", []string{"kv_hex"}},
		{"MQ", []string{"niah_multiquery"}}, {"MV", []string{"niah_multivalue"}}, {"QA", []string{"qa"}},
		{"VT", []string{"vt"}}, {"FWE", []string{"fwe"}},
	}
)

var tables = []Table{
	{"snapstream", "SnapStream, table 1: 8K of 128K, a sixteenth of the prompt", []TableRow{
		full,
		{Name: "StreamingLLM 1/16", Policy: "streaming:sink=4,recent=6.25%"},
		{Name: "SAGE-KV 1/16", Policy: "sage:sink=4,recent=1.56%,topk=4.69%"},
		{Name: "SnapStream 1/16", Policy: "snapstream:sink=4,recent=3.125%,topk=3.125%,votes=prefix"},
		{Name: "SnapStream 1/16, recall 1/64", Policy: "snapstream:sink=4,recent=3.125%,topk=3.125%,votes=prefix,recall=1.56%"},
	}, []TablePart{
		{Suite: "longbench", Tasks: english, By: ByGroup},
		{Suite: GeneratedRuler, Columns: rulerGroups},
		{Suite: "infinitebench", Tasks: []string{"longbook_qa_eng", "passkey", "number_string", "kv_retrieval"}, By: ByGroup},
	}},
	{"snapstream-r1", "SnapStream, table 2: 32K of 128K, a quarter of the prompt; AIME and LiveCodeBench are MATH and GSM8K here, no " +
		"code is run", []TableRow{
		full,
		{Name: "cut to 1/4", Policy: "truncated/25%"},
		{Name: "SnapStream 1/4", Policy: "snapstream:r1"},
	}, []TablePart{
		{Suite: "longbench-v2", By: ByGroup},
		{Suite: "math", By: ByGroup},
		{Suite: "gsm8k", By: ByGroup},
	}},
	{"shadowkv", "ShadowKV, table 1: 1.56 % of the prompt by landmarks; Quest with as much, and with 1/16", []TableRow{
		full,
		{Name: "Quest 1.56 %", Policy: "quest:page=16,budget=1.56%,skip=2"},
		{Name: "Quest 1/16", Policy: "quest:page=16,budget=6.25%,skip=2"},
		{Name: "Loki 1.56 %", Policy: "loki:budget=1.56%,calib=256"},
		{Name: "InfiniGen, at most 1.6 %", Policy: "infinigen:most=0.016,calib=256"},
		{Name: "ShadowKV 1.56 %", Policy: "shadowkv:chunk=8,budget=1.56%,outliers=48,local=4"},
		{Name: "ShadowKV 1.56 %, 8 outliers", Policy: "shadowkv:chunk=8,budget=1.56%,outliers=8,local=4"},
	}, []TablePart{
		{Suite: GeneratedRuler, Columns: rulerTasks},
		{Suite: "longbench", By: ByTask, Tasks: []string{"narrativeqa", "multifieldqa_en", "hotpotqa", "musique", "dureader", "gov_report",
			"samsum", "passage_retrieval_en", "lcc"}},
	}},
	{"squeezed", "Squeezed Attention, tables 2 and 3: sparsity 70, 80 and 90 %, and Quest with the paper's budgets", []TableRow{
		full,
		{Name: "Sq-70%", Policy: "squeezed:sparsity=0.7"},
		{Name: "Quest 21.5 %", Policy: "quest:page=16,budget=21.5%,skip=2"},
		{Name: "Sq-80%", Policy: "squeezed:sparsity=0.8"},
		{Name: "Quest 16.8 %", Policy: "quest:page=16,budget=16.8%,skip=2"},
		{Name: "Sq-90%", Policy: "squeezed:sparsity=0.9"},
		{Name: "H-Sq-90%", Policy: "squeezed:levels=2,sparsity=0.9"},
	}, []TablePart{
		{Suite: "longbench", By: ByTask, Tasks: []string{"narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique",
			"gov_report", "qmsum", "multi_news", "trec", "triviaqa", "samsum", "repobench-p", "lcc"}},
		{Suite: GeneratedRuler, Columns: rulerTasks},
	}},
	{"equip", "EQUIP, figure 19 and the match of tokens: perplexity of a text under policies that evict", []TableRow{
		full,
		{Name: "StreamingLLM 1/5", Policy: "streaming:sink=4,recent=20%"},
		{Name: "H2O 1/5", Policy: "h2o:paper"},
		{Name: "SnapKV 1/5", Policy: "snapkv:topk=20%,obs=32,pool=5"},
		{Name: "Ada-KV 1/5", Policy: "adakv:topk=20%,obs=32,pool=5"},
		{Name: "LagKV 1/5", Policy: "lagkv:sink=4,lag=64,topk=15%"},
	}, []TablePart{{Suite: Perplexities}}},
	{"swiftkv", "SwiftKV, tables 3 to 5: the prompt's tokens skip half of the layers", []TableRow{
		full,
		{Name: "SingleInputKV 50 %", Policy: "full", Adapter: "models/fry-swiftkv"},
		{Name: "and AcrossKV", Policy: "full", Adapter: "models/fry-swiftkv-across"},
	}, []TablePart{
		{Suite: "gsm8k", By: ByGroup},
		{Suite: GeneratedRuler, Columns: rulerGroups},
		{Suite: "longbench", Tasks: english, By: ByGroup},
	}},
}

// english lists the tasks of LongBench without the Chinese ones.
var english = []string{"narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "qmsum", "multi_news",
	"trec", "triviaqa", "samsum", "passage_count", "passage_retrieval_en", "lcc", "repobench-p"}

// FindTable returns the table of a name.
func FindTable(name string) (*Table, error) {
	i := slices.IndexFunc(tables, func(t Table) bool { return t.Name == name })
	if i < 0 {
		var names []string
		for _, t := range tables {
			names = append(names, t.Name)
		}
		return nil, fmt.Errorf("%w %q; known are %s", ErrTable, name, strings.Join(names, ", "))
	}
	return &tables[i], nil
}

// TableHelp describes each table in a line.
func TableHelp() string {
	var b strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&b, "  %-14s %s\n", t.Name, t.About)
	}
	return b.String()
}

// Policies returns the policies of the rows without an adapter, or of one row with an adapter, named
// like the rows.
func (t *Table) Policies(rows []TableRow) ([]Policy, error) {
	var out []Policy
	for _, r := range rows {
		p, err := ParsePolicy(r.Policy)
		if err != nil {
			return nil, err
		}
		p.Name = r.Name
		out = append(out, p)
	}
	return out, nil
}

// Groups splits the rows into runs that one model answers.
func (t *Table) Groups() (groups [][]TableRow) {
	for _, r := range t.Rows {
		if n := len(groups); n > 0 && groups[n-1][0].Adapter == r.Adapter {
			groups[n-1] = append(groups[n-1], r)
			continue
		}
		groups = append(groups, []TableRow{r})
	}
	return groups
}

// RulerGrid makes the columns of generated tasks: RULER's measure, the mean share of the wanted
// values that an answer contains, in percent.
func RulerGrid(s *Summary, columns []RulerColumn) *Grid {
	g := &Grid{Digits: 1}
	for _, c := range columns {
		g.Columns = append(g.Columns, c.Name)
	}
	for _, r := range s.Rows {
		row := GridRow{Name: r.Policy, Spec: r.Spec}
		for _, c := range columns {
			sum, n := 0.0, 0
			for _, t := range c.Tasks {
				if cell, ok := r.Tasks[t]; ok {
					sum, n = sum+cell.Recall, n+1
				}
			}
			var mean *float64
			if n > 0 {
				m := sum / float64(n)
				mean = &m
			}
			row.Cells = append(row.Cells, mean)
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}
