package forecast

import (
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/machine/costs"
)

// Cell is a measured step, or a measured time to the first token, and its forecast.
type Cell struct {
	Nodes    int    `json:"nodes"`
	Threads  int    `json:"threads"` // of a node
	Mapping  string `json:"mapping"`
	Rows     int    `json:"rows"` // sequences in the step; 0: time to the first token of one prompt
	Prompt   int    `json:"prompt_tokens"`
	Forecast Time   `json:"forecast"`
	Measured Parts  `json:"measured"`
}

// Parts are the parts of a measured time, in seconds.
type Parts struct {
	Step    float64 `json:"step_s"`
	Compute float64 `json:"compute_s"` // of the slowest node
	Wait    float64 `json:"wait_s"`
	Control float64 `json:"control_s"` // the rest
}

// Error returns the forecast's error as a share of the measured time: negative if the forecast is too fast.
func (c *Cell) Error() float64 { return c.Forecast.Step/c.Measured.Step - 1 }

// Near is the error up to which a forecast counts as right.
const Near = 0.2

// CountNear returns the number of forecasts whose error is at most Near.
func CountNear(cells []Cell) (n int) {
	for i := range cells {
		if math.Abs(cells[i].Error()) <= Near {
			n++
		}
	}
	return n
}

// Chosen returns the table of a number of threads, or all tables if it has none. Nodes choose their number by
// trying several, and may take another one than a forecast.
func Chosen(tables []costs.Table, threads int) []costs.Table {
	if i := slices.IndexFunc(tables, func(t costs.Table) bool { return t.Threads == threads }); i >= 0 {
		return tables[i : i+1]
	}
	return tables
}
