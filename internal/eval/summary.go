package eval

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Cell is the mean over the samples of one policy, task and length, in percent.
type Cell struct {
	Samples int     `json:"samples"`
	Exact   float64 `json:"exact"`
	Tokens  float64 `json:"tokens"`
	Recall  float64 `json:"recall"`
}

// Row is one policy at one length.
type Row struct {
	Policy string          `json:"policy"`
	Spec   string          `json:"kv_policy,omitempty"`
	Family string          `json:"family"`
	Budget int             `json:"budget,omitempty"` // tokens kept; 0: all, or unknown
	Length int             `json:"length"`
	Tasks  map[string]Cell `json:"tasks"`
	// Mean is the mean exact match over those tasks of mean9 that were run.
	Mean      float64 `json:"mean"`
	MeanTasks int     `json:"mean_tasks"` // 9 if it is the mean9 of the reference table
	// Depth is the exact match of single needles by eighth of the haystack; -1: no sample.
	Depth [DepthRanges]float64 `json:"depth"`
}

// DepthRanges is the number of depth ranges for single needles.
const DepthRanges = 8

type Summary struct {
	Model       string   `json:"model"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Corpus      string   `json:"corpus"`
	Seed        uint64   `json:"seed"`
	Tasks       []string `json:"tasks"`
	Rows        []Row    `json:"rows"` // by length, then in the order of the policies
}

// Summarize computes the means of the records of a run with cfg.
func Summarize(records []Record, cfg Config) *Summary {
	cfg.ensureDefaults()
	s := &Summary{Tasks: slices.Clone(cfg.Tasks)}
	slices.SortStableFunc(s.Tasks, func(a, b string) int {
		return slices.Index(TaskNames(), a) - slices.Index(TaskNames(), b)
	})
	if len(records) > 0 {
		s.Model, s.Fingerprint, s.Corpus, s.Seed = records[0].Model, records[0].Fingerprint, records[0].Corpus, records[0].Seed
	}
	type place struct {
		policy string
		length int
	}
	by := map[place][]*Record{}
	for i := range records {
		r := &records[i]
		at := place{r.Policy, r.Length}
		by[at] = append(by[at], r)
	}
	for _, l := range cfg.Lengths {
		for _, p := range cfg.Policies {
			row := Row{Policy: p.Name, Spec: p.Spec, Family: p.Family, Budget: p.Budget, Length: l}
			row.count(by[place{p.Name, l}], s.Tasks)
			s.Rows = append(s.Rows, row)
		}
	}
	return s
}

func (row *Row) count(records []*Record, names []string) {
	row.Tasks = map[string]Cell{}
	var depth, hits [DepthRanges]float64
	for _, r := range records {
		c := row.Tasks[r.Task]
		c.Samples++
		if r.Exact {
			c.Exact++
		}
		c.Tokens += r.Tokens
		c.Recall += r.Recall
		row.Tasks[r.Task] = c
		if r.Depth != nil {
			e := max(0, min(DepthRanges-1, int(*r.Depth*DepthRanges)))
			depth[e]++
			if r.Exact {
				hits[e]++
			}
		}
	}
	for _, name := range names {
		c, ok := row.Tasks[name]
		if !ok {
			continue
		}
		per := 100 / float64(c.Samples)
		c.Exact, c.Tokens, c.Recall = c.Exact*per, c.Tokens*per, c.Recall*per
		row.Tasks[name] = c
		if slices.Contains(mean9, name) {
			row.Mean += c.Exact
			row.MeanTasks++
		}
	}
	if row.MeanTasks > 0 {
		row.Mean /= float64(row.MeanTasks)
	}
	for e := range depth {
		row.Depth[e] = -1
		if depth[e] > 0 {
			row.Depth[e] = 100 * hits[e] / depth[e]
		}
	}
}

// MeanName returns the heading of the mean's column.
func (s *Summary) MeanName() string {
	n := 0
	for _, r := range s.Rows {
		n = max(n, r.MeanTasks)
	}
	return fmt.Sprintf("mean%d", n)
}

// Samples returns the smallest number of samples that a task has at a length.
func (s *Summary) Samples(length int) int {
	least := 0
	for _, r := range s.Rows {
		for _, c := range r.Tasks {
			if r.Length == length && (least == 0 || c.Samples < least) {
				least = c.Samples
			}
		}
	}
	return least
}

// Write writes the summary to dir/summary.json.
func (s *Summary) Write(dir string) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "summary.json"), append(text, '\n'), 0o644)
}

// Lengths returns the lengths in row order.
func (s *Summary) Lengths() []int {
	var out []int
	for _, r := range s.Rows {
		if !slices.Contains(out, r.Length) {
			out = append(out, r.Length)
		}
	}
	return out
}

// WriteMarkdown writes a table per length, in the format of the reference table.
func (s *Summary) WriteMarkdown(w io.Writer) {
	for i, l := range s.Lengths() {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "Exact match %%, %d-token prompts, %d samples a task.\n\n| policy | %s | %s |\n|%s\n", l, s.Samples(l),
			strings.Join(s.Tasks, " | "), s.MeanName(), strings.Repeat("---|", len(s.Tasks)+2))
		for _, r := range s.Rows {
			if r.Length != l {
				continue
			}
			fmt.Fprintf(w, "| %s |", r.Policy)
			for _, t := range s.Tasks {
				fmt.Fprintf(w, " %s |", r.Tasks[t].text())
			}
			fmt.Fprintf(w, " %.1f |\n", r.Mean)
		}
	}
}

func (c Cell) text() string {
	if c.Samples == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", c.Exact)
}

// WriteTable writes a table per length for a terminal, with the parts of a task's name on separate
// lines.
func (s *Summary) WriteTable(w io.Writer) {
	for i, l := range s.Lengths() {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "exact match %%, %s, %d-token prompts, %d samples a task, seed %d\n\n", s.Model, l, s.Samples(l), s.Seed)
		heads := [][]string{{"", "", "policy"}}
		for _, t := range append(slices.Clone(s.Tasks), s.MeanName()) {
			parts := strings.Split(t, "_")
			for len(parts) < 3 {
				parts = append([]string{""}, parts...)
			}
			heads = append(heads, parts)
		}
		var rows [][]string
		for line := range 3 {
			var row []string
			for _, h := range heads {
				row = append(row, h[line])
			}
			if strings.Join(row, "") != "" {
				rows = append(rows, row)
			}
		}
		for _, r := range s.Rows {
			if r.Length != l {
				continue
			}
			row := []string{r.Policy}
			for _, t := range s.Tasks {
				row = append(row, r.Tasks[t].text())
			}
			rows = append(rows, append(row, fmt.Sprintf("%.1f", r.Mean)))
		}
		writeColumns(w, rows)
	}
}

// writeColumns aligns the first column left and the others right.
func writeColumns(w io.Writer, rows [][]string) {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], len(c))
		}
	}
	for _, r := range rows {
		line := fmt.Sprintf("%-*s", width[0], r[0])
		for i, c := range r[1:] {
			line += fmt.Sprintf("  %*s", width[i+1], c)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}
