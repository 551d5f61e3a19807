package bench

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Prefill is the cost of reading a prompt. Best figures describe the fastest prompt.
type Prefill struct {
	Setup
	Tokens      int     `json:"tokens"`
	Chunk       int     `json:"chunk"`
	Layers      int     `json:"layers,omitempty"` // layer by layer: number of layers that read the prompt
	Repeat      int     `json:"repeat"`
	TokensPerS  float64 `json:"tokens_per_s"`
	MedianPerS  float64 `json:"median_tokens_per_s"`
	MeanPerS    float64 `json:"mean_tokens_per_s"`
	GFLOPS      float64 `json:"gflops"`            // matrices and attention; a multiply-add counts as two
	PeakShare   float64 `json:"peak_share"`        // time of only the same arithmetic, measured between the prompts, divided by the best prompt's
	Stages      Stages  `json:"stages"`            // summed over the chunks
	Shared      Threads `json:"thread_time"`       // all prompts
	Compression float64 `json:"compression_share"` // fraction of the prompt's time: observation, votes, selection, transfer
	MatShare    float64 `json:"matmul_peak"`       // projections, FFN and head compared with their floor
	AttnShare   float64 `json:"attention_peak"`
	LoadSeconds float64 `json:"load_s"`
	Memory      Peaks   `json:"memory"`
	Ceiling     Ceiling `json:"ceiling"`
	Machine     Machine `json:"machine"`
}

// Peaks is the memory of one prompt, in bytes. Process is the growth of the process since before the first prompt,
// 0 where the system does not report it.
type Peaks struct {
	Ledger  int64 `json:"ledger"`  // booked by the batcher
	Caches  int64 `json:"caches"`  // maximum that was allocated
	Process int64 `json:"process"` // resident
}

// RunPrefill measures reading a prompt of o.Context tokens.
func RunPrefill(ctx context.Context, o Options, note func(string)) (*Prefill, error) {
	if o.Chunk <= 0 || o.Chunk > o.Context {
		o.Chunk = o.Context
	}
	p := &Prefill{Tokens: o.Context, Chunk: o.Chunk, Repeat: o.Repeat, Machine: ThisMachine()}
	note("loading")
	if o.KVDisk != "" {
		var err error
		if o.scratch, err = tier.OpenScratch(o.KVDisk, math.MaxInt64, slog.New(slog.DiscardHandler)); err != nil {
			return nil, err
		}
		defer o.scratch.Close()
	}
	r, k, err := promptRig(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	d, err := o.demand(&r.ck.Config)
	if err != nil {
		return nil, err
	}
	p.Setup, p.LoadSeconds = r.setup(o, o.Policy), r.Load.Seconds()
	if p.Ceiling, err = MeasureCeiling(r.pool, ceilingTime); err != nil {
		return nil, err
	}
	f, err := newFloor(r.pool, o.Weights, 0)
	if err != nil {
		return nil, err
	}
	defer f.close()
	mat, attn := k.Prefill(o.Context)
	part := 1.0 // of the layers
	if d.Shape.Group > 0 {
		p.Layers = r.layersRead(o)
		part = min(1, float64(p.Layers)/float64(cmp.Or(d.Shape.Later, d.Shape.Layers)))
	}
	mat, attn = mat*part, attn*part
	note("warming up")
	warm := o.warm()
	if _, _, err := r.prompt(ctx, warm, layered.Shape{}, 1); err != nil { // it creates buffers and tables
		return nil, err
	}
	p.Memory.Ledger = o.booked(&r.ck.Config, d)
	before := resetPeak()
	note("reading")
	var took, floors, attnFloors []time.Duration
	var spent workers.Spent
	for i := range o.Repeat {
		t, stages, err := r.prompt(ctx, o, d.Shape, uint64(i+2))
		if err != nil {
			return nil, err
		}
		took, spent = append(took, t), spent.Add(stages.Threads)
		if t == slices.Min(took) {
			p.Stages = stagesOf(stages, t)
		}
		if i == 0 && before > 0 {
			p.Memory.Process = max(0, peakResident()-before)
		}
		if r.card != nil { // the ceiling of a card's arithmetic is not measured
			floors, attnFloors = []time.Duration{0}, []time.Duration{0}
			continue
		}
		floors, attnFloors = append(floors, f.arithmetic(mat, 0)), append(attnFloors, f.FMA(attn))
	}
	if p.Memory.Caches, err = r.PeakBytes(ctx); err != nil {
		return nil, err
	}
	best, matFloor, attnFloor := slices.Min(took).Seconds(), slices.Min(floors).Seconds(), slices.Min(attnFloors).Seconds()
	p.TokensPerS, p.MedianPerS, p.MeanPerS = rates(int(float64(o.Context)*part), took)
	p.Shared = threadsOf(spent, len(took), total(took))
	p.Compression = share(p.Stages.Compression, p.Stages.Step)
	p.GFLOPS = (mat + attn) / best / 1e9
	p.PeakShare = (matFloor + attnFloor) / best
	p.MatShare = share(matFloor*1e6, p.Stages.Projection+p.Stages.FFN+p.Stages.Head)
	p.AttnShare = share(attnFloor*1e6, p.Stages.Attention)
	return p, nil
}

// warm returns the prompt that is read before the measured ones: one chunk.
func (o Options) warm() Options {
	o.Context, o.Prefill = o.Chunk, booking.Chunks
	return o
}

// demand returns the admission of a prompt, with the way to read it.
func (o Options) demand(c *model.Config) (booking.Demand, error) {
	d := booking.Demand{Read: o.Context, Tokens: o.Context}
	p, err := kvpolicy.Parse(o.Policy)
	if err != nil {
		return d, err
	}
	d.Policy = p.For(o.Context)
	if o.Prefill != booking.Layers {
		return d, nil
	}
	of := booking.Prefill{Mode: booking.Layers}
	if shard.Layered(c) {
		of.Hidden = c.Hidden
	}
	shapes := of.Shapes(o.geometry(c), 1, d.Policy, o.Context, 0, func(int64) bool { return o.KVDisk != "" })
	if d.Shape = shapes[len(shapes)-1]; d.Shape.Group == 0 {
		return d, fmt.Errorf("bench: a prompt of %d tokens of %s under policy %s is not read layer by layer: "+
			"choose a policy that drops tokens, more than %d tokens, or another model", o.Context, o.Model, o.Policy, o.Chunk)
	}
	return d, nil
}

// geometry returns the shape of the cache, of which a step in chunks has o.Chunk rows.
func (o Options) geometry(c *model.Config) kvcache.Geometry {
	g := shard.GeometryOf(c, o.KV)
	g.Chunk = o.Chunk
	return g
}

// booked returns the bytes that the ledger books for a prompt.
func (o Options) booked(c *model.Config, d booking.Demand) int64 {
	g := o.geometry(c)
	return d.Bytes(g, g.Cut(), true, 0)
}

// layersRead returns the number of layers that read a prompt layer by layer.
func (r *rig) layersRead(o Options) int {
	if all := r.ck.Config.CacheLayers(); o.Layers <= 0 || o.Layers > all {
		return all
	}
	return o.Layers
}

// prompt reads one prompt, which replaces the previous one.
func (r *rig) prompt(ctx context.Context, o Options, of layered.Shape, seq uint64) (took time.Duration, sum step.Times, err error) {
	p := alone.Prompt{Seq: seq, Policy: o.Policy, Chunk: o.Chunk, Shape: of, Layers: r.layersRead(o)}
	for t := range o.Context {
		p.Tokens = append(p.Tokens, uint32((t*7919+int(seq))%r.ck.Config.Vocab))
	}
	if seq > 1 {
		p.Drop = []uint64{seq - 1}
	}
	_, took, sum, err = r.Prefill(ctx, p)
	return took, sum, err
}
