package models

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/bench/forecast"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/topology"
)

// nodeSpeed describes a node and its link, for forecasts.
type nodeSpeed struct {
	Read     float64       `default:"200" range:"0.1..100000" help:"Rate at which a node reads memory, in GB/s."`
	Products float64       `default:"2000" range:"1..1e7" help:"Multiply-adds per second of a node in matrix products, in billions."`
	Exchange time.Duration `default:"30us" range:"0s..1s" help:"Software time of one exchange between nodes."`
	Message  time.Duration `default:"5us" range:"0s..1s" help:"Software time to send or receive one message."`
	Delay    time.Duration `default:"50us" range:"0s..1s" help:"One-way delay between two nodes."`
	Link     float64       `default:"10" range:"0.001..10000" help:"Rate of a node's link in each direction, in Gbit/s."`
	Noise    float64       `default:"0" range:"0..0.5" help:"Standard deviation of the computation between two exchanges, as a fraction of it."`
	Chunk    int           `default:"512" range:"1..65536" help:"Prompt tokens per step."`
	Sampled  bool          `help:"Draw tokens from all logits (temperature above 0), which owners receive whole, instead of taking the best one."`
	Measure  bool          `help:"Measure products of 1 to 512 rows, attention, and exchanges on this machine, as one node that uses all of it, in place of --read, --products, --exchange and --message."`
	Cores    int           `range:"1..4096" placeholder:"N" help:"With --measure: cores of a node. Its rates are those of this machine times N divided by the cores of this machine (default: the cores of this machine)."`
}

// cluster returns equal nodes that run a model's work.
func (s *nodeSpeed) cluster(ctx context.Context, c *model.Config, w *forecast.Work, weights,
	kv tensor.DType, nodes int) (forecast.Cluster, error) {
	table := costs.Rates{Read: s.Read * 1e9, Products: s.Products * 1e9}.Assumed(w.Weight(), w.Slot())
	table.Exchange, table.Message = s.Exchange.Seconds(), s.Message.Seconds()
	tables := []costs.Table{table}
	if s.Measure {
		var err error
		if tables, err = MeasuredCosts(ctx, c, weights, kv, 1, nodes, 0); err != nil {
			return forecast.Cluster{}, fmt.Errorf("--measure: %w; give --read, --products, --exchange and --message", err)
		}
		if s.Cores > 0 {
			for i := range tables {
				tables[i] = tables[i].Times(float64(runtime.GOMAXPROCS(0)) / float64(s.Cores))
			}
		}
	}
	f := forecast.ClusterOf(nodes, tables)
	f.Machine.Noise, f.Link, f.Sampled, f.Seed = s.Noise, s.link(), s.Sampled, 1
	return f, nil
}

// MeasuredCosts measures the costs of a model's computations on one of several nodes of this machine, when
// sockets nodes serve the model. threads is the number of threads of a node; 0: the default of up.
func MeasuredCosts(ctx context.Context, c *model.Config, weights, kv tensor.DType, nodes, sockets, threads int) ([]costs.Table, error) {
	return machine.MeasureCosts(ctx, machine.SpeedsConfig{Dir: WeightsCacheDir(""), Nodes: nodes, Sockets: sockets, Threads: threads, Model: c,
		Weights: weights, KV: kv, Build: cluster.Build(), Logger: slog.New(slog.DiscardHandler)})
}

func (s *nodeSpeed) link() forecast.Link {
	return forecast.Link{Delay: s.Delay.Seconds(), Rate: s.Link * 1e9 / 8}
}

func (s *nodeSpeed) print(w io.Writer, m forecast.Machine, weight float64) {
	how := "assumed"
	if s.Measure {
		how = "measured here"
	}
	rates := m.Rates(weight)
	fmt.Fprintf(w, "  each node, %s: reads %.0f GB/s, %.0f billion multiply-adds/s, exchange %.0f us, message %.1f us; link of %g Gbit/s, "+
		"%v one way\n",
		how, rates.Read/1e9, rates.Products/1e9, 1e6*m.Exchange, 1e6*m.Message, s.Link, s.Delay)
	if s.Measure {
		var parts []string
		for i, rows := range costs.Rows {
			parts = append(parts, fmt.Sprintf("%d: %.0f", rows, float64(rows)/m.Products[i]/1e9))
		}
		fmt.Fprintf(w, "  billion multiply-adds/s by rows: %s\n", strings.Join(parts, ", "))
	}
}

// planTimes is a plan with times.
type planTimes struct {
	*bench.Plan
	Machine forecast.Machine `json:"node"`
	Link    forecast.Link    `json:"link"`
	Times   []planTime       `json:"times"` // of the plan's rows
	Scale   []forecast.Point `json:"scale,omitempty"`
	weight  float64          // bytes of a weight
}

// planTime has the times of one context length.
type planTime struct {
	FirstToken float64  `json:"first_token_s"` // of a prompt that fills the context
	Full       planRate `json:"full"`
	SnapStream planRate `json:"snapstream"`
}

// planRate is the speed of decode with the plan's batch. Zero: nothing fits.
type planRate struct {
	Rate    float64 `json:"tokens_per_s"`
	Step    float64 `json:"step_s"`
	Compute float64 `json:"compute_s"`
	Wait    float64 `json:"wait_s"`
}

// forecast adds times to a plan.
func (c *PlanCmd) forecast(e *ui.Env, m bench.PlanModel, p *bench.Plan, weights, kv tensor.DType) (*planTimes, error) {
	work := forecast.WorkOf(&m.Config, weights, kv, topology.Mapping(c.Mapping))
	nodes, err := c.cluster(e.Ctx, &m.Config, &work, weights, kv, c.Nodes)
	if err != nil {
		return nil, err
	}
	f := &planTimes{Plan: p, Machine: nodes.Machine, Link: nodes.Link, weight: work.Weight()}
	rate := func(b bench.PlanBatch, slots int) planRate {
		if b.Batch == 0 {
			return planRate{}
		}
		t := work.Decode(nodes, b.Batch, slots)
		return planRate{Rate: float64(b.Batch) / t.Step, Step: t.Step, Compute: t.Compute, Wait: t.Wait}
	}
	for _, r := range p.Rows {
		f.Times = append(f.Times, planTime{FirstToken: work.Prompt(nodes, r.Context, c.Chunk).Step, Full: rate(r.Full, r.Context),
			SnapStream: rate(r.SnapStream, r.Compressed)})
	}
	if len(c.Scale) > 0 {
		f.Scale = work.Scale(nodes, c.Scale, c.Batch, p.Rows[0].Compressed)
	}
	return f, nil
}

func planRateText(rate float64) string {
	if rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", rate)
}

func printScale(w io.Writer, points []forecast.Point, batch int) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(w, "\n  a step of %d sequences with the first compressed context:\n  %6s  %10s  %10s  %10s  %9s  %s\n", batch, "nodes",
		"step, ms", "compute", "wait", "tokens/s", "saved if a cost were zero")
	for _, p := range points {
		var costs []string
		for _, l := range p.Limits {
			if l.Share >= 0.05 && len(costs) < 3 {
				costs = append(costs, fmt.Sprintf("%s %.0f %%", l.Name, 100*l.Share))
			}
		}
		fmt.Fprintf(w, "  %6d  %10.1f  %10.1f  %10.1f  %9.1f  %s\n", p.Nodes, 1e3*p.Step, 1e3*p.Compute,
			1e3*p.Wait, p.Rate, strings.Join(costs, ", "))
	}
}
