package eval

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/eval/score"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

// SuiteColumns selects the columns of a suite's table.
type SuiteColumns string

// The columns of a suite's table.
const (
	ByGroup SuiteColumns = "group" // the groups of papers' tables: the mean of their tasks
	ByTask  SuiteColumns = "task"
	BySet   SuiteColumns = "set" // parts of tasks: lengths, levels
)

// SummarizeSuite makes a table of records: for each policy the mean score of each column, in percent.
// passes: pass@k for each of these k instead, of questions with several samples. A sample passes if
// its score is 1.
func SummarizeSuite(s *suite.Suite, records []SuiteRecord, policies []Policy, by SuiteColumns, passes []int) *Grid {
	g := &Grid{Digits: 1}
	tasks := map[string][]string{} // of each column
	for _, t := range s.Tasks {
		for _, r := range records {
			if c := columnOf(&t, &r, by); r.Task == t.Name {
				if !slices.Contains(g.Columns, c) {
					g.Columns = append(g.Columns, c)
				}
				if !slices.Contains(tasks[c], t.Name) {
					tasks[c] = append(tasks[c], t.Name)
				}
			}
		}
	}
	columns := g.Columns
	if len(passes) > 0 {
		g.Columns = nil
		for _, c := range columns {
			for _, k := range passes {
				g.Columns = append(g.Columns, fmt.Sprintf("%s pass@%d", c, k))
			}
		}
	}
	for _, p := range policies {
		row := GridRow{Name: p.Name, Spec: p.Spec}
		for _, c := range columns {
			for _, k := range orOne(passes) {
				sum, n := 0.0, 0
				for _, name := range tasks[c] {
					t, err := s.Task(name)
					if err != nil {
						panic(err) // the name is from s.Tasks
					}
					if mean, ok := meanOf(records, p.Name, t, c, by, k); ok {
						sum, n = sum+mean, n+1
					}
				}
				var cell *float64
				if n > 0 {
					mean := 100 * sum / float64(n)
					cell = &mean
				}
				row.Cells = append(row.Cells, cell)
			}
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}

// orOne returns the list of k, or one 0: the mean score.
func orOne(passes []int) []int {
	if len(passes) == 0 {
		return []int{0}
	}
	return passes
}

func columnOf(t *suite.Task, r *SuiteRecord, by SuiteColumns) string {
	switch {
	case by == ByGroup:
		return t.Group
	case by == BySet && r.Set != "":
		return t.Name + " " + r.Set
	}
	return t.Name
}

// meanOf returns the mean over a task's questions of their mean score, or of pass@k.
func meanOf(records []SuiteRecord, policy string, t *suite.Task, column string, by SuiteColumns, k int) (float64, bool) {
	type tally struct {
		n, right int
		sum      float64
	}
	of, order := map[string]*tally{}, []string{}
	for i := range records {
		r := &records[i]
		if r.Policy != policy || r.Task != t.Name || columnOf(t, r, by) != column {
			continue
		}
		id := r.ID + "\x00" + r.Question
		if of[id] == nil {
			of[id], order = new(tally), append(order, id)
		}
		of[id].n++
		of[id].sum += r.Score
		if r.Score == 1 {
			of[id].right++
		}
	}
	total := 0.0
	for _, id := range order { // in order, for reproducible bits
		if q := of[id]; k > 0 {
			total += score.PassAtK(q.n, q.right, min(k, q.n))
		} else {
			total += q.sum / float64(q.n)
		}
	}
	return total / float64(max(1, len(order))), len(order) > 0
}
