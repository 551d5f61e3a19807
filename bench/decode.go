package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"shoal/actors/socket"
	"shoal/model"
)

// Stages are the parts of one step in microseconds.
type Stages struct {
	Begin       float64 `json:"begin_us"`
	Projection  float64 `json:"projection_us"`
	Attention   float64 `json:"attention_us"`
	Observation float64 `json:"observation_us"` // of a prompt, while it is read
	FFN         float64 `json:"ffn_us"`
	Head        float64 `json:"head_us"`
	Votes       float64 `json:"votes_us"` // attention of the observation window
	Selection   float64 `json:"selection_us"`
	Shipping    float64 `json:"shipping_us"`
	Compression float64 `json:"compression_us"` // the last three and the observation
	Other       float64 `json:"other_us"`       // messages between actors, waiting for a turn
	Step        float64 `json:"step_us"`
}

func stagesOf(s socket.Stages, step time.Duration) Stages {
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	known := s.Begin + s.Projection + s.Attention + s.FFN + s.Head + s.Compression()
	return Stages{Begin: us(s.Begin), Projection: us(s.Projection), Attention: us(s.Attention), Observation: us(s.Observation), FFN: us(s.FFN), Head: us(s.Head),
		Votes: us(s.Votes), Selection: us(s.Selection), Shipping: us(s.Shipping), Compression: us(s.Compression()), Other: us(step - known), Step: us(step)}
}

// Decode is what taking sequences one token further costs. Best figures are of
// the fastest step, which a shared machine disturbed least.
type Decode struct {
	Model       string  `json:"model"`
	Weights     string  `json:"quant"`
	KV          string  `json:"kv_type"`
	Threads     int     `json:"threads"`
	Context     int     `json:"context"`
	Batch       int     `json:"batch"`
	Steps       int     `json:"steps"`
	TokensPerS  float64 `json:"tokens_per_s"`        // of the fastest step, all sequences
	MedianPerS  float64 `json:"median_tokens_per_s"` // of the median step
	MeanPerS    float64 `json:"mean_tokens_per_s"`   // of all steps together, as other programs count
	Bytes       float64 `json:"bytes_per_step"`      // weights and cache that a step reads
	PerToken    float64 `json:"bytes_per_token"`
	Bandwidth   float64 `json:"bandwidth_gbs"`
	Read        float64 `json:"read_gbs"`        // the same bytes only read, between the steps
	Share       float64 `json:"bandwidth_share"` // of that: best step against best read
	MedianShare float64 `json:"median_bandwidth_share"`
	CPUShare    float64 `json:"cpu_share"`      // processor time of reading over that of the steps, medians: neighbours count less
	PeakShare   float64 `json:"peak_share"`     // of the arithmetic peak, likewise
	Roofline    float64 `json:"roofline_share"` // of the higher of both floors
	Stages      Stages  `json:"stages"`         // of the fastest step
	LoadSeconds float64 `json:"load_s"`
	Ceiling     Ceiling `json:"ceiling"`
	Machine     Machine `json:"machine"`
}

// RunDecode measures decode on random weights and random caches.
func RunDecode(ctx context.Context, o Options, note func(string)) (*Decode, error) {
	ck, err := model.Random(o.Model)
	if err != nil {
		return nil, err
	}
	k := CostsOf(&ck.Config, o.Weights, o.KV)
	steps := o.Tokens + warmSteps
	if most := ck.Config.MaxPositions; o.Context >= most || o.Tokens > most-o.Context-warmSteps {
		return nil, fmt.Errorf("bench: %s was made for %d tokens: choose a smaller --context (%d) or --tokens (%d, and %d to warm up)", o.Model, most, o.Context, o.Tokens, warmSteps)
	}
	if err := k.fits(o.Batch, o.Context+steps, o.Batch, &ck.Config); err != nil {
		return nil, err
	}
	d := &Decode{Model: o.Model, Weights: o.Weights.String(), KV: o.KV.String(), Context: o.Context, Batch: o.Batch, Steps: o.Tokens, Machine: ThisMachine()}
	note("loading")
	r, err := newRig(ctx, o, int64(o.Batch)*k.heldBytes(o.Context+steps+128), o.Batch)
	if err != nil {
		return nil, err
	}
	defer r.close()
	d.Threads, d.LoadSeconds = r.pool.Threads(), r.Load.Seconds()
	if d.Ceiling, err = MeasureCeiling(r.pool, ceilingTime); err != nil {
		return nil, err
	}
	note("filling caches")
	if err := r.fill(ctx, o.Batch, o.Context, "full"); err != nil {
		return nil, err
	}
	note("decoding")
	f, err := newFloor(r.pool, o.Weights)
	if err != nil {
		return nil, err
	}
	defer f.close()
	var bytes float64
	var took, read, compute, stepCPU, readCPU []time.Duration
	_, err = r.decode(ctx, o.Batch, o.Context, o.Tokens, func(t, processor time.Duration, stages socket.Stages) {
		took, stepCPU = append(took, t), append(stepCPU, processor)
		if t == slices.Min(took) {
			d.Stages = stagesOf(stages, t)
		}
		var mat, attn float64
		bytes, mat, attn = k.Decode(o.Batch, o.Context+steps/2, float64(stages.Experts))
		before := cpuTime()
		read = append(read, f.Read(bytes))
		readCPU, compute = append(readCPU, cpuTime()-before), append(compute, f.arithmetic(mat, attn))
	})
	if err != nil {
		return nil, err
	}
	best, readFloor, computeFloor := slices.Min(took).Seconds(), slices.Min(read).Seconds(), slices.Min(compute).Seconds()
	median, medianRead := middle(took).Seconds(), middle(read).Seconds()
	d.TokensPerS, d.MedianPerS, d.MeanPerS = rates(o.Batch, took)
	d.Bytes, d.PerToken, d.Bandwidth, d.Read = bytes, bytes/float64(o.Batch), bytes/best/1e9, bytes/readFloor/1e9
	d.Share, d.MedianShare = readFloor/best, medianRead/median
	d.CPUShare = middle(readCPU).Seconds() / max(middle(stepCPU).Seconds(), 1e-9)
	d.PeakShare, d.Roofline = computeFloor/best, max(readFloor, computeFloor)/best
	return d, nil
}

const (
	warmSteps   = 3
	ceilingTime = 500 * time.Millisecond
)
