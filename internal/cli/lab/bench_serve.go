package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/shoal-llm/shoal/internal/bench/serve"
	"github.com/shoal-llm/shoal/internal/bench/serve/stats"
	"github.com/shoal-llm/shoal/internal/bench/serve/workload"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type benchServeCmd struct {
	launch.ServerFlags
	Name        string        `placeholder:"MODEL" help:"Name of the model on the server (default: the first that it lists)."`
	API         string        `name:"api" default:"chat" enum:"chat,completions" help:"Route to load: chat or completions."`
	Rate        []float64     `default:"0" placeholder:"N" help:"Comma-separated requests per second; each rate is measured by itself. 0 keeps --concurrency requests in flight."`
	Arrival     string        `default:"poisson" help:"Arrivals at --rate: ${arrivals}."`
	Concurrency int           `range:"1..4096" placeholder:"N" help:"Requests in flight at most (default: 8 without --rate, else unlimited)."`
	Requests    int           `default:"100" range:"1..1048576" help:"Requests to send, for each rate."`
	Lengths     string        `default:"fixed:512:128" help:"Tokens of prompts and answers: ${lengths}."`
	MaxInput    int           `name:"max-input" range:"1..1048576" placeholder:"N" help:"Cut longer prompts to this number of tokens."`
	MaxOutput   int           `name:"max-output" range:"1..1048576" placeholder:"N" help:"Cut longer answers to this number of tokens."`
	Prefix      int           `range:"0..1048576" default:"0" help:"Tokens that begin the prompts of one group, before the tokens of --lengths."`
	Groups      int           `range:"1..1048576" default:"1" help:"With --prefix: number of groups."`
	Goodput     []string      `placeholder:"LIMIT" help:"Count the requests per second that meet these limits: ${limits}."`
	Warmup      int           `default:"1" range:"0..1000" help:"Requests before the load, which do not count."`
	Seed        int64         `range:"1.." placeholder:"N" help:"Seed of arrivals, lengths and prompts (default: random and printed). A server's prefix cache may hold the prompts of an earlier run with the same seed."`
	Temperature float64       `default:"0" range:"0..2" help:"Sampling temperature."`
	EndOfText   bool          `name:"end-of-text" help:"Let answers end before their length. Otherwise each request has ignore_eos, which some servers refuse."`
	PerWord     float64       `name:"tokens-per-word" range:"0.2..20" placeholder:"N" help:"Tokens per word of the prompts (default: asked from the server in two requests)."`
	Extra       string        `placeholder:"JSON" help:"JSON object with further members of each request."`
	Timeout     time.Duration `default:"10m" range:"1ms.." help:"Time limit of one request."`
	Limit       time.Duration `default:"1h" range:"1ms.." help:"Time limit for the whole measurement."`
	Plot        string        `type:"path" placeholder:"FILE" help:"Write a plot of the distributions (SVG)."`
	JSON        bool          `name:"json" help:"Print JSON."`
}

func (c *benchServeCmd) Help() string {
	return `Sends requests to a server of the OpenAI API and measures what its users notice. The server may be
any, so that other programs are measured with the same tool.

    shoal lab serve --concurrency 16                            keep 16 requests in flight
    shoal lab serve --rate 1,2,4 --goodput ttft:500ms,tpot:50ms  arrivals at random times
    shoal lab serve --rate 4 --arrival burst:8 --lengths sharegpt
    shoal lab serve --server HOST:8000 --api-key KEY --json      another program

TTFT is the time to the first piece of the answer, ITL the time between pieces, TPOT the time per
token after the first, E2E the whole request. Exits with status 1 if a request failed.`
}

// Run measures each rate in turn. After a failure it still prints and plots the rates before it.
func (c *benchServeCmd) Run(e *ui.Env) (err error) {
	o, err := c.options()
	if err != nil {
		return err
	}
	arrivals := make([]workload.Arrivals, len(c.Rate))
	for i, rate := range c.Rate {
		if arrivals[i], err = workload.ParseArrivals(c.Arrival, rate); err != nil {
			return fmt.Errorf("--rate, --arrival: %w", err)
		}
	}
	plot, err := ui.OpenOutput(c.Plot)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	defer func() { err = errors.Join(err, plot.Close()) }()
	ctx, cancel := context.WithTimeoutCause(e.Ctx, c.Limit, fmt.Errorf("lab: not finished in %v: raise --limit", c.Limit))
	defer cancel()
	if c.Seed == 0 {
		c.Seed = 1 + rand.Int64N(1<<32)
	}
	var results []*serve.Result
	var lines []stats.Line
	var failed error
	for i := range arrivals {
		o.Load.Seed = uint64(c.Seed) + uint64(i) // a prefix cache has not seen the prompts of another rate
		o.Load.Arrivals, o.Concurrency = arrivals[i], c.Concurrency
		if arrivals[i].Rate == 0 && o.Concurrency == 0 {
			o.Concurrency = 8
		}
		r, err := c.measure(ctx, e, &o)
		if err != nil {
			failed = fmt.Errorf("lab serve: %s: %w", loadText(arrivals[i].Rate, o.Concurrency), err)
			break
		}
		results, lines = append(results, r), append(lines, stats.Line{Label: loadText(r.Rate, r.Concurrency), Summary: &r.Summary})
		if !c.JSON {
			printServe(e.Stdout, r, o.Limits)
		}
	}
	if len(results) == 0 {
		return failed
	}
	if c.JSON {
		if err := ui.PrintJSON(e.Stdout, results); err != nil {
			return errors.Join(failed, err)
		}
	}
	title := fmt.Sprintf("%s, %s, %d requests", o.Model, c.Lengths, c.Requests)
	if _, err := plot.Write([]byte(stats.SVG(title, lines))); err != nil {
		return errors.Join(failed, fmt.Errorf("--plot: %w", err))
	}
	if failed != nil {
		return failed
	}
	n := 0
	for _, r := range results {
		n += r.Summary.Requests - r.Summary.Completed
	}
	if n > 0 {
		return fmt.Errorf("lab serve: %d requests failed", n)
	}
	return nil
}

// measure measures one load and shows its progress.
func (c *benchServeCmd) measure(ctx context.Context, e *ui.Env, o *serve.Options) (*serve.Result, error) {
	if err := o.Prepare(ctx); err != nil {
		return nil, err
	}
	line := ui.NewStatusLine(e, true)
	defer line.End()
	return serve.Run(ctx, *o, func(ended int) { line.Set(fmt.Sprintf("%d of %d requests ...", ended, c.Requests)) })
}

func (c *benchServeCmd) options() (o serve.Options, err error) {
	o = serve.Options{Client: c.Client(), API: serve.API(c.API), Model: c.Name, Warmup: c.Warmup, EndOfText: c.EndOfText,
		Temperature: c.Temperature, Timeout: c.Timeout, Tokens: workload.Tokens{PerWord: c.PerWord},
		Load: workload.Spec{Requests: c.Requests, PrefixTokens: c.Prefix, PrefixGroups: c.Groups}}
	if o.Client.HTTP.Transport == nil {
		o.Client.HTTP.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	if t, ok := o.Client.HTTP.Transport.(*http.Transport); ok {
		t.MaxIdleConnsPerHost, t.MaxIdleConns = 4096, 4096 // a connection per request in flight, and none made twice
	}
	if o.Load.Lengths, err = workload.ParseLengths(c.Lengths); err != nil {
		return o, fmt.Errorf("--lengths: %w", err)
	}
	if c.MaxInput > 0 {
		o.Load.Lengths.MaxInput = c.MaxInput
	}
	if c.MaxOutput > 0 {
		o.Load.Lengths.MaxOutput = c.MaxOutput
	}
	if o.Limits, err = stats.ParseLimits(c.Goodput); err != nil {
		return o, fmt.Errorf("--goodput: %w", err)
	}
	if c.Extra != "" {
		if err := json.Unmarshal([]byte(c.Extra), &o.Extra); err != nil {
			return o, fmt.Errorf("--extra: want a JSON object: %w", err)
		}
	}
	return o, nil
}

// loadText names a load.
func loadText(rate float64, concurrency int) string {
	switch {
	case rate == 0:
		return fmt.Sprintf("%d in flight", concurrency)
	case concurrency > 0:
		return fmt.Sprintf("%g per second, at most %d in flight", rate, concurrency)
	}
	return fmt.Sprintf("%g per second", rate)
}

func printServe(w io.Writer, r *serve.Result, limits stats.Limits) {
	s := &r.Summary
	fmt.Fprintf(w, "%s at %s, %s: %s (seed %d)\n", r.Model, r.Server, r.API, loadText(r.Rate, r.Concurrency), r.Seed)
	fmt.Fprintf(w, "  %d of %d requests completed in %.1f s, %.1f in flight on average\n", s.Completed, s.Requests, s.Seconds, s.Concurrency)
	for _, f := range s.Failures {
		fmt.Fprintf(w, "  %d failed: %s\n", f.Count, f.Reason)
	}
	fmt.Fprintf(w, "  %d prompt tokens (%d cached), %d answer tokens\n", s.Input, s.Cached, s.Output)
	fmt.Fprintf(w, "  %.2f requests/s, %.1f answer tokens/s, %.1f tokens/s in all\n", s.RequestRate, s.OutputRate, s.TotalRate)
	if limits != (stats.Limits{}) {
		fmt.Fprintf(w, "  goodput %.2f requests/s (%.1f %%) within %s\n", s.Goodput, 100*s.GoodShare, limits.Text())
	}
	fmt.Fprintf(w, "  %-10s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p95", "p99", "max")
	for _, d := range []struct {
		name string
		d    *stats.Dist
	}{{"TTFT", &s.TTFT}, {"TPOT", &s.TPOT}, {"ITL", &s.ITL}, {"E2E", &s.E2E}} {
		fmt.Fprintf(w, "  %-10s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", d.name, d.d.Mean, d.d.P50, d.d.P90, d.d.P95, d.d.P99, d.d.Max)
	}
	if r.Rate > 0 && s.Late.Max > 0 {
		fmt.Fprintf(w, "  requests were sent %.1f ms late on average, at most %.1f ms\n", s.Late.Mean, s.Late.Max)
	}
}
