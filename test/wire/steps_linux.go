package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/test/wire/steps"
	"github.com/shoal-llm/shoal/topology"
)

type stepsCmd struct {
	File    string          `arg:"" type:"existingfile" help:"Topology file (YAML); the first hosts of the first rack take part."`
	Model   string          `default:"models/fry" help:"Model folder, or random:SHAPE."`
	Quant   string          `default:"q8_0" help:"Type of the weights."`
	Mapping string          `default:"reduce" enum:"gather,reduce" help:"gather or reduce."`
	Ranks   []int           `default:"2,4" help:"Numbers of ranks."`
	Delays  []time.Duration `default:"250us,1ms" help:"One-way delays between two hosts."`
	Rows    []int           `default:"1,16" help:"Numbers of decode rows."`
	Chunk   []int           `default:"128" help:"Tokens of a prompt chunk."`
	Blocks  int             `default:"16" help:"Blocks of steps for each number of micro-batches, in turn."`
	Steps   int             `default:"5" help:"Steps of a block."`
}

// Run prints the first quartiles of rank 0 for every combination.
func (c *stepsCmd) Run(ctx context.Context) (err error) {
	w, err := openRack(ctx, c.File)
	if err != nil {
		return err
	}
	defer func() { err = w.close(err) }()
	fmt.Println("| ranks | step | one way | exchanges | wait floor | wait, 1 | compute, 1 | step, 1 | wait, 2 | compute, 2 | step, 2 | " +
		"gain |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, ranks := range c.Ranks {
		for _, d := range c.Delays {
			if err := w.setDelay(ctx, ranks, d); err != nil {
				return err
			}
			for _, n := range c.Rows {
				if err := c.measure(ctx, w, ranks, d, steps.Rank{Rows: n}); err != nil {
					return err
				}
			}
			for _, n := range c.Chunk {
				if err := c.measure(ctx, w, ranks, d, steps.Rank{Chunk: n}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *stepsCmd) measure(ctx context.Context, w *rack, ranks int, delay time.Duration, r steps.Rank) error {
	model, random := strings.CutPrefix(c.Model, "random:")
	r.Model, r.Random, r.Mapping, r.Blocks, r.Steps, r.Timeout = model, random, topology.Mapping(c.Mapping), c.Blocks, c.Steps, 5*time.Minute
	var err error
	if r.Weights, err = tensor.ParseDType(c.Quant); err != nil {
		return err
	}
	text, err := w.run(ctx, ranks, func(i int, hosts []string) []string {
		one := r
		one.Rank, one.Hosts = i, hosts
		b, _ := json.Marshal(one) // of numbers and strings
		return []string{"step-rank", string(b)}
	})
	if err != nil {
		return err
	}
	var res steps.Result
	if err := json.Unmarshal([]byte(text), &res); err != nil {
		return err
	}
	what := fmt.Sprintf("%d rows", r.Rows)
	if r.Rows == 0 {
		what = fmt.Sprintf("prompt of %d", r.Chunk)
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/1e6) }
	cells := []string{fmt.Sprint(ranks), what, ms(delay), fmt.Sprint(res.Exchanges), ms(time.Duration(res.Exchanges) * delay)}
	for m := range plan.MaxMicroBatches {
		cells = append(cells, ms(res.Wait[m]), ms(res.Compute[m]), ms(res.Wall[m]))
	}
	fmt.Printf("| %s | %.2f |\n", strings.Join(cells, " | "), float64(res.Wall[0])/float64(res.Wall[1]))
	return nil
}

type stepRankCmd struct {
	Rank string `arg:""`
}

func (c *stepRankCmd) Run(ctx context.Context) error {
	var r steps.Rank
	if err := json.Unmarshal([]byte(c.Rank), &r); err != nil {
		return err
	}
	res, err := r.Run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(res)
}
