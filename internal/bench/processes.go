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

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/topology"
)

// ProcessOptions are a cluster of node processes that is up, and what is asked of it.
type ProcessOptions struct {
	Coordinator *cluster.Coordinator
	PIDs        func() map[string]int // of the nodes, by id
	Model       string
	Weights, KV string
	Nodes       int
	Threads     topology.Threads // of each
	Batch       int              // sequences decoded together,
	Context     int              // of prompts of so many tokens,
	Tokens      int              // and so many decoded of each
	Prompt      int              // or: tokens of the prompts that are read one at a time,
	Repeat      int              // and how many
}

// Processes is what a decode step over node processes costs.
type Processes struct {
	Machine      Machine `json:"machine"`
	Model        string  `json:"model"`
	Quant        string  `json:"quant"`
	Mapping      string  `json:"mapping"`
	Nodes        int     `json:"nodes"`
	Threads      int     `json:"threads"` // of each, in most steps
	Batch        int     `json:"batch"`
	Context      int     `json:"context"`
	Steps        uint64  `json:"steps"`
	TokensPerS   float64 `json:"tokens_per_s"`
	StepMicros   float64 `json:"step_us"`
	Compute      float64 `json:"compute_us"` // of the slowest node
	Wait         float64 `json:"wait_us"`    // for collectives, of that node
	Control      float64 `json:"control_us"` // the rest: step messages, scheduling
	WirePerToken float64 `json:"wire_bytes_per_token"`
	Shared       Threads `json:"thread_time"` // of the slowest node
}

// DecodeOfProcesses decodes a batch and takes the steps from the second token of the sequence that
// is last to have one. The others were read before it, and decode on until it has all of its own.
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
	done := make(chan error, o.Batch+1) // the first counts
	for i := range o.Batch {
		events, err := co.Submit(running, request(i, o.Context, o.longest(), co.Checkpoint().Config.Vocab))
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
				case tokens == o.Tokens+1 && last:
					took, d = time.Since(began), co.StepTotals().Sub(from)
					done <- nil
				}
			}
			if err := context.Cause(ctx); err != nil {
				done <- err
				return
			}
			done <- fmt.Errorf("bench: a sequence ended after %d tokens, before all had %d together: the model's positions are used up, take a smaller batch or context", tokens, o.Tokens)
		})
	}
	if err := <-done; err != nil {
		return nil, err
	}
	if err := steady(co.Events(0), start, d, o.Batch); err != nil {
		return nil, err
	}
	per := func(t time.Duration) float64 { return float64(t.Microseconds()) / float64(max(d.Steps, 1)) }
	tokens := float64(o.Batch) * float64(d.Steps) // not all that were received: those of a plan come together
	return &Processes{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes, Threads: o.Threads.Halved(int(math.Round(float64(d.ThreadShift) / float64(max(d.Steps, 1))))), Batch: o.Batch, Context: o.Context,
		Steps: d.Steps, TokensPerS: tokens / took.Seconds(), StepMicros: per(d.Wall), Compute: per(d.Compute), Wait: per(d.Wait),
		Control: per(d.Wall - d.Compute - d.Wait), WirePerToken: float64(d.Wire) / (float64(o.Batch) * float64(max(d.Steps, 1))),
		Shared: threadsOf(d.Threads, int(d.Steps), d.Compute)}, nil
}

// steady says whether steps had all sequences of a batch, in a cluster that stayed as it was.
func steady(events []api.ClusterEvent, since time.Time, d cluster.StepTotals, batch int) error {
	if err := undisturbed(events, since); err != nil {
		return err
	}
	if rows := batch * int(d.Steps); math.Abs(float64(int(d.Rows)-rows)) > float64(rows/10+batch*atEnds) {
		return fmt.Errorf("bench: %d steps had %d rows, not %d: not all sequences run together", d.Steps, d.Rows, rows)
	}
	return nil
}

// undisturbed says whether a cluster stayed as it was.
func undisturbed(events []api.ClusterEvent, since time.Time) error {
	for _, e := range events {
		if e.Cost != nil && e.At.After(since) {
			return fmt.Errorf("bench: the cluster did not stay as it was: %s %s (%s)", e.Kind, e.Node, e.Reason)
		}
	}
	return nil
}

// longest is how many tokens a sequence generates at most: those that are measured, and those that
// it has while the prompts of others are read.
func (o *ProcessOptions) longest() int {
	chunk := max(1, o.Coordinator.Chunk())
	reads := 2 * (o.Batch - 1) * (o.Context + chunk - 1) / chunk
	return min(o.Tokens+2+reads, o.Coordinator.Checkpoint().Config.MaxPositions-o.Context)
}

// settle decodes as many sequences for a while, and until the number of threads for them is
// chosen.
func (o *ProcessOptions) settle(ctx context.Context) error {
	return o.settled(ctx, settleTimes, func() error { return nil })
}

// settled is settle, and calls then while they decode. Sequences that end before are followed by
// others, so many times. Those that look back on little have a number of their own.
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

// decode decodes as many sequences until they are done, or enough says so.
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
		s, err := o.Coordinator.Submit(running, request(i, prompt, min(settleTokens, c.MaxPositions-prompt), c.Vocab))
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
	settleTokens = 768 // all of them look back on little, and
	settleTimes  = 4   // more than trials take
	settleTime   = 100 * time.Millisecond
	settleLook   = 10 * time.Millisecond
	atEnds       = 16 // steps of a plan that has begun but is not done, at most
)

// ProcessPrompts is what reading a prompt over node processes costs; of the fastest
// prompt, in seconds.
type ProcessPrompts struct {
	Machine    Machine   `json:"machine"`
	Model      string    `json:"model"`
	Quant      string    `json:"quant"`
	Mapping    string    `json:"mapping"`
	Nodes      int       `json:"nodes"`
	Threads    int       `json:"threads"` // of each
	Chunk      int       `json:"chunk"`   // tokens of a prompt in a step
	Prompt     int       `json:"prompt_tokens"`
	Steps      uint64    `json:"steps"`
	Prompts    []float64 `json:"prompts_s"` // of each prompt
	TokensPerS float64   `json:"tokens_per_s"`
	Seconds    float64   `json:"seconds"`
	Compute    float64   `json:"compute_s"`          // of the slowest node of each step
	Wait       float64   `json:"wait_s"`             // for collectives, of that node
	Control    float64   `json:"control_s"`          // the rest: step messages, scheduling
	Processor  float64   `json:"processor_s"`        // of all node processes together; 0: not known
	Wire       uint64    `json:"wire_bytes"`         // sent by all nodes, a broadcast counted once
	Arithmetic float64   `json:"arithmetic_floor_s"` // matrices and attention at the peaks of all cores
	Bus        float64   `json:"bus_floor_s"`        // as many bytes sent as all-reduces of a chunk, over a mesh in one process
	BusRate    float64   `json:"bus_bytes_per_s"`
	Ceiling    Ceiling   `json:"ceiling"`
	Shared     Threads   `json:"thread_time"` // of the slowest node of each step
}

// PromptsOfProcesses reads prompts, one at a time, and measures the machine's ceilings
// when the nodes are idle again.
func PromptsOfProcesses(ctx context.Context, o ProcessOptions) (*ProcessPrompts, error) {
	co := o.Coordinator
	cfg := co.Checkpoint().Config
	f := &ProcessPrompts{Machine: ThisMachine(), Model: o.Model, Quant: o.Weights, Mapping: co.Cluster().Mapping, Nodes: o.Nodes, Threads: o.Threads.Most, Chunk: co.Chunk(), Prompt: o.Prompt}
	for i := range o.Repeat {
		if err := o.readOne(ctx, i, f); err != nil {
			return nil, err
		}
	}
	return f, o.floors(ctx, &cfg, co.Chunk(), f)
}

// readOne reads the i-th prompt, and keeps its figures if it was the fastest.
func (o *ProcessOptions) readOne(ctx context.Context, i int, f *ProcessPrompts) error {
	co := o.Coordinator
	busy, from, began := o.processors(), co.StepTotals(), time.Now()
	events, err := co.Submit(ctx, request(i, o.Prompt, 1, co.Checkpoint().Config.Vocab))
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

// processors is the processor time of the node processes so far.
func (o *ProcessOptions) processors() (sum time.Duration) {
	for _, pid := range o.PIDs() {
		sum += ProcessTime(pid)
	}
	return sum
}

// floors measures what this machine can do at most.
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
