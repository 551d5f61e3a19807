package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/topology"
)

// ProcessOptions is a running cluster of node processes and the load to measure.
type ProcessOptions struct {
	Coordinator *cluster.Coordinator
	PIDs        func() map[string]int // of the nodes, by id
	Model       string
	Weights, KV string
	Nodes       int
	Threads     topology.Threads // per node
	Batch       int              // sequences decoded together,
	Context     int              // each with a prompt of this many tokens,
	Tokens      int              // and this many decoded tokens
	Prompt      int              // or: tokens of prompts that are read one at a time,
	Repeat      int              // and their number
	Cached      bool             // prompts are kept in the prefix cache
	First       int              // number of the first prompt; other numbers have other texts
}

// request returns the i-th request.
func (o *ProcessOptions) request(i, prompt, output int) *engine.Request {
	r := request(o.First+i, prompt, output, o.Coordinator.Checkpoint().Config.Vocab)
	r.NoCache = !o.Cached
	return r
}

// Processes is the cost of a decode step over node processes.
type Processes struct {
	Machine      Machine `json:"machine"`
	Model        string  `json:"model"`
	Quant        string  `json:"quant"`
	Mapping      string  `json:"mapping"`
	Nodes        int     `json:"nodes"`
	Threads      int     `json:"threads"` // per node, in most steps
	Batch        int     `json:"batch"`
	Context      int     `json:"context"`
	Steps        uint64  `json:"steps"`
	TokensPerS   float64 `json:"tokens_per_s"`
	StepMicros   float64 `json:"step_us"`
	Compute      float64 `json:"compute_us"` // of the slowest node
	Wait         float64 `json:"wait_us"`    // waiting for collectives, of that node
	Control      float64 `json:"control_us"` // the rest: step messages, scheduling
	WirePerToken float64 `json:"wire_bytes_per_token"`
	Shared       Threads `json:"thread_time"` // of the slowest node
}

// DecodeOfProcesses decodes a batch. It measures the steps from the second token of the last
// sequence on. The other sequences started earlier and decode until that one is complete.
func DecodeOfProcesses(ctx context.Context, o ProcessOptions) (*Processes, error) {
	co, start := o.Coordinator, time.Now()
	if err := o.settle(ctx); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer func() { stop(); streams.Wait() }()
	var took time.Duration
	var d cluster.StepTotals
	var begun atomic.Int32
	done := make(chan error, o.Batch+1) // the first value counts
	for i := range o.Batch {
		events, err := co.Submit(running, o.request(i, o.Context, o.longest()))
		if err != nil {
			return nil, err
		}
		streams.Go(func() {
			var from cluster.StepTotals
			var began time.Time
			tokens, last := 0, false
			for ev := range events {
				if ev.Err != nil {
					done <- ev.Err
					return
				}
				switch tokens++; {
				case tokens == 2 && begun.Add(1) == int32(o.Batch):
					last, from, began = true, co.StepTotals(), time.Now()
				case tokens > o.Tokens && last:
					// The tokens of a plan arrive together: a few are perhaps all of one plan, with no step between them.
					if took, d = time.Since(began), co.StepTotals().Sub(from); d.Steps > 0 {
						last = false
						done <- nil
					}
				}
			}
			if err := context.Cause(ctx); err != nil {
				done <- err
				return
			}
			done <- fmt.Errorf("bench: a sequence ended after %d tokens, before all had %d together: the model's positions are used up, take a "+
				"smaller batch or context", tokens, o.Tokens)
		})
	}
	if err := <-done; err != nil {
		return nil, err
	}
	if err := steady(co.Events(0), start, d, o.Batch); err != nil {
		return nil, err
	}
	per := func(t time.Duration) float64 { return float64(t.Microseconds()) / float64(max(d.Steps, 1)) }
	tokens := float64(o.Batch) * float64(d.Steps) // less than all received tokens, because those of a plan arrive together
	return &Processes{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes,
		Threads: o.Threads.Shifted(int(math.Round(float64(d.ThreadShift) / float64(max(d.Steps, 1))))), Batch: o.Batch, Context: o.Context,
		Steps: d.Steps, TokensPerS: tokens / took.Seconds(), StepMicros: per(d.Wall), Compute: per(d.Compute), Wait: per(d.Wait),
		Control: per(d.Wall - d.Compute - d.Wait), WirePerToken: float64(d.Wire) / (float64(o.Batch) * float64(max(d.Steps, 1))),
		Shared: threadsOf(d.Threads, int(d.Steps), d.Compute)}, nil
}

// steady returns an error unless every step had all sequences of a batch and the cluster did not
// change.
func steady(events []wire.ClusterEvent, since time.Time, d cluster.StepTotals, batch int) error {
	if err := undisturbed(events, since); err != nil {
		return err
	}
	if rows := batch * int(d.Steps); math.Abs(float64(int(d.Rows)-rows)) > float64(rows/10+batch*atEnds) {
		return fmt.Errorf("bench: %d steps had %d rows, not %d: not all sequences run together", d.Steps, d.Rows, rows)
	}
	return nil
}

// undisturbed returns an error if the cluster changed.
func undisturbed(events []wire.ClusterEvent, since time.Time) error {
	for _, e := range events {
		if e.Cost != nil && e.At.After(since) {
			return fmt.Errorf("bench: the cluster changed during the measurement: %s %s (%s)", e.Kind, e.Node, e.Reason)
		}
	}
	return nil
}

// longest returns the maximum number of tokens that a sequence generates: the measured ones, those of a plan, and
// those while the prompts of others are read.
func (o *ProcessOptions) longest() int {
	chunk := max(1, o.Coordinator.Chunk())
	reads := 2 * (o.Batch - 1) * (o.Context + chunk - 1) / chunk
	return min(o.Tokens+2+mostPasses+reads, o.Coordinator.Checkpoint().Config.MaxPositions-o.Context)
}

// mostPasses is the largest number of tokens of a sequence in a plan.
const mostPasses = 16

// settle decodes this number of sequences for a while, until their thread count is chosen.
func (o *ProcessOptions) settle(ctx context.Context) error {
	return o.settled(ctx, settleTimes, func() error { return nil })
}

// settled is settle and calls then while the sequences decode. It replaces sequences that end, up
// to times. Short contexts have a separate thread count.
func (o *ProcessOptions) settled(ctx context.Context, times int, then func() error) error {
	began, settled := time.Now(), false
	for range times {
		var failed error
		if err := o.decode(ctx, func() bool {
			s := o.Coordinator.Cluster()
			settled = time.Since(began) > settleTime && s.BatchSequences == o.Batch && s.BatchRows == o.Batch && !s.TryingThreads
			if settled {
				failed = then()
			}
			return settled
		}); err != nil || settled {
			return cmp.Or(err, failed)
		}
	}
	return nil
}

// decode decodes this number of sequences until they are done, or until enough returns true.
func (o *ProcessOptions) decode(ctx context.Context, enough func() bool) error {
	c := o.Coordinator.Checkpoint().Config
	running, stop := context.WithCancel(ctx)
	var streams sync.WaitGroup
	defer func() { stop(); streams.Wait() }()
	var left atomic.Int64
	prompt := settlePrompt
	if o.Context >= settleLong {
		prompt = o.Context
	}
	for i := range o.Batch {
		s, err := o.Coordinator.Submit(running, o.request(i, prompt, min(settleTokens, c.MaxPositions-prompt)))
		if err != nil {
			return err
		}
		left.Add(1)
		streams.Go(func() {
			for range s {
			}
			left.Add(-1)
		})
	}
	for left.Load() > 0 && !enough() {
		time.Sleep(settleLook)
	}
	return context.Cause(ctx)
}

const (
	settlePrompt = 16
	settleLong   = 1024
	settleTokens = 768 // short contexts, and
	settleTimes  = 4   // more steps than trials need
	settleTime   = 100 * time.Millisecond
	settleLook   = 10 * time.Millisecond
	atEnds       = 16 // maximum number of steps of an unfinished plan
)

// ProcessPrompts is the cost of reading a prompt over node processes: the fastest prompt, in
// seconds.
type ProcessPrompts struct {
	Machine    Machine   `json:"machine"`
	Model      string    `json:"model"`
	Quant      string    `json:"quant"`
	Mapping    string    `json:"mapping"`
	Nodes      int       `json:"nodes"`
	Threads    int       `json:"threads"` // per node
	Chunk      int       `json:"chunk"`   // tokens of a prompt per step
	Prompt     int       `json:"prompt_tokens"`
	Steps      uint64    `json:"steps"`
	Prompts    []float64 `json:"prompts_s"` // by prompt
	TokensPerS float64   `json:"tokens_per_s"`
	Seconds    float64   `json:"seconds"`
	Compute    float64   `json:"compute_s"`          // slowest node of each step
	Wait       float64   `json:"wait_s"`             // waiting for collectives, of that node
	Control    float64   `json:"control_s"`          // the rest: step messages, scheduling
	Processor  float64   `json:"processor_s"`        // CPU time of all node processes; 0: unknown
	Wire       uint64    `json:"wire_bytes"`         // sent by all nodes; a broadcast counts once
	Arithmetic float64   `json:"arithmetic_floor_s"` // matrices and attention at the peaks of all cores
	Bus        float64   `json:"bus_floor_s"`        // time of all-reduces of a chunk with the same number of bytes, over a mesh in one process
	BusRate    float64   `json:"bus_bytes_per_s"`
	Ceiling    Ceiling   `json:"ceiling"`
	Shared     Threads   `json:"thread_time"` // slowest node of each step
}

// PromptsOfProcesses reads prompts one at a time, and measures the machine's ceilings when the
// nodes are idle again.
func PromptsOfProcesses(ctx context.Context, o ProcessOptions) (*ProcessPrompts, error) {
	f, err := ReadPrompts(ctx, o)
	if err != nil {
		return nil, err
	}
	return f, o.floors(ctx, &o.Coordinator.Checkpoint().Config, o.Coordinator.Chunk(), f)
}

// ReadPrompts reads prompts one at a time.
func ReadPrompts(ctx context.Context, o ProcessOptions) (*ProcessPrompts, error) {
	co := o.Coordinator
	f := &ProcessPrompts{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes,
		Threads: o.Threads.Max, Chunk: co.Chunk(), Prompt: o.Prompt}
	for i := range o.Repeat {
		if err := o.readOne(ctx, i, f); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// readOne reads the i-th prompt and keeps its figures if it is the fastest.
func (o *ProcessOptions) readOne(ctx context.Context, i int, f *ProcessPrompts) error {
	co := o.Coordinator
	busy, from, began := o.processors(), co.StepTotals(), time.Now()
	events, err := co.Submit(ctx, o.request(i, o.Prompt, 1))
	if err != nil {
		return err
	}
	tokens := 0
	for ev := range events {
		if ev.Err != nil {
			return ev.Err
		}
		tokens++
	}
	took, d := time.Since(began).Seconds(), co.StepTotals().Sub(from)
	if tokens == 0 {
		return errors.Join(errors.New("bench: a prompt ended without a token"), context.Cause(ctx))
	}
	f.Prompts = append(f.Prompts, took)
	if f.Seconds > 0 && took >= f.Seconds {
		return nil
	}
	f.Seconds, f.TokensPerS, f.Steps, f.Wire = took, float64(o.Prompt)/took, d.Steps, d.Wire
	f.Compute, f.Wait, f.Control = d.Compute.Seconds(), d.Wait.Seconds(), took-(d.Compute+d.Wait).Seconds()
	f.Processor = (o.processors() - busy).Seconds()
	f.Shared = threadsOf(d.Threads, 1, d.Compute)
	return nil
}

// processors returns the CPU time of the node processes so far.
func (o *ProcessOptions) processors() (sum time.Duration) {
	for _, pid := range o.PIDs() {
		sum += ProcessTime(pid)
	}
	return sum
}

// floors measures this machine's ceilings.
func (o *ProcessOptions) floors(ctx context.Context, cfg *model.Config, chunk int, f *ProcessPrompts) error {
	weights, err := tensor.ParseDType(o.Weights)
	if err != nil {
		return err
	}
	kv, err := tensor.ParseDType(o.KV)
	if err != nil {
		return err
	}
	pool := tensor.NewPool(runtime.GOMAXPROCS(0))
	defer pool.Close()
	if f.Ceiling, err = MeasureCeiling(pool, 400*time.Millisecond); err != nil {
		return err
	}
	f.Arithmetic = CostsOf(cfg, weights, kv).PrefillFloor(o.Prompt, weights, f.Ceiling).Seconds()
	if o.Nodes == 1 {
		return nil
	}
	if f.BusRate, err = BusRate(ctx, o.Nodes, 4*cfg.Hidden*min(chunk, o.Prompt)); err == nil {
		f.Bus = float64(f.Wire) / f.BusRate
	}
	return err
}
