package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	cudaprobe "github.com/shoal-llm/shoal/internal/engine/cuda/probe"
)

// stepLine is a line of the child's output: a step that begins, or its result.
type stepLine struct {
	Begin  string            `json:"begin,omitempty"`
	Step   int               `json:"step"`
	Result *cudaprobe.Result `json:"result,omitempty"`
}

// steps does the steps of --full in this process.
func (c *gpuCmd) steps(w io.Writer) error {
	out := json.NewEncoder(w)
	var failed error
	line := func(l stepLine) { failed = errors.Join(failed, out.Encode(l)) }
	err := cudaprobe.Full(c.From, c.Only,
		func(step int, name string) { line(stepLine{Begin: name, Step: step}) },
		func(r cudaprobe.Result) { line(stepLine{Step: r.Step, Result: &r}) })
	return errors.Join(err, failed)
}

// full does all steps in child processes, prints their results, and fails if a kernel gave other
// bits than the processor.
func (c *gpuCmd) full(e *ui.Env) error {
	failed, done := 0, 0
	read := 0.0 // bytes per second of the first measurement, which reads memory
	for from := 0; from < cudaprobe.Steps(); {
		next, err := c.child(e.Ctx, from, func(r cudaprobe.Result) {
			done++
			if r.Problem != "" {
				failed++
			}
			if r.Speed != nil && read == 0 {
				read, _ = r.Speed.PerSecond()
			}
			printStep(e.Stdout, r, read)
		})
		if err != nil {
			return err
		}
		from = next
	}
	fmt.Fprintf(e.Stdout, "%d steps, %d failed\n", done, failed)
	if failed > 0 {
		return ui.Exit(1)
	}
	return nil
}

// child does steps from one on in a child process and returns the step to continue with. A step that
// ends the process, or lasts longer than the timeout, has failed.
func (c *gpuCmd) child(ctx context.Context, from int, report func(cudaprobe.Result)) (next int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	child := exec.CommandContext(ctx, self, "gpu", "--full", "--child", "--from", strconv.Itoa(from), "--only", c.Only)
	child.WaitDelay = time.Second
	var complaints bytes.Buffer
	child.Stderr = &complaints
	out, err := child.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := child.Start(); err != nil {
		return 0, err
	}
	hung := time.AfterFunc(c.Timeout, func() { cancel(fmt.Errorf("no result within %s", c.Timeout)) })
	defer hung.Stop()
	current, next := stepLine{Step: -1}, cudaprobe.Steps()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l stepLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return 0, errors.Join(err, child.Wait())
		}
		hung.Reset(c.Timeout)
		current = l
		if l.Result != nil {
			report(*l.Result)
			if l.Result.Ended {
				next = l.Step + 1
			}
		}
	}
	ended := errors.Join(lines.Err(), child.Wait())
	switch {
	case current.Result == nil && current.Step >= 0: // within a step
		reason := errors.Join(context.Cause(ctx), ended, launch.TextError(complaints.String()))
		report(cudaprobe.Result{Step: current.Step, Name: current.Begin, Problem: fmt.Sprintf("ended its process: %v", reason)})
		return current.Step + 1, nil
	case ended != nil && (current.Result == nil || !current.Result.Ended):
		return 0, errors.Join(fmt.Errorf("the process that loads the driver ended: %w", ended), launch.TextError(complaints.String()))
	}
	return next, nil
}

// printTimes prints the kernels of a step of a model.
func printTimes(w io.Writer, t *cudaprobe.Times) {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	fmt.Fprintf(w, "  %d layers; memory is read with %.0f GB/s, so the step's %.3f GB take %.0f us\n",
		t.Layers, t.Read/1e9, float64(t.Bytes)/1e9, float64(t.Bytes)/t.Read*1e6)
	fmt.Fprintf(w, "  %-24s %-20s %8s %9s %9s %10s %7s\n", "for", "kernel", "launches", "alone us", "adds us", "MB", "of read")
	for _, k := range t.Kernels {
		share := float64(k.Bytes) / k.Alone.Seconds() / t.Read
		fmt.Fprintf(w, "  %-24s %-20s %8d %9.2f %9.2f %10.2f %5.0f %%\n",
			k.Stage, k.Kernel, k.Launches, us(k.Alone), us(k.Within), float64(k.Bytes)/1e6, 100*share)
	}
	share := float64(t.Bytes) / t.Whole.Seconds() / t.Read
	fmt.Fprintf(w, "  the step %.0f us, %.0f %% of the read; all kernels alone %.0f us\n", us(t.Whole), 100*share, us(t.Sum()))
}

func printStep(w io.Writer, r cudaprobe.Result, read float64) {
	verdict := "ok"
	if r.Problem != "" {
		verdict = r.Problem
	}
	if s := r.Speed; s != nil && r.Problem == "" {
		b, ops := s.PerSecond()
		verdict = fmt.Sprintf("%9.2f us %8.1f GB/s %4.0f %%", float64(s.Time.Nanoseconds())/1e3, b/1e9, 100*b/read)
		if s.Ops > 0 {
			verdict += fmt.Sprintf(" %7.2f TOPS", ops/1e12)
		}
	}
	fmt.Fprintf(w, "%-64s %6.2f s  %s\n", r.Name, r.Took.Seconds(), verdict)
	if r.Times != nil && r.Problem == "" {
		printTimes(w, r.Times)
	}
}
