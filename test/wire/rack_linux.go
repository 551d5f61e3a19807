package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/network"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// rack is the first rack of a started network, on whose hosts the ranks of a measurement run.
type rack struct {
	top     *topology.Topology
	net     *network.Network
	stop    func() error
	members []int
}

func openRack(ctx context.Context, file string) (*rack, error) {
	top, n, stop, err := start(ctx, file)
	if err != nil {
		return nil, err
	}
	r := &rack{top: top, net: n, stop: stop}
	if r.members, err = top.Members(top.Racks[0].Name); err != nil {
		return nil, errors.Join(err, stop())
	}
	return r, nil
}

// close prints the counters of the network and removes it. It joins err with its own error.
func (r *rack) close(err error) error {
	if text, e := r.net.Control(context.Background(), []string{"stats"}); e == nil {
		fmt.Print(text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:])
	}
	return errors.Join(err, r.stop())
}

// setDelay sets the one-way delay between the first hosts: half of it on each of the two links.
func (r *rack) setDelay(ctx context.Context, ranks int, d time.Duration) error {
	if ranks < 2 || ranks > len(r.members) {
		return fmt.Errorf("%d ranks: rack %s has %d hosts", ranks, r.top.Racks[0].Name, len(r.members))
	}
	for _, m := range r.members[:ranks] {
		if _, err := r.net.Control(ctx, []string{"set", r.top.Hosts[m].Name, "jitter=0s", "delay=" + (d / 2).String()}); err != nil {
			return err
		}
	}
	return nil
}

// run starts one process of this command per rank, and returns the output of rank 0.
func (r *rack) run(ctx context.Context, ranks int, args func(rank int, hosts []string) []string) (text string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	var hosts []string
	for _, m := range r.members[:ranks] {
		hosts = append(hosts, r.top.Hosts[m].Address.String())
	}
	type result struct {
		rank int
		text string
		err  error
	}
	results := make(chan result, ranks)
	for i, m := range r.members[:ranks] {
		cmd := exec.CommandContext(ctx, self, append([]string{"exec", r.top.Hosts[m].Name, self}, args(i, hosts)...)...)
		cmd.Stderr = os.Stderr
		cmd.WaitDelay = 10 * time.Second
		go func() {
			out, err := cmd.Output()
			results <- result{i, strings.TrimSpace(string(out)), err}
		}()
	}
	for range ranks {
		x := <-results
		if x.err != nil {
			cancel()
			err = errors.Join(err, fmt.Errorf("rank %d: %w", x.rank, x.err))
		} else if x.rank == 0 {
			text = x.text
		}
	}
	return text, err
}
