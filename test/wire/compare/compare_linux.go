package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/network"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// Options describe a comparison.
type Options struct {
	Builds  []Build
	Shape   string
	Nodes   []int
	Delays  []time.Duration // one way, from host to host
	Rates   []string        // of a host's link; "0": unlimited
	Rows    []int
	Prompt  int
	Tokens  int
	Rounds  int
	Quant   string
	Memory  string
	Threads int // of each node; 0: all processors, except one for the network, divided evenly
	CPUs    int
	MTU     int
	Work    string        // folder for the model
	Start   time.Duration // limit for a cluster's start
	Report  func(string)
}

// Run measures all cells and passes each to cell at once. It starts all builds on the
// same hosts, and asks them in turn, so that load on the machine slows all of them equally. When ctx
// ends, it stops without an error: cells has what was measured.
func Run(ctx context.Context, o Options, cell func(Cell)) error {
	shape, err := ShapeOf(o.Shape)
	if err != nil {
		return err
	}
	model, err := os.MkdirTemp(o.Work, "wire-model-")
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	defer os.RemoveAll(model)
	o.Report("writing the model " + o.Shape)
	if err := shape.Write(filepath.Join(model, o.Shape)); err != nil {
		return err
	}
	for _, n := range o.Nodes {
		c := &comparison{Options: o, shape: shape, model: filepath.Join(model, o.Shape), nodes: n, cell: cell}
		if err := c.run(ctx); err != nil {
			if ctx.Err() != nil {
				o.Report(fmt.Sprintf("stopped: %v", context.Cause(ctx)))
				return nil
			}
			return err
		}
	}
	return nil
}

// comparison measures all builds with one number of nodes.
type comparison struct {
	Options
	shape    Shape
	model    string
	nodes    int
	cell     func(Cell)
	net      *network.Network
	top      *topology.Topology
	clusters []*running
	asked    uint64
	started  time.Duration            // delay at which the clusters started
	still    map[string]time.Duration // step without delay, by build and load
}

func (c *comparison) run(ctx context.Context) (err error) {
	names := make([]string, c.nodes+1)
	for i := range names {
		names[i] = fmt.Sprintf("cmp%d", i)
	}
	if c.top, err = topology.Parse(fmt.Appendf(nil, "mtu: %d\nracks: {cmp: [%s]}\n", c.MTU, strings.Join(names, ", "))); err != nil {
		return err
	}
	if c.net, err = network.Start(c.top); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.net.Close()) }()
	for _, d := range c.Delays {
		if err := c.delay(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// delay starts the clusters on a network with a delay, because they choose their mapping for the links that
// they find, and measures with every rate.
func (c *comparison) delay(ctx context.Context, d time.Duration) (err error) {
	if err := c.set(ctx, d, c.Rates[0]); err != nil {
		return err
	}
	defer func() {
		for _, r := range c.clusters {
			err = errors.Join(err, r.stop())
		}
		c.clusters = nil
	}()
	threads := c.Threads
	if threads == 0 {
		threads = max(1, (c.CPUs-1)/c.nodes)
	}
	c.Report(fmt.Sprintf("starting %d nodes of %d threads of each build", c.nodes, threads))
	for i, b := range c.Builds {
		r, err := startCluster(ctx, b, c.top, clusterOptions{Model: c.model, Quant: c.Quant, Memory: c.Memory, Threads: threads, Place: i})
		c.clusters = append(c.clusters, r)
		if err != nil {
			return err
		}
	}
	serve, cancel := context.WithTimeoutCause(ctx, c.Start, fmt.Errorf("not within %v", c.Start))
	defer cancel()
	for _, r := range c.clusters {
		if err := r.wait(serve); err != nil {
			return err
		}
	}
	c.still, c.started = map[string]time.Duration{}, d
	if err := c.wire(ctx, 0, "0"); err != nil { // the reference
		return err
	}
	for _, rate := range c.Rates {
		if err := c.wire(ctx, d, rate); err != nil {
			return err
		}
	}
	return nil
}

// wire measures all loads with one delay and rate.
func (c *comparison) wire(ctx context.Context, delay time.Duration, rate string) error {
	if err := c.set(ctx, delay, rate); err != nil {
		return err
	}
	for _, rows := range c.Rows {
		if err := c.load(ctx, Load{Rows: rows}, delay, rate); err != nil {
			return err
		}
	}
	if c.Prompt > 0 {
		return c.load(ctx, Load{Prompt: c.Prompt}, delay, rate)
	}
	return nil
}

// set changes all links.
func (c *comparison) set(ctx context.Context, delay time.Duration, rate string) error {
	for _, h := range c.top.Hosts { // half of the delay on each of the two links of a path
		if _, err := c.net.Control(ctx, []string{"set", h.Name, "delay=" + (delay / 2).String(), "rate=" + rate}); err != nil {
			return err
		}
	}
	return nil
}

// load measures one load with all builds in turn.
func (c *comparison) load(ctx context.Context, l Load, delay time.Duration, rate string) error {
	cells := make([]Cell, len(c.clusters))
	for i, r := range c.clusters {
		cells[i] = Cell{Build: r.Name, Shape: c.Shape, Nodes: c.nodes, Load: l, Start: c.started, Delay: delay, Rate: rate, Mapping: r.mapping}
	}
	for round := range c.Rounds {
		for k := range c.clusters {
			i := k
			if round%2 == 1 {
				i = len(c.clusters) - 1 - k
			}
			if err := c.measure(ctx, c.clusters[i], &cells[i]); err != nil {
				return err
			}
		}
	}
	for i := range cells {
		x := &cells[i]
		key := fmt.Sprint(x.Build, l)
		if delay == 0 && rate == "0" {
			c.still[key] = x.Step()
		}
		x.finish(c.shape, c.still[key])
		c.Report(x.Text())
		c.cell(*x)
	}
	return nil
}

func (c *comparison) measure(ctx context.Context, r *running, x *Cell) error {
	before, err := c.net.Sample(ctx)
	if err != nil {
		return err
	}
	c.asked += 100 // no two requests have the same prompt
	var took time.Duration
	if x.Load.Prompt > 0 {
		took, err = r.read(ctx, x.Load.Prompt, c.shape.Vocab, c.asked)
	} else {
		took, err = r.decode(ctx, x.Load.Rows, decodePrompt, c.Tokens, c.shape.Vocab, c.asked)
	}
	if err != nil {
		return err
	}
	after, err := c.net.Sample(ctx)
	if err != nil {
		return err
	}
	x.Times = append(x.Times, took)
	x.bytes = append(x.bytes, after.Busiest(before))
	x.Late = max(x.Late, after.MeanLate(before))
	x.tokens = c.Tokens
	return nil
}

// decodePrompt is short: its bytes count as bytes of decode.
const decodePrompt = 4
