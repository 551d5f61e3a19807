package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-analyze/charts"

	"github.com/shoal-llm/shoal/internal/eval"
)

// theme has Okabe and Ito's colours, which colour-blind readers can distinguish, with a darker
// yellow. The first one is for levels without a budget.
var theme = charts.GetTheme(charts.ThemeLight).WithSeriesColors([]charts.Color{
	charts.ColorFromHex("#222222"), charts.ColorFromHex("#0072b2"), charts.ColorFromHex("#d55e00"), charts.ColorFromHex("#009e73"),
	charts.ColorFromHex("#cc79a7"), charts.ColorFromHex("#e69f00"), charts.ColorFromHex("#56b4e9"),
	charts.ColorFromHex("#8c6d00"), charts.ColorFromHex("#7f7f7f"),
})

// heading returns the two lines above a plot.
func (s summary) heading(title string, length int) charts.TitleOption {
	return charts.TitleOption{Text: title, Subtext: fmt.Sprintf("%s, %d-token prompts, %d samples a task", s.Model, length, s.Samples(length)),
		FontStyle: charts.NewFontStyleWithSize(16), SubtextFontStyle: charts.NewFontStyleWithSize(11)}
}

func (s summary) rows(length int) []eval.Row {
	return slices.DeleteFunc(slices.Clone(s.Rows), func(r eval.Row) bool { return r.Length != length })
}

// accuracy plots the mean exact match against the number of kept tokens. Policies without a budget
// are horizontal lines. nil: nothing to plot.
func (s summary) accuracy(length int, format string) ([]byte, error) {
	lines, budgets := s.series(length)
	if len(lines) == 0 {
		return nil, nil
	}
	opt := charts.NewLineChartOptionWithSeries(lines)
	opt.Theme, opt.Title, opt.Padding = theme, s.heading("Accuracy by cache budget", length), charts.NewBoxEqual(20)
	opt.XAxis = charts.XAxisOption{Title: "tokens kept per head", Labels: budgets}
	opt.YAxis = []charts.YAxisOption{{Title: "exact match %, " + s.MeanName(), Min: charts.Ptr(0.0), Max: charts.Ptr(100.0), Unit: 20}}
	opt.Legend = charts.LegendOption{Offset: charts.OffsetStr{Left: charts.PositionCenter, Top: charts.PositionBottom}}
	for _, l := range lines {
		opt.Legend.SeriesNames = append(opt.Legend.SeriesNames, l.Name)
	}
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: format, Width: 880, Height: 500})
	if err := p.LineChart(opt); err != nil {
		return nil, err
	}
	return p.Bytes()
}

// series returns the rows of a length: a line per family, with a value per budget.
func (s summary) series(length int) (lines charts.LineSeriesList, labels []string) {
	rows := slices.DeleteFunc(s.rows(length), func(r eval.Row) bool { return r.MeanTasks == 0 })
	var budgets []int
	for _, r := range rows {
		if r.Budget > 0 {
			budgets = append(budgets, r.Budget)
		}
	}
	slices.Sort(budgets)
	if budgets = slices.Compact(budgets); len(budgets) == 0 {
		budgets = []int{0} // only levels
	}
	for _, b := range budgets {
		labels = append(labels, strconv.Itoa(b))
	}
	slices.SortStableFunc(rows, func(a, b eval.Row) int { return cmp.Compare(min(a.Budget, 1), min(b.Budget, 1)) }) // levels first
	for _, r := range rows {
		name := r.Family
		if r.Budget == 0 {
			name = r.Policy
		}
		at := slices.IndexFunc(lines, func(l charts.LineSeries) bool { return l.Name == name })
		if at < 0 || r.Budget == 0 {
			at = len(lines)
			lines = append(lines, charts.LineSeries{Name: name, Values: slices.Repeat([]float64{charts.GetNullValue()}, len(budgets))})
		}
		for i, b := range budgets {
			if r.Budget == 0 || r.Budget == b {
				lines[at].Values[i] = r.Mean
			}
		}
	}
	return lines, labels
}

// depths plots a heat map of the exact match of single needles: a row per policy, a column per
// eighth of the haystack. nil: there are none.
func (s summary) depths(length int, format string) ([]byte, error) {
	var opt charts.HeatMapOption
	for _, r := range s.rows(length) {
		if !slices.ContainsFunc(r.Depth[:], func(v float64) bool { return v >= 0 }) {
			continue
		}
		opt.YAxis.Labels = append(opt.YAxis.Labels, r.Policy)
		values := slices.Clone(r.Depth[:])
		for i, v := range values {
			if v < 0 {
				values[i] = charts.GetNullValue()
			}
		}
		opt.Values = append(opt.Values, values)
	}
	if len(opt.Values) == 0 {
		return nil, nil
	}
	for e := range eval.DepthRanges {
		opt.XAxis.Labels = append(opt.XAxis.Labels, fmt.Sprintf("%d-%d", e*100/eval.DepthRanges, (e+1)*100/eval.DepthRanges))
	}
	opt.Theme, opt.BaseColorIndex, opt.Title, opt.Padding = theme, 6, s.heading("Single needles by depth", length), charts.NewBoxEqual(20)
	opt.XAxis.Title = "depth of the needle in the text, %; in the cells exact match %"
	opt.ScaleMinValue, opt.ScaleMaxValue = charts.Ptr(0.0), charts.Ptr(100.0)
	opt.ValuesLabel = charts.SeriesLabel{Show: charts.Ptr(true),
		ValueFormatter: func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }}
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: format, Width: 880, Height: 180 + 34*len(opt.Values)})
	if err := p.HeatMapChart(opt); err != nil {
		return nil, err
	}
	return p.Bytes()
}
