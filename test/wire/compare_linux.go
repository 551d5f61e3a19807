package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/compare"
)

type compareCmd struct {
	Builds  []string        `arg:"" placeholder:"NAME=PROGRAM" help:"Programs to measure in turn, the baseline first."`
	Shapes  []string        `default:"1b" help:"Sizes of the model, with random weights: tiny, 160m, 1b, 8b; 8b:8 has 8 layers."`
	Nodes   []int           `default:"2,4" help:"Numbers of nodes."`
	Delays  []time.Duration `default:"250us,1ms,100us" help:"One-way delays between two hosts. The clusters start with the first one, for which they choose their mapping."`
	Rates   []string        `default:"1gbit,10gbit" help:"Rates of the link of each host; 0 is unlimited."`
	Rows    []int           `default:"1,16" help:"Sequences that decode together."`
	Prompt  int             `default:"4096" help:"Tokens of the prompt; 0 measures none."`
	Tokens  int             `default:"48" help:"Tokens to decode in each measurement."`
	Rounds  int             `default:"2" help:"Measurements of each cell and build."`
	Quant   string          `default:"q8_0" help:"Type of the weights in memory."`
	Memory  string          `name:"kv-memory" default:"1GiB" help:"Memory of the caches of each node."`
	Threads int             `help:"Compute threads of each node (default: all processors but one, divided evenly)."`
	MTU     int             `name:"mtu" default:"9000" help:"Largest packet, in bytes."`
	Work    string          `type:"path" help:"Folder for the models (default: that of temporary files)."`
	Seconds int             `default:"3600" help:"Stop after this number of seconds and report the measurements so far. Each shape and number of nodes gets an equal part."`
	Out     string          `type:"path" default:"." help:"Folder for wire.md and wire.json, which are written after every cell."`
}

func (c *compareCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(c.Seconds)*time.Second, fmt.Errorf("--seconds %d have passed", c.Seconds))
	defer cancel()
	o := compare.Options{Shapes: c.Shapes, Nodes: c.Nodes, Delays: c.Delays, Rates: c.Rates, Rows: c.Rows, Prompt: c.Prompt, Tokens: c.Tokens,
		Rounds: c.Rounds, Quant: c.Quant, Memory: c.Memory,
		Threads: c.Threads, CPUs: runtime.GOMAXPROCS(0), MTU: c.MTU, Work: c.Work, Start: 5 * time.Minute}
	began := time.Now()
	o.Report = func(s string) { fmt.Fprintf(os.Stderr, "%6.1f s  %s\n", time.Since(began).Seconds(), s) }
	for _, b := range c.Builds {
		name, path, ok := strings.Cut(b, "=")
		if !ok || name == "" {
			return fmt.Errorf("compare: %q: want NAME=PROGRAM", b)
		}
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		o.Builds = append(o.Builds, compare.Build{Name: name, Path: path})
	}
	if c.Rounds < 1 || c.Tokens < 4 || min(len(c.Shapes), len(c.Nodes), len(c.Delays), len(c.Rates)) == 0 {
		return fmt.Errorf("compare: --rounds %d --tokens %d: want at least 1 and 4, and one of --shapes, --nodes, --delays and --rates",
			c.Rounds, c.Tokens)
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return err
	}
	var cells []compare.Cell
	var failed error
	err := compare.Run(ctx, o, func(x compare.Cell) {
		cells = append(cells, x)
		failed = errors.Join(failed, c.write(cells))
	})
	fmt.Print(compare.Table(cells))
	return errors.Join(err, failed)
}

func (c *compareCmd) write(cells []compare.Cell) error {
	text, err := json.MarshalIndent(cells, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(c.Out, "wire.json"), text, 0o600),
		os.WriteFile(filepath.Join(c.Out, "wire.md"), []byte(compare.Table(cells)), 0o600))
}
