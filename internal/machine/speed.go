package machine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// SpeedsConfig says what of this machine is measured, and for what.
type SpeedsConfig struct {
	Dir     string // keeps what was measured, beside the weights' cache; empty: nothing does
	Nodes   int    // that compute on this machine at once
	Threads int    // of each, in every step; 0: its part of the processors, or fewer
	Sockets int    // that serve together
	Model   *model.Config
	Weights tensor.DType
	NATS    string // as NodeConfig has it
	Build   string // of this program: another build measures again
	Logger  *slog.Logger
}

// MeasureSpeeds says how many compute threads each node of this machine is to have, and what they
// give, over a server that is there or, nil, one of its own. What this build has measured on this
// machine before is not measured again; what could not be measured is zero, and the planner guesses.
func MeasureSpeeds(ctx context.Context, c SpeedsConfig, bus *natsbus.Server) topology.Speeds {
	threads := topology.Threads{Most: c.Threads, Fewest: c.Threads}
	if c.Threads == 0 {
		threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), c.Nodes)
	}
	if tensor.Quantised(c.Weights) { // kernels are of two kinds
		c.Weights = tensor.Q8_0
	} else {
		c.Weights = tensor.BF16
	}
	path := c.path(threads)
	if kept := readSpeeds(path); kept.Valid() && kept.Threads == threads {
		return kept
	}
	began := time.Now()
	s, err := c.measure(ctx, bus, threads)
	if err != nil {
		c.Logger.Info("this machine could not be measured; the planner guesses what it does", "error", err)
		return s
	}
	c.Logger.Debug("measured this machine", "took", time.Since(began).Round(time.Millisecond), "kept", path, "threads", s.Threads.Most, "read_bytes_per_second", int64(s.Read))
	if err := writeSpeeds(path, &s); err != nil {
		c.Logger.Info("this machine is measured again at the next start", "error", err)
	}
	return s
}

// path is where these figures of this machine and build lie; empty: nowhere.
func (c *SpeedsConfig) path(threads topology.Threads) string {
	if c.Dir == "" {
		return ""
	}
	kernels, _ := tensor.Implementation()
	cpu, _ := os.ReadFile("/proc/cpuinfo") // elsewhere than on Linux the build says the architecture
	_, cpu, _ = bytes.Cut(cpu, []byte("model name"))
	cpu, _, _ = bytes.Cut(cpu, []byte("\n"))
	shape := socket.ShapeOf(c.Model) // of whose size the products are
	shape.FFNUnitStart = nil
	key := sha256.Sum256(fmt.Appendln(nil, shape, c.Sockets, string(cpu), runtime.GOMAXPROCS(0), runtime.GOARCH, kernels, c.Build, tensor.Arithmetic, c.Nodes, threads, c.Weights, c.NATS))
	return filepath.Join(c.Dir, fmt.Sprintf("speeds-%x.json", key[:8]))
}

// readSpeeds gives nothing where there is no such file.
func readSpeeds(path string) (s topology.Speeds) {
	f, err := os.Open(path)
	if err != nil {
		return topology.Speeds{}
	}
	defer f.Close()
	if json.NewDecoder(io.LimitReader(f, 1<<16)).Decode(&s) != nil {
		return topology.Speeds{}
	}
	return s
}

func writeSpeeds(path string, s *topology.Speeds) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	part := fmt.Sprintf("%s-%d", path, os.Getpid())
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// measure lets as many pools as there are nodes work at once. Of more nodes than processors these
// work, and give each node its part.
func (c *SpeedsConfig) measure(ctx context.Context, bus *natsbus.Server, threads topology.Threads) (s topology.Speeds, err error) {
	if bus == nil {
		if bus, err = natsbus.Start(natsbus.Config{Name: "measure", Log: slog.New(slog.DiscardHandler)}); err != nil {
			return topology.Speeds{Threads: threads}, err
		}
		defer bus.Shutdown()
	}
	n := min(c.Nodes, runtime.GOMAXPROCS(0))
	pools, each, errs := make([]*tensor.Pool, n), make([]topology.Speeds, n), make([]error, n)
	for i := range pools {
		pools[i] = tensor.NewPool(threads.Most)
		defer pools[i].Close()
	}
	together(n, func(i int) { each[i], errs[i] = c.speeds(pools[i], float64(n)/float64(c.Nodes)) })
	s = each[0]
	s.Threads = threads
	if err := errors.Join(errs...); err != nil {
		return s, err
	}
	for _, p := range pools { // so many wait for messages when a step decodes, or about
		p.Use(threads.Halved(1))
	}
	s.Syncs, err = measuredSyncs(ctx, bus, pools)
	return s, err
}

// together calls f(0), ..., f(n-1) at once.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// speeds measures one pool: reads, since decode reads every weight once a token, and products of
// the model's size: how long threads meet and wait is part of each. Those of each number of rows
// take as long, so that other programs disturb them alike. part is
// what the node has of that.
func (c *SpeedsConfig) speeds(pool *tensor.Pool, part float64) (s topology.Speeds, err error) {
	rate, err := tensor.MeasureReadBandwidth(pool, speedBytes/c.Nodes, speedTime)
	if err != nil {
		return s, err
	}
	s.Read = part * rate * 1e9
	n, side, cols := c.products()
	weights, err := c.matrices(n, side, cols)
	defer func() { err = errors.Join(err, closeAll(weights)) }()
	if err != nil {
		return s, err
	}
	x, y := make([]float32, productRows*cols), make([]float32, productRows*side)
	var took [len(topology.ChunkRows)][]time.Duration
	for start, next := time.Now(), 0; len(took[0]) == 0 || len(took[0]) < productRounds && time.Since(start) < productTime; {
		for i, rows := range topology.ChunkRows {
			began := time.Now()
			for range productRows / rows {
				pool.MatMul(y, side, weights[next%n], x, cols, rows)
				next++
			}
			took[i] = append(took[i], max(time.Nanosecond, time.Since(began)))
		}
	}
	for i, t := range took {
		slices.Sort(t)
		s.Products[i] = part * float64(productRows*cols*side) / t[len(t)/4].Seconds()
	}
	return s, nil
}

// products are matrices of the model's size on one node, as many as a model has or as do not fit most
// caches: so many, rows and columns.
func (c *SpeedsConfig) products() (n, rows, cols int) {
	shape := socket.ShapeOf(c.Model)
	cols = shape.Hidden
	rows = max(16, int(min(productWeights, shape.Weights()/productsLayer/float64(max(c.Sockets, c.Nodes))))/cols/16*16)
	return max(1, min(productsLayer*shape.Layers, productsMost/c.Nodes/(rows*cols))), rows, cols
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

const (
	productRows    = 512     // multiplied in a measurement, so many at once
	productWeights = 1 << 24 // at most, of one product
	productsMost   = 1 << 26 // of all products of all nodes: more than fits most caches
	productsLayer  = 9       // products have the weights of a layer
	productRounds  = 16
	productTime    = time.Second / 2
)

const (
	speedBytes = 128 << 20 // several times the last-level cache of an ordinary machine
	speedTime  = 60 * time.Millisecond
)

// ShareOf is a node's share of the work when nobody asked for one: the rate at which it
// reads, in units of 10 GB/s and rounded to quarters, so that noise does not cut equal
// machines unevenly; --share uses the same unit loosely: only the proportions matter.
func ShareOf(read float64) float64 {
	if read <= 0 {
		return 1
	}
	return max(0.25, math.Round(read/shareUnit*4)/4)
}

const shareUnit = 10e9 // bytes a second

// measuredSyncs are what the planner needs to know of this machine's collectives: ranks of
// this process exchange what a decode step does over one server, beside the threads of their
// nodes, which have just computed and wait for more.
func measuredSyncs(ctx context.Context, s *natsbus.Server, pools []*tensor.Pool) (out topology.Syncs, err error) {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if out.Two, err = measuredSync(ctx, s, 2, pools); err == nil {
		out.Four, err = measuredSync(ctx, s, 4, pools)
	}
	if err != nil {
		return topology.Syncs{}, fmt.Errorf("cluster: collectives could not be timed: %w", err)
	}
	return out, nil
}

const (
	syncLimit  = 3 * time.Second
	syncWarm   = 8
	syncRounds = 41
	syncFloats = 256 // of one rank, a decode row's part
)

// measuredSync is the median time of a small all-gather among so many ranks, in seconds.
func measuredSync(ctx context.Context, s *natsbus.Server, ranks int, pools []*tensor.Pool) (float64, error) {
	servers := slices.Repeat([]*natsbus.Server{s}, ranks)
	pools = pools[:min(ranks, len(pools))]
	groups, stop, err := natsbus.Ranks(ctx, servers, fmt.Sprintf("start-%s-%d-%d", s.Name(), pools[0].Threads(), ranks))
	defer stop()
	if err != nil {
		return 0, err
	}
	mine, recv, done := make([]float32, syncFloats), make([][][]float32, ranks), make(chan error, ranks)
	for r := range recv {
		for range ranks {
			recv[r] = append(recv[r], make([]float32, syncFloats))
		}
	}
	var took []time.Duration
	for i := range syncWarm + syncRounds {
		together(len(pools), func(i int) { pools[i].Run(pools[i].Threads(), func(int) {}) })
		began := time.Now()
		for r, g := range groups {
			g.AllGather(collective.OpID(i+1), mine, recv[r], func(err error) { done <- err })
		}
		for range groups {
			select {
			case err := <-done:
				if err != nil {
					return 0, err
				}
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		if i >= syncWarm {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds(), nil
}
