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

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/peak"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
	"github.com/shoal-llm/shoal/topology"
)

// SpeedsConfig selects the measurements on this machine.
type SpeedsConfig struct {
	Dir     string // folder for the results, next to the weights cache; empty: they are not kept
	Nodes   int    // nodes that compute on this machine at the same time
	Threads int    // per node, in every step; 0: its part of the CPUs, or fewer
	Sockets int    // sockets that serve together
	Model   *model.Config
	Weights tensor.DType
	KV      tensor.DType // type of caches, for MeasureCosts
	NATS    string       // see NodeConfig
	Build   string       // version of this program: another build measures again
	Logger  *slog.Logger
}

// MeasureSpeeds returns the number of compute threads for each node of this machine, and their
// measured speeds. It measures collectives over bus, or over a temporary server if bus is nil.
// Earlier results of this build on this machine are reused. Failed measurements are zero, and the
// planner then uses estimates.
func MeasureSpeeds(ctx context.Context, c SpeedsConfig, bus *natsbus.Server) topology.Speeds {
	threads := topology.Threads{Max: c.Threads, Min: c.Threads}
	if c.Threads == 0 {
		threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), c.Nodes)
	}
	if kernel.Quantized(c.Weights) { // the two kinds of kernels
		c.Weights = tensor.Q8_0
	} else {
		c.Weights = tensor.BF16
	}
	path := c.path("speeds", threads)
	if kept := readKept[topology.Speeds](path); kept.Valid() && kept.Threads == threads {
		return kept
	}
	began := time.Now()
	s, err := c.measure(ctx, bus, threads)
	if err != nil {
		c.Logger.Info("measuring this machine failed; the planner uses estimates", "error", err)
		return s
	}
	c.Logger.Debug("measured this machine", "took", time.Since(began).Round(time.Millisecond), "kept", path, "threads", s.Threads.Max,
		"read_bytes_per_second", int64(s.Read))
	if err := writeKept(path, &s); err != nil {
		c.Logger.Info("saving the measurements failed; the next start measures again", "error", err)
	}
	return s
}

// path returns the file for results of a kind, of this machine and build; "": none.
func (c *SpeedsConfig) path(kind string, threads topology.Threads) string {
	if c.Dir == "" {
		return ""
	}
	kernels, _ := kernel.Implementation()
	cpu, _ := os.ReadFile("/proc/cpuinfo") // on systems other than Linux the build names the architecture
	_, cpu, _ = bytes.Cut(cpu, []byte("model name"))
	cpu, _, _ = bytes.Cut(cpu, []byte("\n"))
	shape := shard.ShapeOf(c.Model) // determines the size of the products
	shape.FFNUnitStart = nil
	key := sha256.Sum256(fmt.Appendln(nil, shape, c.Sockets, string(cpu), runtime.GOMAXPROCS(0), runtime.GOARCH, kernels, c.Build,
		tensor.Arithmetic, c.Nodes, threads, c.Weights, c.KV, c.NATS))
	return filepath.Join(c.Dir, fmt.Sprintf("%s-%x.json", kind, key[:8]))
}

// readKept returns the results in a file, or the zero value if there are none.
func readKept[T any](path string) (kept T) {
	var none T
	f, err := os.Open(path)
	if err != nil {
		return none
	}
	defer f.Close()
	if json.NewDecoder(io.LimitReader(f, 1<<16)).Decode(&kept) != nil {
		return none
	}
	return kept
}

func writeKept(path string, results any) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(results)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return wholefile.Write(path, text, 0o600)
}

// measure runs as many pools at once as there are nodes. If there are more nodes than CPUs, it runs
// one pool per CPU and assigns each node its part.
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
		pools[i] = tensor.NewPool(threads.Max)
		defer pools[i].Close()
	}
	data := make([]*measured, n)
	defer func() {
		for _, d := range data {
			err = errors.Join(err, d.close())
		}
	}()
	together(n, func(i int) { data[i], errs[i] = c.prepare(pools[i]) })
	if err := errors.Join(errs...); err != nil {
		return topology.Speeds{Threads: threads}, err
	}
	// Nodes share the machine's memory bus, so their reads are measured at the same time. The same
	// holds for products.
	part := float64(n) / float64(c.Nodes)
	together(n, func(i int) { each[i].Read = part * 1e9 * data[i].reads.Usual(speedTime) })
	together(n, func(i int) { each[i].Products = data[i].products(part) })
	s = each[0]
	s.Threads = threads
	for _, p := range pools { // roughly the number of threads that wait for messages during a decode step
		p.SetThreads(threads.Shifted(1))
	}
	s.Syncs, err = measuredSyncs(ctx, bus, pools)
	return s, err
}

// together calls f(0), ..., f(n-1) concurrently.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// measured is the work of one pool in the measurements: reads, since decode reads
// every weight once per token, and products of the model's size. Both include the synchronisation of
// the threads.
type measured struct {
	pool    *tensor.Pool
	reads   *peak.Reads
	weights []*tensor.Weight
	x, y    []float32
}

// prepare allocates and writes all that a pool needs.
func (c *SpeedsConfig) prepare(pool *tensor.Pool) (*measured, error) {
	m := &measured{pool: pool}
	var err error
	if m.reads, err = peak.NewReads(pool, int(ReadSize())/c.Nodes); err != nil {
		return m, err
	}
	n, side, cols := c.products()
	m.x, m.y = make([]float32, productRows*cols), make([]float32, productRows*side)
	m.weights, err = c.matrices(n, side, cols)
	return m, err
}

func (m *measured) close() (err error) {
	if m.reads != nil {
		err = m.reads.Close()
	}
	for _, w := range m.weights {
		err = errors.Join(err, w.Close())
	}
	return err
}

// products measures multiply-adds a second. The products of each row count take equally long, so
// that other programs disturb them equally. part is the node's part of the results.
func (m *measured) products(part float64) (rates topology.Products) {
	side, cols := len(m.y)/productRows, len(m.x)/productRows
	var took [len(topology.ChunkRows)][]time.Duration
	for start, next := time.Now(), 0; len(took[0]) == 0 || len(took[0]) < productRounds && time.Since(start) < productTime; {
		for i, rows := range topology.ChunkRows {
			began := time.Now()
			for range productRows / rows {
				m.pool.MatMul(m.y, side, m.weights[next%len(m.weights)], m.x, cols, rows)
				next++
			}
			took[i] = append(took[i], max(time.Nanosecond, time.Since(began)))
		}
	}
	for i, t := range took {
		slices.Sort(t)
		rates[i] = part * float64(productRows*cols*side) / t[len(t)/4].Seconds()
	}
	return rates
}

// products returns the number and the size of matrices of the model's size on one node: as many as
// the model has, or enough to exceed most caches.
func (c *SpeedsConfig) products() (n, rows, cols int) {
	shape := shard.ShapeOf(c.Model)
	cols = shape.Hidden
	rows = max(16, int(min(productWeights, shape.Weights()/productsLayer/float64(max(c.Sockets, c.Nodes))))/cols/16*16)
	return max(1, min(productsLayer*shape.Layers, productsMost/c.Nodes/(rows*cols))), rows, cols
}

// matrices returns n zero matrices. Close them, also after an error.
func (c *SpeedsConfig) matrices(n, rows, cols int) (all []*tensor.Weight, err error) {
	zeros := make([]float32, cols)
	for range n {
		w, err := tensor.NewWeight(c.Weights, rows, cols)
		if err != nil {
			return all, err
		}
		all = append(all, w)
		for row := range rows { // never-written memory is a single page of zeros
			w.SetRow(row, zeros)
		}
	}
	return all, nil
}

const (
	productRows    = 512     // rows multiplied at once in a measurement
	productWeights = 1 << 24 // maximum, per product
	productsMost   = 1 << 26 // of all products of all nodes: exceeds most caches
	productsLayer  = 9       // products have the weights of one layer
	productRounds  = 16
	productTime    = time.Second / 2
)

const (
	speedBytes = 128 << 20 // the least that reads go through, see readSize
	speedTime  = 60 * time.Millisecond
)

// ShareOf returns the default share of a node: its read rate in units of 10 GB/s, rounded to
// quarters so that noise does not divide equal machines unevenly. --share uses the same unit, but
// only proportions matter.
func ShareOf(read float64) float64 {
	if read <= 0 {
		return 1
	}
	return max(0.25, math.Round(read/shareUnit*4)/4)
}

const shareUnit = 10e9 // bytes per second

// measuredSyncs measures this machine's collectives for the planner. Ranks in this process exchange
// the data of a decode step over one server. Meanwhile the threads of their nodes, which have just
// computed, wait for more work.
func measuredSyncs(ctx context.Context, s *natsbus.Server, pools []*tensor.Pool) (out topology.Syncs, err error) {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	one := func(ranks int) []*natsbus.Server { return slices.Repeat([]*natsbus.Server{s}, ranks) }
	if out.Two, err = measuredSync(ctx, one(2), syncFloats, pools); err == nil {
		out.Four, err = measuredSync(ctx, one(4), syncFloats, pools)
	}
	if err != nil {
		return topology.Syncs{}, fmt.Errorf("machine: timing collectives failed: %w", err)
	}
	return out, nil
}

const (
	syncLimit  = 3 * time.Second
	syncWarm   = 8
	syncRounds = 41
	syncFloats = 256 // floats of one rank: its part of a decode row
)

// measuredSync returns the median time of an all-gather among ranks on the servers, in seconds. Each rank
// sends a number of floats.
func measuredSync(ctx context.Context, servers []*natsbus.Server, floats int, pools []*tensor.Pool) (float64, error) {
	ranks := len(servers)
	pools = pools[:min(ranks, len(pools))]
	groups, stop, err := natsbus.Ranks(ctx, servers, fmt.Sprintf("start-%s-%d-%d-%d", servers[0].Name(), pools[0].Threads(), ranks, floats))
	defer stop()
	if err != nil {
		return 0, err
	}
	mine, recv, done := make([]float32, floats), make([][][]float32, ranks), make(chan error, ranks)
	for r := range recv {
		for range ranks {
			recv[r] = append(recv[r], make([]float32, floats))
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
