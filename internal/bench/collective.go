package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// mesh starts n servers and one rank on each.
func mesh(ctx context.Context, n int) (groups []*collective.Group, stop func(), err error) {
	servers, err := natsbus.StartServers(n, "bench")
	end := func() {}
	stop = func() {
		end()
		natsbus.ShutdownServers(servers)
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	if err != nil {
		return nil, stop, err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	groups, end, err = natsbus.Ranks(ctx, servers, "bench")
	return groups, stop, err
}

// work has the input and output of every rank.
type work struct {
	nodes [][]tensor.Span
	mine  [][][]float32 // rank, tree node
	recv  [][][]float32 // rank, source
	out   [][]float32
	done  chan error
}

// newWork divides the units of an axis evenly, like the down projection.
func newWork(n, floats int) *work {
	w := &work{done: make(chan error, n)}
	for r := range n {
		nodes := tensor.Subtrees(r*tensor.MaxUnits/n, (r+1)*tensor.MaxUnits/n, tensor.MaxUnits)
		w.nodes = append(w.nodes, nodes)
		parts := make([][]float32, max(1, len(nodes)))
		for i := range parts {
			parts[i] = make([]float32, floats)
		}
		from := make([][]float32, n)
		for i := range from {
			from[i] = make([]float32, floats)
		}
		w.mine, w.recv, w.out = append(w.mine, parts), append(w.recv, from), append(w.out, make([]float32, floats))
	}
	return w
}

func (w *work) run(ctx context.Context, groups []*collective.Group, kind string, op collective.OpID) error {
	done := func(err error) { w.done <- err }
	for r, g := range groups {
		switch kind {
		case "barrier":
			g.Barrier(op, done)
		case "all-gather":
			g.AllGather(op, w.mine[r][0], w.recv[r], done)
		case "all-reduce":
			g.AllReduceTree(op, tensor.MaxUnits, w.nodes, w.mine[r][:len(w.nodes[r])], w.out[r], done)
		}
	}
	for range groups {
		select {
		case err := <-w.done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// BusRate returns how many bytes n ranks together send per second while they only all-reduce
// vectors of `bytes` bytes. A broadcast counts once. It is the median of nine runs.
func BusRate(ctx context.Context, n, bytes int) (float64, error) {
	groups, stop, err := mesh(ctx, n)
	if err != nil {
		return 0, err
	}
	defer stop()
	w := newWork(n, bytes/4)
	var took []time.Duration
	sent := uint64(0)
	for i := range 12 {
		before := sentBy(groups)
		began := time.Now()
		if err := w.run(ctx, groups, "all-reduce", collective.OpID(i+1)); err != nil {
			return 0, fmt.Errorf("bench: all-reduce of %d bytes over %d nodes: %w", bytes, n, err)
		}
		if i >= 3 { // the first runs create buffers
			took = append(took, time.Since(began))
			sent = sentBy(groups) - before
		}
	}
	return float64(sent) / medianOf(took).Seconds(), nil
}

func sentBy(groups []*collective.Group) (n uint64) {
	for _, g := range groups {
		n += g.Stats().BytesSent
	}
	return n
}
