package forecast_test

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/bench/forecast"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

// recording has the costs of a host and the times that were measured on it.
type recording struct {
	About   string                `json:"about"`
	Costs   map[int][]costs.Table `json:"costs"` // by number of nodes on the host
	Weights map[int]float64       `json:"product_weights"`
	Assumed costs.Table           `json:"assumed"`
	Cells   []forecast.Cell       `json:"cells"`

	// Forwarding is the time that the simulated network adds to each delay (docs/network.md, Calibration).
	Forwarding time.Duration `json:"forwarding_ns"`
	Wire       []struct {
		Nodes int `json:"nodes"`
		Load  struct {
			Rows   int `json:"rows"`
			Prompt int `json:"prompt"`
		} `json:"load"`
		Delay time.Duration   `json:"delay_ns"`
		Rate  string          `json:"rate"`
		Times []time.Duration `json:"times_ns"`
		Late  time.Duration   `json:"late_ns"`
	} `json:"wire"`
}

// recorded reads a recording. Its tables lack costs that later builds measure: those are assumed, and taken from
// the times of products, which contain them.
func recorded(t *testing.T, file string) (r recording) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(r.Costs))) { // Alone needs the unchanged tables of one node
		for i := range r.Costs[n] {
			x := &r.Costs[n][i]
			a := r.Assumed
			x.Element, x.Start, x.Round, x.Copy, x.Alone = a.Element, a.Start, a.Round, a.Copy, alone(x, r.Costs[1])
			for j, rows := range costs.Rows {
				rest := costs.Table{Threads: x.Threads, Start: x.Start, Round: x.Round}
				x.Products[j] -= rest.Product(0, float64(rows), 2048) / r.Weights[n]
			}
			if !x.Valid() {
				t.Fatalf("%d nodes: %+v", n, x)
			}
		}
	}
	return r
}

// alone returns the time of a product on one node that computes alone, as a share of its time while all compute. A node
// with nearly the same number of threads, the only one on the host, shows the first.
func alone(x *costs.Table, of []costs.Table) float64 {
	one := slices.MinFunc(of, func(a, b costs.Table) int { return cmp.Compare(distance(&a, x), distance(&b, x)) })
	return min(1, one.Products[0]/x.Products[0]*float64(one.Threads)/float64(x.Threads))
}

func distance(a, b *costs.Table) float64 { return math.Abs(float64(a.Threads - b.Threads)) }

const recordedChunk = 512

// TestRecordedHost: 90 % of the times that `shoal lab forecast` measured on one host are forecast within 20 %.
func TestRecordedHost(t *testing.T) {
	r := recorded(t, "testdata/xeon-32.json")
	w := work(t, "llama-3.2-1b", topology.Reduce)
	for i := range r.Cells {
		c := &r.Cells[i]
		of := forecast.ClusterOf(c.Nodes, r.Costs[c.Nodes])
		if c.Rows == 0 {
			c.Forecast = w.Prompt(of, c.Prompt, recordedChunk)
		} else { // with the number of threads that the nodes have chosen
			c.Forecast = w.Decode(forecast.ClusterOf(c.Nodes, forecast.Chosen(r.Costs[c.Nodes], c.Threads)), c.Rows, c.Prompt+24)
		}
		f, m := c.Forecast, c.Measured
		t.Logf("%d nodes, prompt %4d, %2d rows: %+3.0f %%; %7.2f ms (%7.2f + %7.2f + %5.2f), measured %7.2f (%7.2f + %7.2f + %6.2f)", c.Nodes,
			c.Prompt, c.Rows, 100*c.Error(), 1e3*f.Step, 1e3*f.Compute, 1e3*f.Wait, 1e3*f.Control,
			1e3*m.Step, 1e3*m.Compute, 1e3*m.Wait, 1e3*m.Control)
	}
	near(t, r.Cells)
}

// TestRecordedWire: 90 % of the times that `wire compare` measured are forecast within 20 %, of the cells in which
// packets were on time.
func TestRecordedWire(t *testing.T) {
	r := recorded(t, "testdata/xeon-32.json")
	w := work(t, "llama-3.2-1b", topology.Reduce)
	rates := map[string]float64{"1gbit": 1e9 / 8, "10gbit": 10e9 / 8}
	var cells []forecast.Cell
	for _, x := range r.Wire {
		of := forecast.ClusterOf(x.Nodes, r.Costs[x.Nodes])
		of.Link = forecast.Link{Delay: (x.Delay + r.Forwarding).Seconds(), Rate: rates[x.Rate]}
		c := forecast.Cell{Nodes: x.Nodes, Rows: x.Load.Rows, Prompt: x.Load.Prompt, Measured: forecast.Parts{Step: x.Times[0].Seconds()}}
		if c.Prompt > 0 {
			c.Forecast = w.Prompt(of, c.Prompt, recordedChunk)
		} else {
			c.Forecast = w.Decode(of, c.Rows, 20)
		}
		late := x.Late > x.Delay/10
		t.Logf("%d nodes, %v, %s, prompt %4d, %2d rows: %+3.0f %%; %8.2f ms, measured %8.2f, late %v", x.Nodes, x.Delay, x.Rate, c.Prompt, c.Rows,
			100*c.Error(), 1e3*c.Forecast.Step, 1e3*c.Measured.Step, late)
		if !late {
			cells = append(cells, c)
		}
	}
	near(t, cells)
}

// near reports an error if less than 90 % of the forecasts are right.
func near(t *testing.T, cells []forecast.Cell) {
	t.Helper()
	n := forecast.CountNear(cells)
	t.Logf("%d of %d forecasts are within %.0f %%", n, len(cells), 100*forecast.Near)
	if len(cells) < 10 || 10*n < 9*len(cells) {
		t.Errorf("%d of %d", n, len(cells))
	}
}
