package natsbus

import (
	"context"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// startServers starts n servers that have the first one as seed.
func startServers(t testing.TB, n int, edit func(int, *Config)) []*Server {
	t.Helper()
	servers, err := tryServers(t, n, edit)
	if err != nil {
		t.Fatal(err)
	}
	return servers
}

// tryServers is startServers with an error. HungAfter is so long that a busy machine does not lose
// a route.
func tryServers(t testing.TB, n int, edit func(int, *Config)) (servers []*Server, err error) {
	for i := range n {
		cfg := Config{Name: fmt.Sprintf("node-%d", i), Secret: "s3", Log: quiet, HungAfter: patience}
		if i > 0 {
			cfg.Seeds = []string{servers[0].RouteAddr()}
		}
		if edit != nil {
			edit(i, &cfg)
		}
		s, err := Start(cfg)
		if err != nil {
			return servers, err
		}
		t.Cleanup(s.Shutdown)
		servers = append(servers, s)
	}
	return servers, nil
}

// openTransports opens one rank per server and waits until all are ready.
func openTransports(t testing.TB, servers []*Server, epoch uint32) []*Transport {
	t.Helper()
	ts := make([]*Transport, len(servers))
	for r, s := range servers {
		tr, err := s.Transport(TransportConfig{Group: "g", Epoch: epoch, Rank: r, Size: len(servers)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tr.Close() })
		ts[r] = tr
	}
	ready(t, ts)
	return ts
}

func ready(t testing.TB, ts []*Transport) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	errs := make(chan error, len(ts))
	for _, tr := range ts {
		go func() { errs <- tr.Ready(ctx) }()
	}
	for range ts {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

func openGroups(t testing.TB, ts []*Transport, epoch uint32, cfg collective.Config) []*collective.Group {
	t.Helper()
	gs := make([]*collective.Group, len(ts))
	for r, tr := range ts {
		c := cfg
		c.Rank, c.Size, c.Epoch, c.Deadline = r, len(ts), epoch, 2*patience
		g, err := collective.NewGroup(c, tr)
		if err != nil {
			t.Fatal(err)
		}
		gs[r] = g
		t.Cleanup(func() { g.Close(); <-g.Done() })
	}
	return gs
}

// rankWork holds the operands of one rank in checked operations, and the expected results.
type rankWork struct {
	rank, size, n int
	nodes         [][]tensor.Span
	mine          [][]float32
	shard         []float32
	recv          [][]float32
	out           []float32
}

const workUnits = 16

// newRankWork: unit u holds u+1 at every element, shards hold the rank number.
func newRankWork(rank, size, n int) *rankWork {
	w := &rankWork{rank: rank, size: size, n: n, nodes: make([][]tensor.Span, size), recv: make([][]float32, size),
		out: make([]float32, n), shard: make([]float32, n)}
	for r := range size {
		w.nodes[r] = tensor.Subtrees(workUnits*r/size, workUnits*(r+1)/size, workUnits)
		w.recv[r] = make([]float32, n)
	}
	for _, s := range w.nodes[rank] {
		v := make([]float32, n)
		for u := s.Lo; u < s.Hi; u++ {
			for i := range v {
				v[i] += float32(u + 1)
			}
		}
		w.mine = append(w.mine, v)
	}
	for i := range w.shard {
		w.shard[i] = float32(rank*10 + i%7)
	}
	return w
}

func (w *rankWork) gather(g *collective.Group, op collective.OpID) error {
	done := make(chan error, 1)
	g.AllGather(op, w.shard, w.recv, func(err error) { done <- err })
	if err := <-done; err != nil {
		return err
	}
	for r, v := range w.recv {
		for i := range v {
			if v[i] != float32(r*10+i%7) {
				return fmt.Errorf("all-gather: value %d of rank %d is %v", i, r, v[i])
			}
			v[i] = -1
		}
	}
	return nil
}

func (w *rankWork) reduce(g *collective.Group, op collective.OpID) error {
	done := make(chan error, 1)
	g.AllReduceTree(op, workUnits, w.nodes, w.mine, w.out, func(err error) { done <- err })
	if err := <-done; err != nil {
		return err
	}
	for i := range w.out {
		if w.out[i] != workUnits*(workUnits+1)/2 {
			return fmt.Errorf("all-reduce: value %d is %v", i, w.out[i])
		}
		w.out[i] = -1
	}
	return nil
}

func TestServersInOneProcess(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			servers := startServers(t, n, nil)
			gs := openGroups(t, openTransports(t, servers, 3), 3, collective.Config{})
			errs := make(chan error, n)
			for r, g := range gs {
				go func() {
					for i, size := range []int{1, 1000, 30000, 300000} { // the last one above 1 MB, in two shots
						w := newRankWork(r, n, size)
						if err := w.gather(g, collective.Op(0, uint64(2*i))); err != nil {
							errs <- fmt.Errorf("rank %d: %w", r, err)
							return
						}
						if err := w.reduce(g, collective.Op(0, uint64(2*i+1))); err != nil {
							errs <- fmt.Errorf("rank %d: %w", r, err)
							return
						}
					}
					errs <- nil
				}()
			}
			for range gs {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}
