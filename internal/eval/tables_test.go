package eval

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

// TestTablesCanBeAsked: every policy, suite and task of a table exists.
func TestTablesCanBeAsked(t *testing.T) {
	for _, table := range tables {
		for _, rows := range table.Groups() {
			policies, err := table.Policies(rows)
			if err != nil {
				t.Errorf("%s: %v", table.Name, err)
			}
			if err := normalForms(policies); err != nil {
				t.Errorf("%s: %v", table.Name, err)
			}
			if a := rows[0].Adapter; a != "" {
				if _, err := os.Stat(filepath.Join("../..", a, "swiftkv.json")); err != nil {
					t.Error(err)
				}
			}
		}
		for _, p := range table.Parts {
			if p.Suite == Perplexities {
				continue
			}
			if p.Suite == GeneratedRuler {
				cfg := Config{}
				for _, c := range p.Columns {
					cfg.Tasks = append(cfg.Tasks, c.Tasks...)
				}
				if err := cfg.Validate(); err != nil || len(cfg.Tasks) == 0 {
					t.Errorf("%s: %v", table.Name, err)
				}
				continue
			}
			s, err := suite.Find(p.Suite)
			if err == nil {
				_, err = s.Load(s.StandIns(), p.Tasks, 1)
			}
			if err != nil {
				t.Errorf("%s: %v", table.Name, err)
			}
		}
	}
	if _, err := FindTable("x"); !errors.Is(err, ErrTable) || !strings.Contains(err.Error(), "snapstream") {
		t.Error(err)
	}
	g := RulerGrid(&Summary{Rows: []Row{{Policy: "p", Tasks: map[string]Cell{"vt": {Recall: 40}, "cwe": {Recall: 10}, "fwe": {Recall: 20}}}}},
		rulerGroups)
	if c := g.Rows[0].Cells; c[0] != nil || *c[1] != 40 || *c[2] != 15 || c[3] != nil {
		t.Errorf("%v", c)
	}
}

// TestTablesSelect: each row that selects reads less than the shortest generated prompt.
func TestTablesSelect(t *testing.T) {
	for _, table := range tables {
		for _, row := range table.Rows {
			policy, err := ParsePolicy(row.Policy)
			if err != nil {
				t.Fatal(err)
			}
			p, err := kvpolicy.Parse(policy.Spec)
			if err != nil {
				t.Fatal(err)
			}
			if s := p.For(MinLength).Selector; s != nil && s.Reads(MinLength) >= MinLength {
				t.Errorf("%s, %s reads %d of %d tokens", table.Name, row.Name, s.Reads(MinLength), MinLength)
			}
		}
	}
}
