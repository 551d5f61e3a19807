package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/exchange"
)

type exchangeCmd struct {
	File   string          `arg:"" type:"existingfile" help:"Topology file (YAML); the first hosts of the first rack take part."`
	Ranks  []int           `default:"2,4" help:"Numbers of ranks."`
	Delays []time.Duration `default:"0s,100us,250us,1ms" help:"One-way delays between two hosts."`
	Bytes  []int           `default:"4096" help:"Bytes that each rank sends, in multiples of 4."`
	Kinds  []string        `default:"tcp,gather,reduce,twoshot" help:"tcp, gather, reduce, oneshot, twoshot."`
	Rounds int             `default:"300" help:"Rounds to time."`
}

// Run prints the median of rank 0 for every combination.
func (c *exchangeCmd) Run(ctx context.Context) (err error) {
	w, err := openRack(ctx, c.File)
	if err != nil {
		return err
	}
	defer func() { err = w.close(err) }()
	for _, ranks := range c.Ranks {
		for _, bytes := range c.Bytes {
			for _, kind := range c.Kinds {
				var took []time.Duration
				for _, d := range c.Delays {
					if err := w.setDelay(ctx, ranks, d); err != nil {
						return err
					}
					text, err := w.run(ctx, ranks, func(i int, hosts []string) []string {
						return []string{"rank", kind, strconv.Itoa(i), strconv.Itoa(bytes / 4), strconv.Itoa(c.Rounds), strings.Join(hosts, ",")}
					})
					if err != nil {
						return err
					}
					t, err := time.ParseDuration(text)
					if err != nil {
						return err
					}
					took = append(took, t)
				}
				fmt.Printf("%-8s %2d ranks %7d bytes:", kind, ranks, bytes)
				for i, d := range c.Delays {
					fmt.Printf("  %v %.3f ms", d, float64(took[i])/1e6)
				}
				if last := len(took) - 1; last > 0 && c.Delays[last] > c.Delays[0] {
					fmt.Printf("  (%.2f delays)", float64(took[last]-took[0])/float64(c.Delays[last]-c.Delays[0]))
				}
				fmt.Println()
			}
		}
	}
	return nil
}

type rankCmd struct {
	Kind   string `arg:""`
	Rank   int    `arg:""`
	Floats int    `arg:""`
	Rounds int    `arg:""`
	Hosts  string `arg:""`
}

func (c *rankCmd) Run(ctx context.Context) error {
	r := exchange.Rank{Kind: exchange.Kind(c.Kind), Rank: c.Rank, Hosts: strings.Split(c.Hosts, ","), Floats: c.Floats,
		Rounds: c.Rounds, Timeout: 2 * time.Minute}
	took, err := r.Run(ctx)
	fmt.Println(took)
	return err
}
