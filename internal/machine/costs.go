package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/machine/costs"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
	"github.com/shoal-llm/shoal/topology"
)

// MeasureCosts measures the times of a model's computations on one of c.Nodes nodes of this machine, while
// the other nodes compute too. It returns a table for each number of threads that a decode step may use, the
// most first. Nodes of a real cluster have servers of their own, and so have the ranks of this measurement.
// Results are kept as those of MeasureSpeeds.
func MeasureCosts(ctx context.Context, c SpeedsConfig) ([]costs.Table, error) {
	threads := topology.Threads{Max: c.Threads, Min: c.Threads}
	if c.Threads == 0 {
		threads = topology.ThreadsOf(runtime.GOMAXPROCS(0), c.Nodes)
	}
	path := c.path("costs", threads)
	kept := readKept[[]costs.Table](path)
	if len(kept) == threads.MaxShift()+1 && !slices.ContainsFunc(kept, func(t costs.Table) bool { return !t.Valid() }) {
		return kept, nil
	}
	tables, err := c.measureCosts(ctx, threads)
	if err != nil {
		return nil, fmt.Errorf("machine: measuring the costs of a node: %w", err)
	}
	if err := writeKept(path, tables); err != nil {
		c.Logger.Info("saving the measurements failed; the next start measures again", "error", err)
	}
	return tables, nil
}

func (c *SpeedsConfig) measureCosts(ctx context.Context, threads topology.Threads) (tables []costs.Table, err error) {
	rigs := make([]*costRig, min(c.Nodes, runtime.GOMAXPROCS(0)))
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.close())
		}
	}()
	errs := make([]error, len(rigs))
	together(len(rigs), func(i int) { rigs[i], errs[i] = c.newCostRig(threads.Max) })
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	pools := make([]*tensor.Pool, len(rigs))
	for i, r := range rigs {
		pools[i] = r.pool
	}
	servers, err := natsbus.StartServers(syncRanks, "measure")
	if err != nil {
		return nil, err
	}
	defer natsbus.ShutdownServers(servers)
	for shift := range threads.MaxShift() + 1 {
		t := costs.Table{Threads: threads.Shifted(shift)}
		for _, p := range pools {
			p.SetThreads(t.Threads)
		}
		measureTogether(rigs, &t, float64(c.Nodes)/float64(len(rigs)))
		if err := measureExchanges(ctx, servers, pools, &t); err != nil {
			return nil, err
		}
		if !t.Valid() {
			return nil, fmt.Errorf("implausible times %+v", t)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// measureTogether measures computations on all rigs at the same time: the nodes of a machine share its memory
// and its processors. times is the number of nodes for each rig.
func measureTogether(rigs []*costRig, t *costs.Table, times float64) {
	mean := func(f func(r *costRig) float64) float64 {
		each, sum := make([]float64, len(rigs)), 0.0
		together(len(rigs), func(i int) { each[i] = f(rigs[i]) })
		for _, v := range each {
			sum += times * v / float64(len(rigs))
		}
		return sum
	}
	t.Region = mean((*costRig).region)
	t.Element, t.Sample, t.Round, t.Copy = mean((*costRig).element), mean((*costRig).sample), mean((*costRig).round), mean((*costRig).copies)
	t.Alone = 1
	if one := mean(func(r *costRig) float64 { return r.product(1, false) }); len(rigs) > 1 {
		t.Alone = min(1, times*rigs[0].product(1, false)/one)
	}
	small := mean(func(r *costRig) float64 { return r.product(1, true) })
	for i, rows := range costs.Rows {
		few := rows >= manyRows // the start is a small part of such a product
		took := mean(func(r *costRig) float64 { return r.product(rows, few) })
		weights := rigs[0].weightsOf(few)
		if i == 0 {
			rest := t.Region + t.Product(0, 1, rigs[0].columns())
			t.Start = min(max(0, (largeParts*small-took)/(largeParts-1)-rest), took/2)
		}
		rest := t.Region + t.Product(0, float64(rows), rigs[0].columns())
		t.Products[i] = max(took-rest, took/2) / weights
	}
	t.Products.Smooth()
	t.Slot = mean(func(r *costRig) float64 { return r.attend(t.Region / times) })
	t.PromptSlot = mean(func(r *costRig) float64 { return r.attendPrompt(t.Region / times) })
}

// costRig holds the operands of one pool in the measurements.
type costRig struct {
	pool    *tensor.Pool
	model   *model.Config
	weights []*tensor.Weight
	x, y    []float32
	next    int // round

	layout       tensor.KVLayout
	heads, group int
	memory       []byte     // of the caches
	caches       [][][]byte // blocks of one head of one row
	score        tensor.Score
	scratch      sync.Pool // of *attendScratch
}

// attendScratch is the memory of one thread that attends.
type attendScratch struct {
	attn tensor.AttnScratch
	out  []float32 // of the rows that attend together
}

const (
	costTime   = 15 * time.Millisecond // of one measurement,
	costRounds = 3                     // but at least this number of rounds
	costSlots  = 1024                  // that a decode row reads
	costMACs   = 1 << 25               // of prompt attention, about: undisturbed rounds are short
	largeParts = 4                     // small products in a large one
	manyRows   = 128                   // from which only small products are measured
)

func (c *SpeedsConfig) newCostRig(threads int) (r *costRig, err error) {
	r = &costRig{pool: tensor.NewPool(threads), model: c.Model}
	bytes := int(ReadSize()) / c.Nodes // exceeds the caches of the processor
	_, side, cols := c.products()
	side *= largeParts
	rows := costs.Rows[len(costs.Rows)-1]
	r.x, r.y = make([]float32, rows*cols), make([]float32, rows*side)
	for i := range r.x {
		r.x[i] = float32(i%7) - 3
	}
	for range max(2, bytes/int(tensor.WeightBytes(c.Weights, side, cols))) {
		w, err := tensor.NewWeight(c.Weights, side, cols)
		if err != nil {
			return r, err
		}
		r.weights = append(r.weights, w)
		zeros := make([]float32, cols)
		r.pool.Run(side/tensor.RowGrain, func(i int) { w.SetRow(i*tensor.RowGrain, zeros) }) // never-written memory is a single page of zeros
	}
	r.heads, _, _ = c.Model.CacheRow()
	r.group, r.layout = c.Model.Heads/r.heads, c.Model.CacheLayout(c.KV)
	r.score = tensor.Score{Scale: c.Model.AttentionScale(), Cap: c.Model.ScoreCap}
	r.scratch.New = func() any {
		return &attendScratch{out: make([]float32, r.layout.TokensTogether(r.group)*r.group*r.layout.VDim)}
	}
	block := r.layout.BlockBytes()
	perHead := costSlots / tensor.BlockSlots * block
	n := max(1, bytes/perHead/r.heads) * r.heads
	if r.memory, err = hugemem.Map(n * perHead); err != nil {
		return r, err
	}
	for i := 0; i < len(r.memory); i += 4096 {
		r.memory[i] = 0
	}
	for at := 0; at < len(r.memory); at += perHead {
		var blocks [][]byte
		for b := at; b < at+perHead; b += block {
			blocks = append(blocks, r.memory[b:b+block:b+block])
		}
		r.caches = append(r.caches, blocks)
	}
	return r, nil
}

func (r *costRig) close() (err error) {
	if r == nil {
		return nil
	}
	for _, w := range r.weights {
		err = errors.Join(err, w.Close())
	}
	if r.memory != nil {
		err = errors.Join(err, hugemem.Unmap(r.memory))
	}
	r.pool.Close()
	return err
}

// median returns the median of the times of f, in seconds.
func median(f func()) float64 {
	var took []time.Duration
	for start := time.Now(); len(took) < costRounds || time.Since(start) < costTime; {
		began := time.Now()
		f()
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds()
}

// region measures the time of a parallel region without its longest task. Tasks are long enough that one
// thread cannot take several before the others wake.
func (r *costRig) region() float64 {
	const task = 20 * time.Microsecond
	took := median(func() {
		r.pool.Run(r.pool.Threads(), func(int) {
			for start := time.Now(); time.Since(start) < task; { // busy
			}
		})
	})
	return max(0, took-task.Seconds())
}

// product measures a product with a number of rows. Successive products have other weights. A small one has
// 1/largeParts of the weights of a large one.
func (r *costRig) product(rows int, small bool) float64 {
	side, cols := r.weights[0].Rows, r.weights[0].Cols
	return median(func() {
		w, lo, hi := r.weights[r.next%len(r.weights)], 0, side
		if small {
			part := r.next / len(r.weights) % largeParts
			lo, hi = part*side/largeParts, (part+1)*side/largeParts
		}
		r.pool.MatMulRows(r.y, side, w, lo, hi, r.x, cols, rows)
		r.next++
	})
}

// weightsOf returns the number of weights of a product.
func (r *costRig) weightsOf(small bool) float64 {
	n := float64(r.weights[0].Rows * r.weights[0].Cols)
	if small {
		return n / largeParts
	}
	return n
}

func (r *costRig) columns() float64 { return float64(r.weights[0].Cols) }

// round measures the quantization of a row on one thread, for each element; 0: products of these weights need none.
func (r *costRig) round() float64 {
	const times = 16
	w := r.weights[0]
	if !kernel.Quantized(w.Type) {
		return 0
	}
	cols := w.Cols / tensor.BlockWidth * tensor.BlockWidth
	if cols == 0 {
		return 0
	}
	to := tensor.FloatBytes(make([]float32, tensor.QuantizedBytes(cols)))
	return median(func() {
		for range times {
			tensor.Quantize(to, tensor.QuantizedBytes(cols), w.Type, r.x, cols, cols, 1)
		}
	}) / float64(times*cols)
}

// copies measures a copy of memory that is not in the caches of its thread, for each byte.
func (r *costRig) copies() float64 {
	n, at := min(len(r.memory)/4, 1<<20), 0
	return median(func() {
		if at += 2 * n; at+2*n > len(r.memory) {
			at = 0
		}
		copy(r.memory[at:at+n], r.memory[at+n:at+2*n])
	}) / float64(n)
}

// attend measures decode rows that attend to their caches.
func (r *costRig) attend(region float64) float64 {
	width := r.group * r.layout.KDim
	q := make([]float32, width)
	tasks := min(len(r.caches), (8*r.pool.Threads()+r.heads-1)/r.heads*r.heads)
	took := median(func() {
		first := r.next * tasks
		r.pool.Run(tasks, func(i int) {
			s := r.scratch.Get().(*attendScratch)
			defer r.scratch.Put(s)
			tensor.Attend(s.out, q, r.group, r.score, r.layout, r.caches[(first+i)%len(r.caches)], costSlots, nil, &s.attn)
		})
		r.next++
	})
	return max(took-region, took/2) / float64(tasks/r.heads*costSlots)
}

// attendPrompt measures rows of a prompt whose heads share reads of the cache.
func (r *costRig) attendPrompt(region float64) float64 {
	width, together := r.group*r.layout.KDim, r.layout.TokensTogether(r.group)
	perRow := r.group * (r.layout.KDim + r.layout.VDim) * costSlots
	tasks := max(2*r.pool.Threads(), costMACs/perRow/together)
	first := costSlots - together
	q := make([]float32, together*width)
	took := median(func() {
		r.pool.Run(tasks, func(i int) {
			s := r.scratch.Get().(*attendScratch)
			defer r.scratch.Put(s)
			tensor.AttendCausal(s.out, r.group*r.layout.VDim, q, width, together, first, 0, r.group, r.score, r.layout, r.caches[i%r.heads], &s.attn)
		})
	})
	pairs := float64(tasks*together) / float64(r.heads) * (costSlots - float64(together)/2)
	return max(took-region, took/2) / pairs
}

// element measures the norm and the residual sum of a row on one thread, for each element.
func (r *costRig) element() float64 {
	const times = 64
	h := r.model.Hidden
	x, y, w := make([]float32, h), make([]float32, h), make([]float32, h)
	return median(func() {
		for range times {
			tensor.RMSNorm(y, x, w, 1e-5)
			tensor.Add(x, y)
		}
	}) / float64(times*h)
}

// sample measures the choice of one token from all logits, on one thread.
func (r *costRig) sample() float64 {
	logits := make([]float32, r.model.Vocab)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range logits {
		logits[i] = float32(rng.NormFloat64())
	}
	p, scratch, position := sampler.Default(), new(sampler.Scratch), 0
	return median(func() {
		position++
		sampler.Sample(logits, &p, position, nil, scratch)
	})
}

const (
	syncRanks = 4
	syncLarge = 16 << 10 // floats of one rank: its part of a step with many rows
)

// measureExchanges measures small all-gathers among two and four ranks, and large ones among two. Sending and
// receiving cost the same. A rank sends one message while it receives another, so the last of n-1 messages arrives
// after n of them (see forecast).
func measureExchanges(ctx context.Context, servers []*natsbus.Server, pools []*tensor.Pool, t *costs.Table) error {
	ctx, cancel := context.WithTimeout(ctx, 2*syncLimit)
	defer cancel()
	two, err := measuredSync(ctx, servers[:2], syncFloats, pools)
	if err != nil {
		return err
	}
	four, err := measuredSync(ctx, servers, syncFloats, pools)
	if err != nil {
		return err
	}
	large, err := measuredSync(ctx, servers[:2], syncLarge, pools)
	if err != nil {
		return err
	}
	t.Message = min(max(0, (four-two)/2), two/2)
	t.Exchange = two - 2*t.Message
	t.Byte = max(0, large-two) / (2 * 4 * (syncLarge - syncFloats))
	return nil
}
