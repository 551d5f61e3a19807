package bench

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Stages has the parts of one step in microseconds.
type Stages struct {
	Begin       float64 `json:"begin_us"`
	Projection  float64 `json:"projection_us"`
	Attention   float64 `json:"attention_us"`
	Observation float64 `json:"observation_us"` // of a prompt, during prefill
	FFN         float64 `json:"ffn_us"`
	Head        float64 `json:"head_us"`
	Votes       float64 `json:"votes_us"` // attention of the observation window
	Selection   float64 `json:"selection_us"`
	Shipping    float64 `json:"shipping_us"`
	Compression float64 `json:"compression_us"` // the last three and the observation
	Wait        float64 `json:"wait_us"`        // waiting for collectives
	Other       float64 `json:"other_us"`       // messages between actors, waiting for a turn
	Step        float64 `json:"step_us"`
}

func stagesOf(s step.Times, step time.Duration) Stages {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	known := s.Begin + s.Projection + s.Attention + s.FFN + s.Head + s.Wait + s.Compression()
	return Stages{Begin: us(s.Begin), Projection: us(s.Projection), Attention: us(s.Attention),
		Observation: us(s.Observation), FFN: us(s.FFN), Head: us(s.Head),
		Votes: us(s.Votes), Selection: us(s.Selection), Shipping: us(s.Shipping), Compression: us(s.Compression()), Wait: us(s.Wait),
		Other: us(step - known), Step: us(step)}
}

// Decode is the cost of a decode step. Best figures describe the fastest step, which other load
// disturbed least.
type Decode struct {
	Setup
	Context     int       `json:"context"`
	Batch       int       `json:"batch"`
	Steps       int       `json:"steps"`
	TokensPerS  float64   `json:"tokens_per_s"`        // fastest step, all sequences
	MedianPerS  float64   `json:"median_tokens_per_s"` // median step
	MeanPerS    float64   `json:"mean_tokens_per_s"`   // all steps together, as other programs count
	Bytes       float64   `json:"bytes_per_step"`      // weights and cache read per step
	PerToken    float64   `json:"bytes_per_token"`
	Bandwidth   float64   `json:"bandwidth_gbs"`
	Read        float64   `json:"read_gbs"`        // rate of only reading the same bytes, measured between the steps
	Share       float64   `json:"bandwidth_share"` // best step compared with best read
	MedianShare float64   `json:"median_bandwidth_share"`
	CPUShare    float64   `json:"cpu_share"`       // CPU time of reading divided by that of the steps, medians; less affected by other load
	PeakShare   float64   `json:"peak_share"`      // fraction of the arithmetic peak, in the same way
	Roofline    float64   `json:"roofline_share"`  // fraction of the higher of both floors
	CacheBytes  float64   `json:"cache_bytes"`     // of Bytes: read by attention from one sequence's cache
	CacheShare  float64   `json:"cache_share"`     // fraction of the bytes read under the policy full
	Times       float64   `json:"times,omitempty"` // speed relative to the policy full, and the ratio that the bytes predict
	Bound       float64   `json:"bound,omitempty"`
	Baseline    *Decode   `json:"beside,omitempty"` // the same under the policy full
	Others      []*Decode `json:"others,omitempty"` // the same under further policies
	Stages      Stages    `json:"stages"`           // fastest step
	Shared      Threads   `json:"thread_time"`      // all steps
	LoadSeconds float64   `json:"load_s"`
	Ceiling     Ceiling   `json:"ceiling"`
	Machine     Machine   `json:"machine"`
}

// RunDecode measures decode with random weights and caches, under the policy full and under each of
// policies. It returns the result of the first of policies, with that of full as its Baseline.
func RunDecode(ctx context.Context, o Options, policies []string, note func(string)) (*Decode, error) {
	steps := o.Tokens + warmSteps
	c, k, err := o.shape(o.Batch, o.Context+steps, o.Batch)
	if err != nil {
		return nil, err
	}
	note("loading")
	g := shard.GeometryOf(c, o.KV)
	all, held := []*kvcache.Policy{kvcache.Full()}, k.heldBytes(o.Context+steps+128)
	for _, spec := range policies {
		p, err := kvpolicy.Parse(spec)
		if err != nil {
			return nil, err
		}
		if p = p.For(o.Context); p.Spec() != all[0].Spec() {
			all = append(all, p)
		}
		held = max(held, 2*kvcache.StatisticsBytes(g, g.Cut(), o.Context, p)+kvcache.PrefillBytes(g, g.KVHeads, p.Needs.Window, p)+
			max(kvcache.ResidentBytes(g, o.Context, o.Context+steps, p), kvcache.HandoverBytes(g, g.KVHeads, o.Context, p)))
	}
	owners := max(1, min(o.Nodes, o.Batch))
	k = k.over(o.Mapping, owners)
	r, err := newRig(ctx, o, int64((o.Batch+owners-1)/owners)*held, o.Batch)
	if err != nil {
		return nil, err
	}
	defer r.close()
	ceiling, err := MeasureCeiling(r.pool, ceilingTime)
	if err != nil {
		return nil, err
	}
	bytes, _, _ := k.Decode(o.Batch, o.Context, 0)
	f, err := newFloor(r.pool, o.Weights, bytes)
	if err != nil {
		return nil, err
	}
	defer f.close()
	var full, first *Decode
	for _, p := range all {
		d := &Decode{Setup: r.setup(o, p.Spec()), Context: o.Context, Batch: o.Batch, Steps: o.Tokens, LoadSeconds: r.Load.Seconds(),
			Ceiling: ceiling, Machine: ThisMachine()}
		note("policy " + p.Spec())
		if err := d.measure(ctx, r, f, k, g, p); err != nil {
			return nil, err
		}
		switch {
		case full == nil:
			full = d
			continue
		case first == nil:
			first = d
			d.Baseline = full
		default:
			first.Others = append(first.Others, d)
		}
		d.Times, d.Bound = d.TokensPerS/full.TokensPerS, full.Bytes/d.Bytes
	}
	return cmp.Or(first, full), nil
}

// measure fills caches under a policy and decodes from there.
func (d *Decode) measure(ctx context.Context, r *rig, f *floor, k Costs, g kvcache.Geometry, p *kvcache.Policy) error {
	chosen, err := r.fill(ctx, d.Batch, d.Context, p.Spec())
	if err != nil {
		return err
	}
	at, full := d.Context+(d.Steps+warmSteps)/2, kvcache.Full()
	whole := float64(kvcache.ReadBytes(g, d.Context, at, full))
	d.CacheBytes = float64(kvcache.ReadBytes(g, d.Context, at, p))
	if chosen > 0 { // count the slots that queries read, not the maximum of the policy
		d.CacheBytes += (chosen - float64(p.Selector.Reads(at))/float64(at)) * whole
	}
	d.CacheShare = d.CacheBytes / whole
	var took, read, compute, stepCPU, readCPU []time.Duration
	var spent workers.Spent
	_, err = r.decode(ctx, d.Batch, d.Context, d.Steps, func(t, processor time.Duration, stages step.Times) {
		took, stepCPU, spent = append(took, t), append(stepCPU, processor), spent.Add(stages.Threads)
		if t == slices.Min(took) {
			d.Stages = stagesOf(stages, t)
		}
		bytes, mat, attn := k.Decode(d.Batch, at, float64(stages.Experts))
		d.Bytes = bytes + float64(d.Batch)*(d.CacheBytes-whole)
		if r.card != nil {
			return
		}
		before := cpuTime()
		read = append(read, f.Read(d.Bytes))
		readCPU, compute = append(readCPU, cpuTime()-before), append(compute, f.arithmetic(mat, attn*d.CacheShare))
	})
	if err != nil {
		return err
	}
	if r.card != nil { // the memory of the card sets the floor
		rate, err := r.card.ReadRate()
		if err != nil {
			return err
		}
		read, compute = []time.Duration{time.Duration(d.Bytes / rate * float64(time.Second))}, []time.Duration{0}
	}
	best, readFloor, computeFloor := slices.Min(took).Seconds(), slices.Min(read).Seconds(), slices.Min(compute).Seconds()
	median, medianRead := medianOf(took).Seconds(), medianOf(read).Seconds()
	d.TokensPerS, d.MedianPerS, d.MeanPerS = rates(d.Batch, took)
	d.Shared = threadsOf(spent, len(took), total(took))
	d.PerToken, d.Bandwidth, d.Read = d.Bytes/float64(d.Batch), d.Bytes/best/1e9, d.Bytes/readFloor/1e9
	d.Share, d.MedianShare = readFloor/best, medianRead/median
	if r.card == nil {
		d.CPUShare = medianOf(readCPU).Seconds() / max(medianOf(stepCPU).Seconds(), 1e-9)
	}
	d.PeakShare, d.Roofline = computeFloor/best, max(readFloor, computeFloor)/best
	return r.empty(ctx, d.Batch)
}

const (
	warmSteps   = 3
	ceilingTime = 500 * time.Millisecond
)
