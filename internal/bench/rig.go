package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/accelerator"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/cuda/card"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Options configures the measurement of a model.
type Options struct {
	Model   string       // a shape of checkpoint.Shapes
	Weights tensor.DType // type of the matrices
	KV      tensor.DType // type of the cache
	Threads int          // per socket
	Nodes   int          // decode: sockets that share the model, each with its own server; 0: one
	Mapping topology.Mapping
	Context int // decode: tokens in every sequence's cache; prefill: tokens of the prompt
	Batch   int // decode: number of sequences
	Chunk   int // prefill: tokens per step; 0: all at once
	Policy  string
	Tokens  int    // decode: number of measured steps
	Repeat  int    // prefill: number of measured prompts
	Prefill string // prefill: booking.Chunks (or empty) or booking.Layers
	Layers  int    // prefill layer by layer: number of first layers that read the prompt; 0: all
	KVDisk  string // prefill layer by layer: folder for the residual stream; empty: it is in memory
	Device  string // graphics card that computes, such as cuda:0; empty: the CPU

	adapters *lora.Store   // files of LoRA adapters; nil: none
	scratch  *tier.Scratch // files for rows of filled caches or of residual streams; nil: they stay in memory
}

// shape returns the costs of a step with caches of `tokens` tokens. It returns an error if these
// and the activations of `rows` rows do not fit this machine.
func (o Options) shape(batch, tokens, rows int) (*model.Config, Costs, error) {
	ck, err := checkpoint.Random(o.Model)
	if err != nil {
		return nil, Costs{}, err
	}
	defer ck.Close()
	c := &ck.Config
	if most := c.MaxPositions; o.Context >= most || o.Tokens >= most-o.Context {
		return nil, Costs{},
			fmt.Errorf("bench: %s supports %d tokens: choose a smaller --context (%d) or --tokens (%d)", o.Model, most, o.Context, o.Tokens)
	}
	k := CostsOf(c, o.Weights, o.KV)
	return c, k, k.fits(batch, tokens, rows, c)
}

// rig is a shape with random weights, on one socket or several.
type rig struct {
	*alone.Socket
	pool    *tensor.Pool // the pool of the only socket, or one with the threads of all, for ceilings
	peers   []alone.Peer
	servers []*natsbus.Server
	ck      *checkpoint.Checkpoint
	card    *card.Card // nil: the CPU computes
}

func newRig(ctx context.Context, o Options, budget int64, rows int) (_ *rig, err error) {
	r := &rig{pool: tensor.NewPool(o.Threads * max(1, o.Nodes))}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.ck, err = checkpoint.Random(o.Model); err != nil {
		return nil, err
	}
	if o.Nodes > 1 {
		if r.servers, err = natsbus.StartServers(o.Nodes, "bench"); err != nil {
			return nil, err
		}
		for _, s := range r.servers {
			r.peers = append(r.peers, alone.Peer{Pool: tensor.NewPool(o.Threads), Connect: s.Join})
		}
	}
	device, err := r.openCard(o, budget)
	if err != nil {
		return nil, err
	}
	r.Socket, err = alone.New(ctx, alone.Config{Checkpoint: r.ck, Pool: r.pool, Device: device, Weights: o.Weights, KV: o.KV, KVBudget: budget,
		StepTokens: rows, Scratch: o.scratch, Adapters: o.adapters, Peers: r.peers, Mapping: o.Mapping})
	return r, err
}

// openCard opens the card of o, with memory for the caches; nil: the CPU computes.
func (r *rig) openCard(o Options, budget int64) (layer.Device, error) {
	index, ok := cluster.CardIndex(o.Device)
	if !ok {
		return nil, nil
	}
	c := &r.ck.Config
	if err := accelerator.Supports(c, o.Weights); err != nil {
		return nil, fmt.Errorf("bench: %s: %w", o.Device, err)
	}
	var err error
	if r.card, err = card.Open(index, card.Options{Fail: func(err error) { panic(err) }}); err != nil {
		return nil, err
	}
	return accelerator.New(r.card, budget, c.CacheLayout(o.KV))
}

// promptRig returns a rig for prompts of o.Context tokens in chunks of o.Chunk, with memory for
// several, or with the booked memory of one that is read layer by layer.
func promptRig(ctx context.Context, o Options) (*rig, Costs, error) {
	o.Tokens = 0
	tokens := 2 * o.Context
	if o.Prefill == booking.Layers { // the residual stream and the caches of some layers take less
		tokens = o.Context / 2
	}
	c, k, err := o.shape(1, tokens, o.Chunk)
	if err != nil {
		return nil, k, err
	}
	budget := 4 * k.heldBytes(o.Context+1024)
	if o.Prefill == booking.Layers {
		budget = 0
		for _, of := range []Options{o, o.warm()} {
			d, err := of.demand(c)
			if err != nil {
				return nil, k, err
			}
			budget = max(budget, of.booked(c, d))
		}
	}
	r, err := newRig(ctx, o, budget, o.Chunk)
	return r, k, err
}

func (r *rig) close() {
	if r.Socket != nil {
		r.Socket.Close()
	}
	for _, p := range r.peers {
		p.Pool.Close()
	}
	natsbus.ShutdownServers(r.servers)
	r.pool.Close()
	if r.ck != nil {
		r.ck.Close()
	}
}

// fill opens sequences 1..n with random caches under a policy. read is the result of Fill.
func (r *rig) fill(ctx context.Context, n, tokens int, policy string) (read float64, err error) {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	return r.Fill(ctx, ids, tokens, policy)
}

// empty releases the sequences of fill.
func (r *rig) empty(ctx context.Context, n int) error {
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = uint64(i + 1)
	}
	return r.Release(ctx, ids)
}

// decode decodes `steps` tokens of the sequences 1..n, whose caches have context tokens, after some
// warm-up steps. It calls step for each measured step.
func (r *rig) decode(ctx context.Context, n, context, steps int,
	step func(took, processor time.Duration, s step.Times)) (peak int64, err error) {
	rows := make([]*alone.Row, n)
	for i := range rows {
		rows[i] = &alone.Row{Seq: uint64(i + 1), At: context}
	}
	for i := range steps + warmSteps {
		before := cpuTime()
		reply, took, stages, err := r.Decode(ctx, rows)
		processor := cpuTime() - before
		if err != nil {
			return 0, err
		}
		peak = max(peak, reply.KvUsedBytes)
		if i >= warmSteps {
			step(took, processor, stages)
		}
	}
	return peak, nil
}

// rates returns the rates of the fastest step, of the median step, and of all steps together, per
// second.
func rates(each int, took []time.Duration) (best, median, mean float64) {
	n := float64(each)
	return n / slices.Min(took).Seconds(), n / medianOf(took).Seconds(), n / average(took).Seconds()
}

func average(d []time.Duration) time.Duration { return total(d) / time.Duration(len(d)) }

func total(d []time.Duration) (sum time.Duration) {
	for _, t := range d {
		sum += t
	}
	return sum
}

// medianOf returns the median: between two middle values, their mean.
func medianOf[T ~int64 | ~float64](d []T) T {
	d = slices.Clone(d)
	slices.Sort(d)
	low, high := d[(len(d)-1)/2], d[len(d)/2]
	return low + (high-low)/2
}

// share returns part divided by whole; 0: whole was not measured. JSON has no NaN and no infinity.
func share(part, whole float64) float64 {
	if whole == 0 {
		return 0
	}
	return part / whole
}

// Setup describes the measured configuration.
type Setup struct {
	Model   string `json:"model"`
	Weights string `json:"quant"`
	KV      string `json:"kv_type"`
	Policy  string `json:"policy"`
	Threads int    `json:"threads"`         // per socket
	Nodes   int    `json:"nodes,omitempty"` // sockets that share the model; 0: a single socket
	Mapping string `json:"mapping,omitempty"`
}

func (r *rig) setup(o Options, policy string) Setup {
	s := Setup{Model: o.Model, Weights: o.Weights.String(), KV: o.KV.String(), Policy: policy, Threads: o.Threads}
	if o.Nodes > 1 {
		s.Nodes, s.Mapping = o.Nodes, string(o.Mapping)
	}
	return s
}
