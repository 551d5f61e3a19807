package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// How many threads serve a model best is not seen in what they read or multiply alone: threads
// that wait for the next product hold processors that messages need, and products of a small
// model end before the last thread has begun. So what a step does again and again is done: a few
// products of the model's size, then an exchange among all sockets, on all nodes at once.
const (
	rehearseFor     = 800 * time.Millisecond // all choices together, and then the visit that began
	rehearseLimit   = 5 * time.Second
	rehearseRuns    = 3       // products to an exchange: layers have some seven, and two to five exchanges
	rehearseLayer   = 9       // such products have the weights of a layer
	rehearseWeights = 1 << 26 // at most, of all nodes: more than fits most caches
	rehearseProduct = 1 << 22 // weights at most of a product on one node: larger ones feed any number of threads
)

// products are matrices of the model's size on one node, of so many weights each at most, and all
// of as many as a model has or as do not fit most caches: so many, rows and columns.
func (c *SpeedsConfig) products(most float64) (n, rows, cols int) {
	shape := socket.ShapeOf(c.Model)
	cols = shape.Hidden
	rows = max(16, int(min(most, shape.Weights()/rehearseLayer/float64(max(c.Sockets, c.Nodes))))/cols/16*16)
	return max(1, min(rehearseLayer*shape.Layers, rehearseWeights/c.Nodes/(rows*cols))), rows, cols
}

// matrices are so many of zeros; to be closed, also after an error.
func (c *SpeedsConfig) matrices(n, rows, cols int) (all []*tensor.Weight, err error) {
	zeros := make([]float32, cols)
	for range n {
		w, err := tensor.NewWeight(c.Weights, rows, cols)
		if err != nil {
			return all, err
		}
		all = append(all, w)
		for row := range rows { // memory that was never written is one page of zeros
			w.SetRow(row, zeros)
		}
	}
	return all, nil
}

func closeAll(weights []*tensor.Weight) (err error) {
	for _, w := range weights {
		err = errors.Join(err, w.Close())
	}
	return err
}

// rehearser is one socket: a node of this machine, or, without weights, one of another.
type rehearser struct {
	weights []*tensor.Weight // as many products as a model has, or fit
	next    int
	x, y    []float32
	group   *collective.Group // nil: it is alone
	mine    []float32
	recv    [][]float32
	done    chan error
}

// rehearse takes turns among the choices, so that other programs disturb them alike, and takes
// the lower quartile of the turns of each: what is chosen serves for long, and a host that takes processors
// away for a moment takes them from whoever has more.
func (c *SpeedsConfig) rehearse(ctx context.Context, bus *natsbus.Server, choices []int) (out []topology.Rehearsal, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rehearseLimit, fmt.Errorf("cluster: a rehearsal took longer than %v", rehearseLimit))
	defer cancel()
	sockets, stop, err := c.rehearsers(ctx, bus)
	defer func() { err = errors.Join(err, stop()) }()
	if err != nil {
		return nil, err
	}
	pools := make([][]*tensor.Pool, len(choices))
	for i, threads := range choices {
		for range c.Nodes {
			p := tensor.NewPool(threads)
			defer p.Close()
			pools[i] = append(pools[i], p)
		}
	}
	took := make([][len(topology.RehearsedRows)][]time.Duration, len(choices))
	op := collective.OpID(0)
	for began, turn := time.Now(), 0; turn < 2 || time.Since(began) < rehearseFor; turn++ {
		for i := range choices {
			time.Sleep(5 * time.Millisecond) // threads of the choice before still look for work
			for j, rows := range topology.RehearsedRows {
				for _, rounds := range [...]int{2, min(16, 512/rows)} { // the first wakes the threads
					t, err := visit(ctx, sockets, pools[i], rows, rounds, op)
					if err != nil {
						return nil, err
					}
					if op += collective.OpID(rounds); rounds > 2 && turn > 0 {
						took[i][j] = append(took[i][j], t)
					}
				}
			}
		}
	}
	for i, threads := range choices {
		r := topology.Rehearsal{Threads: threads}
		for j, t := range took[i] {
			slices.Sort(t)
			r.Seconds[j] = max(t[len(t)/4], 1).Seconds()
		}
		out = append(out, r)
	}
	return out, nil
}

// rehearsers makes the sockets; stop ends what there is of them, also after an error.
func (c *SpeedsConfig) rehearsers(ctx context.Context, bus *natsbus.Server) (all []*rehearser, stop func() error, err error) {
	all, groups, leave := make([]*rehearser, max(c.Sockets, c.Nodes)), []*collective.Group(nil), func() {}
	stop = func() (err error) {
		leave()
		for _, r := range all {
			if r != nil {
				err = errors.Join(err, closeAll(r.weights))
			}
		}
		return err
	}
	if len(all) > 1 {
		if groups, leave, err = natsbus.Ranks(ctx, slices.Repeat([]*natsbus.Server{bus}, len(all)), "rehearse-"+bus.Name()); err != nil {
			return nil, stop, err
		}
	}
	most := slices.Max(topology.RehearsedRows[:])
	n, rows, cols := c.products(rehearseProduct)
	errs := make([]error, len(all))
	together(len(all), func(i int) {
		r := &rehearser{done: make(chan error, 1)}
		all[i] = r
		if groups != nil {
			r.group, r.mine = groups[i], make([]float32, most*max(1, cols/len(all)))
			for range all {
				r.recv = append(r.recv, make([]float32, len(r.mine)))
			}
		}
		if i >= c.Nodes {
			return
		}
		r.x, r.y = make([]float32, most*cols), make([]float32, most*rows)
		r.weights, errs[i] = c.matrices(n, rows, cols)
	})
	return all, stop, errors.Join(errs...)
}

// visit has all sockets do the same so often, and returns the time of one.
func visit(ctx context.Context, sockets []*rehearser, pools []*tensor.Pool, rows, rounds int, op collective.OpID) (time.Duration, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	together(len(sockets), func(i int) {
		for round := range rounds {
			if i < len(pools) {
				sockets[i].products(pools[i], rows)
			}
			if err := sockets[i].exchange(ctx, rows, op+collective.OpID(round+1)); err != nil {
				cancel(err)
				return
			}
		}
	})
	return time.Since(began) / time.Duration(rounds), context.Cause(ctx)
}

func (r *rehearser) products(pool *tensor.Pool, rows int) {
	for range rehearseRuns {
		w := r.weights[r.next%len(r.weights)]
		pool.MatMul(r.y, w.Rows, w, r.x, w.Cols, rows)
		r.next++
	}
}

func (r *rehearser) exchange(ctx context.Context, rows int, op collective.OpID) error {
	if r.group == nil {
		return context.Cause(ctx)
	}
	part := rows * len(r.mine) / slices.Max(topology.RehearsedRows[:])
	recv := make([][]float32, len(r.recv))
	for i := range recv {
		recv[i] = r.recv[i][:part]
	}
	r.group.AllGather(op, r.mine[:part], recv, func(err error) { r.done <- err })
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
