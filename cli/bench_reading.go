package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"shoal/bench"
	"shoal/cluster"
	"shoal/model"
	"shoal/tensor"
)

// readingFigures are what reading a prompt over processes costs; of the fastest
// prompt, in seconds.
type readingFigures struct {
	Machine    bench.Machine `json:"machine"`
	Model      string        `json:"model"`
	Quant      string        `json:"quant"`
	Mapping    string        `json:"mapping"`
	Nodes      int           `json:"nodes"`
	Prompt     int           `json:"prompt_tokens"`
	Steps      uint64        `json:"steps"`
	Prompts    []float64     `json:"prompts_s"` // of each prompt
	TokensPerS float64       `json:"tokens_per_s"`
	Seconds    float64       `json:"seconds"`
	Compute    float64       `json:"compute_s"`          // of the slowest node of each step
	Wait       float64       `json:"wait_s"`             // for collectives, of that node
	Control    float64       `json:"control_s"`          // the rest: step messages, scheduling
	Processor  float64       `json:"processor_s"`        // of all node processes together; 0: not known
	Wire       uint64        `json:"wire_bytes"`         // sent by all nodes, a broadcast counted once
	Arithmetic float64       `json:"arithmetic_floor_s"` // matrices and attention at the peaks of all cores
	Bus        float64       `json:"bus_floor_s"`        // as many bytes sent as all-reduces of a chunk, over a mesh in one process
	BusRate    float64       `json:"bus_bytes_per_s"`
	Ceiling    bench.Ceiling `json:"ceiling"`
}

// reading reads prompts, one at a time, and measures the machine's ceilings
// when the nodes are idle again.
func (c *benchClusterCmd) reading(ctx context.Context, e *env, l *local) error {
	co := l.coordinator
	cfg := co.Checkpoint().Config
	f := &readingFigures{Machine: bench.ThisMachine(), Model: c.Model, Quant: c.Quant, Mapping: co.Cluster().Mapping, Nodes: c.Nodes, Prompt: c.Prompt}
	for i := range c.Repeat {
		if err := c.readOne(ctx, l, i, f); err != nil {
			return err
		}
	}
	if err := c.floors(ctx, &cfg, co.ServeConfig().Chunk, f); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(e.stdout, f)
	}
	fmt.Fprintf(e.stdout, "%s, %d cores, %s, load %s\n", f.Machine.CPU, f.Machine.Cores, f.Machine.Go, f.Machine.Load)
	fmt.Fprintf(e.stdout, "%s %s over %d processes, mapping %s, prompts of %d in %d steps: %.1f tokens/s\n", f.Model, f.Quant, f.Nodes, f.Mapping, f.Prompt, f.Steps, f.TokensPerS)
	fmt.Fprintf(e.stdout, "  the fastest: %.3f s = compute %.3f (slowest node) + wait for collectives %.3f + control %.3f; processor time of the nodes %.2f s; %.1f MB sent\n",
		f.Seconds, f.Compute, f.Wait, f.Control, f.Processor, float64(f.Wire)/1e6)
	fmt.Fprintf(e.stdout, "  floor: %.3f s of arithmetic on %d cores (%.0f VNNI GOP/s, %.0f FMA GFLOP/s); %.3f s of bus (%.0f MB/s sent, nothing else running)\n",
		f.Arithmetic, f.Ceiling.Threads, f.Ceiling.VNNI, f.Ceiling.FMA, f.Bus, f.BusRate/1e6)
	return nil
}

// readOne reads the i-th prompt, and keeps its figures if it was the fastest.
func (c *benchClusterCmd) readOne(ctx context.Context, l *local, i int, f *readingFigures) error {
	co := l.coordinator
	busy, from, began := processors(l.children), co.StepTotals(), time.Now()
	events, err := co.Submit(ctx, benchRequest(i, c.Prompt, 1, co.Checkpoint().Config.Vocab))
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
	f.Seconds, f.TokensPerS, f.Steps, f.Wire = took, float64(c.Prompt)/took, d.Steps, d.Wire
	f.Compute, f.Wait, f.Control = d.Compute.Seconds(), d.Wait.Seconds(), took-(d.Compute+d.Wait).Seconds()
	f.Processor = (processors(l.children) - busy).Seconds()
	return nil
}

// processors is the processor time of the node processes so far.
func processors(c *cluster.Children) (sum time.Duration) {
	for _, pid := range c.PIDs() {
		sum += bench.ProcessTime(pid)
	}
	return sum
}

// floors measures what this machine can do at most.
func (c *benchClusterCmd) floors(ctx context.Context, cfg *model.Config, chunk int, f *readingFigures) error {
	weights, err := tensor.ParseDType(c.Quant)
	if err != nil {
		return err
	}
	kv, err := tensor.ParseDType(c.KVType)
	if err != nil {
		return err
	}
	pool := tensor.NewPool(runtime.GOMAXPROCS(0))
	defer pool.Close()
	if f.Ceiling, err = bench.MeasureCeiling(pool, 400*time.Millisecond); err != nil {
		return err
	}
	f.Arithmetic = bench.CostsOf(cfg, weights, kv).PrefillFloor(c.Prompt, weights, f.Ceiling).Seconds()
	if c.Nodes == 1 {
		return nil
	}
	if f.BusRate, err = bench.BusRate(ctx, c.Nodes, 4*cfg.Hidden*min(chunk, c.Prompt)); err == nil {
		f.Bus = float64(f.Wire) / f.BusRate
	}
	return err
}
