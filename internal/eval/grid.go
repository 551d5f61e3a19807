package eval

import (
	"fmt"
	"io"
	"strings"
)

// Grid is a table of measurements: a row for each policy, a column for each measure.
type Grid struct {
	Title   string    `json:"title"`
	Columns []string  `json:"columns"`
	Rows    []GridRow `json:"rows"`
	Digits  int       `json:"-"` // after the decimal point, in texts
}

// GridRow is a row of a Grid. A cell that was not measured is nil.
type GridRow struct {
	Name  string     `json:"name"`
	Spec  string     `json:"kv_policy,omitempty"`
	Cells []*float64 `json:"cells"`
}

// Join appends the columns of another grid with rows of the same names, in order.
func (g *Grid) Join(o *Grid) {
	g.Columns = append(g.Columns, o.Columns...)
	for i := range g.Rows {
		g.Rows[i].Cells = append(g.Rows[i].Cells, o.Rows[i].Cells...)
	}
}

func (g *Grid) text(cell *float64) string {
	if cell == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", g.Digits, *cell)
}

// WriteTable writes the grid for a terminal. The words of a heading are on separate lines.
func (g *Grid) WriteTable(w io.Writer) {
	if g.Title != "" {
		fmt.Fprintf(w, "%s\n\n", g.Title)
	}
	heads, most := [][]string{{"policy"}}, 1
	for _, c := range g.Columns {
		heads = append(heads, strings.FieldsFunc(c, func(r rune) bool { return r == ' ' || r == '_' }))
		most = max(most, len(heads[len(heads)-1]))
	}
	var rows [][]string
	for line := range most {
		var row []string
		for _, h := range heads { // aligned at the bottom
			row = append(row, append(make([]string, most-len(h)), h...)[line])
		}
		rows = append(rows, row)
	}
	for _, r := range g.Rows {
		row := []string{r.Name}
		for _, c := range r.Cells {
			row = append(row, g.text(c))
		}
		rows = append(rows, row)
	}
	writeColumns(w, rows)
}

// WriteMarkdown writes the grid as a Markdown table.
func (g *Grid) WriteMarkdown(w io.Writer) {
	if g.Title != "" {
		fmt.Fprintf(w, "%s\n\n", g.Title)
	}
	fmt.Fprintf(w, "| policy | %s |\n|%s\n", strings.Join(g.Columns, " | "), strings.Repeat(" --- |", len(g.Columns)+1))
	for _, r := range g.Rows {
		fmt.Fprintf(w, "| %s |", r.Name)
		for _, c := range r.Cells {
			fmt.Fprintf(w, " %s |", g.text(c))
		}
		fmt.Fprintln(w)
	}
}
