package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/exchange"
	"github.com/shoal-llm/shoal/test/wire/topology"
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
	top, n, stop, err := start(ctx, c.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, ranks := range c.Ranks {
		members, err := top.Members(top.Racks[0].Name)
		if err != nil {
			return err
		}
		if ranks < 2 || ranks > len(members) {
			return fmt.Errorf("exchange: %d ranks: rack %s has %d hosts", ranks, top.Racks[0].Name, len(members))
		}
		for _, bytes := range c.Bytes {
			for _, kind := range c.Kinds {
				var took []time.Duration
				for _, d := range c.Delays {
					for _, m := range members[:ranks] { // half of the delay on each of the two links
						if _, err := n.Control(ctx, []string{"set", top.Hosts[m].Name, "jitter=0s", "delay=" + (d / 2).String()}); err != nil {
							return err
						}
					}
					t, err := c.measure(ctx, top, members[:ranks], kind, bytes)
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
	text, err := n.Control(ctx, []string{"stats"})
	fmt.Print(text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:])
	return err
}

// measure starts one process per rank.
func (c *exchangeCmd) measure(ctx context.Context, top *topology.Topology, members []int, kind string, bytes int) (time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	var hosts []string
	for _, m := range members {
		hosts = append(hosts, top.Hosts[m].Address.String())
	}
	type result struct {
		rank int
		text string
		err  error
	}
	results := make(chan result, len(members))
	for i, m := range members {
		cmd := exec.CommandContext(ctx, self, "exec", top.Hosts[m].Name, self, "rank", kind, strconv.Itoa(i), strconv.Itoa(bytes/4), strconv.Itoa(c.Rounds), strings.Join(hosts, ","))
		cmd.Stderr = os.Stderr
		go func() {
			out, err := cmd.Output()
			results <- result{i, strings.TrimSpace(string(out)), err}
		}()
	}
	var took time.Duration
	for range members {
		r := <-results
		if r.err != nil {
			cancel()
			err = errors.Join(err, fmt.Errorf("rank %d: %w", r.rank, r.err))
			continue
		}
		if r.rank == 0 && err == nil {
			took, err = time.ParseDuration(r.text)
		}
	}
	return took, err
}

type rankCmd struct {
	Kind   string `arg:""`
	Rank   int    `arg:""`
	Floats int    `arg:""`
	Rounds int    `arg:""`
	Hosts  string `arg:""`
}

func (c *rankCmd) Run(ctx context.Context) error {
	r := exchange.Rank{Kind: exchange.Kind(c.Kind), Rank: c.Rank, Hosts: strings.Split(c.Hosts, ","), Floats: c.Floats, Rounds: c.Rounds, Timeout: 2 * time.Minute}
	took, err := r.Run(ctx)
	fmt.Println(took)
	return err
}
