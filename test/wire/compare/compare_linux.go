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
	Shapes  []string
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
	Work    string        // folder for the models
	Start   time.Duration // limit for a cluster's start
	Report  func(string)
}

// Run measures all cells and passes each to cell at once. Every model and number of nodes gets an equal part of
// the time that is left until the deadline of ctx. A fault ends only the measurements of its clusters.
func Run(ctx context.Context, o Options, cell func(Cell)) (failed error) {
	var shapes []Shape
	for _, name := range o.Shapes {
		s, err := ShapeOf(name)
		if err != nil {
			return err
		}
		shapes = append(shapes, s)
	}
	left := len(shapes) * len(o.Nodes)
	for i, s := range shapes {
		model, err := os.MkdirTemp(o.Work, "wire-model-")
		if err != nil {
			return fmt.Errorf("compare: %w", err)
		}
		written := false
		for _, n := range o.Nodes {
			part, cancel := partOf(ctx, left)
			left--
			c := &comparison{Options: o, shape: s, name: o.Shapes[i], model: filepath.Join(model, "model"), nodes: n, cell: cell}
			if !written {
				o.Report("writing the model " + c.name)
				err, written = s.Write(c.model), true
			}
			if err == nil {
				err = c.run(part)
			}
			if part.Err() != nil {
				o.Report(fmt.Sprintf("%s on %d nodes: stopped: %v", c.name, n, context.Cause(part)))
			} else if err != nil {
				o.Report(fmt.Sprintf("%s on %d nodes: %v", c.name, n, err))
				failed = errors.Join(failed, fmt.Errorf("%s on %d nodes: %w", c.name, n, err))
			}
			cancel()
			if ctx.Err() != nil {
				break
			}
		}
		if err := os.RemoveAll(model); err != nil {
			failed = errors.Join(failed, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}

// partOf returns a context that ends after 1/parts of the time until the deadline of ctx.
func partOf(ctx context.Context, parts int) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, time.Until(end)/time.Duration(parts), errors.New("its part of the time is over"))
}

// comparison measures all builds with one model and number of nodes.
type comparison struct {
	Options
	shape    Shape
	name     string // of the shape
	model    string
	nodes    int
	cell     func(Cell)
	net      *network.Network
	top      *topology.Topology
	clusters []*running
	asked    uint64
	still    map[string]time.Duration // step without delay, by build and load
	took     map[Load]time.Duration   // of the newest measurement with all builds
}

// run starts one cluster of each build on the same hosts and sends requests to them in turn, so that load on
// the machine slows all of them equally. The clusters start on the first network, for which they choose their
// mapping.
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
	nets := networks(c.Delays, c.Rates)
	if err := c.set(ctx, nets[0]); err != nil {
		return err
	}
	defer func() {
		for _, r := range c.clusters {
			err = errors.Join(err, r.stop())
		}
	}()
	if err := c.start(ctx); err != nil {
		return err
	}
	c.still, c.took = map[string]time.Duration{}, map[Load]time.Duration{}
	var failed error
	for _, n := range append([]wireOf{still}, nets...) {
		if err := c.set(ctx, n); err != nil {
			return err
		}
		for _, l := range c.loads() {
			if end, ok := ctx.Deadline(); ok && time.Until(end) < c.took[l] {
				continue // a shorter load may still fit
			}
			if err := c.load(ctx, l, n); err != nil {
				if ctx.Err() != nil {
					return err
				}
				c.Report(fmt.Sprintf("%s on %d nodes, %v: %v", c.name, c.nodes, l, err))
				failed = errors.Join(failed, err)
			}
		}
	}
	return failed
}

// start starts the clusters and waits until they serve.
func (c *comparison) start(ctx context.Context) error {
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
	return nil
}

// loads lists the loads that are measured on every network.
func (c *comparison) loads() (out []Load) {
	for _, rows := range c.Rows {
		out = append(out, Load{Rows: rows})
	}
	if c.Prompt > 0 {
		out = append(out, Load{Prompt: c.Prompt})
	}
	return out
}

// set changes all links.
func (c *comparison) set(ctx context.Context, n wireOf) error {
	for _, h := range c.top.Hosts { // half of the delay on each of the two links of a path
		if _, err := c.net.Control(ctx, []string{"set", h.Name, "delay=" + (n.delay / 2).String(), "rate=" + n.rate}); err != nil {
			return err
		}
	}
	return nil
}

// load measures one load with all builds in turn.
func (c *comparison) load(ctx context.Context, l Load, n wireOf) error {
	began := time.Now()
	cells := make([]Cell, len(c.clusters))
	for i, r := range c.clusters {
		cells[i] = Cell{Build: r.Name, Shape: c.name, Nodes: c.nodes, Load: l, Delay: n.delay, Rate: n.rate, Mapping: r.mapping}
	}
	if n == still { // a cluster's first step of a kind is slower
		for i, r := range c.clusters {
			if err := c.measure(ctx, r, &Cell{Load: cells[i].Load}); err != nil {
				return err
			}
		}
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
	c.took[l] = time.Since(began)
	for i := range cells {
		x := &cells[i]
		key := fmt.Sprint(x.Build, l)
		if n == still {
			c.still[key] = x.Step()
		}
		reference, ok := c.still[key]
		if !ok {
			return errors.New("compare: the measurement without delay failed")
		}
		x.finish(c.shape, reference)
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
