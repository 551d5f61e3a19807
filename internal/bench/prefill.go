package bench

import (
	"context"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Prefill is the cost of reading a prompt. Best figures describe the fastest prompt.
type Prefill struct {
	Setup
	Tokens      int     `json:"tokens"`
	Chunk       int     `json:"chunk"`
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
	Ceiling     Ceiling `json:"ceiling"`
	Machine     Machine `json:"machine"`
}

// RunPrefill measures reading a prompt of o.Context tokens.
func RunPrefill(ctx context.Context, o Options, note func(string)) (*Prefill, error) {
	if o.Chunk <= 0 || o.Chunk > o.Context {
		o.Chunk = o.Context
	}
	p := &Prefill{Tokens: o.Context, Chunk: o.Chunk, Repeat: o.Repeat, Machine: ThisMachine()}
	note("loading")
	r, k, err := promptRig(ctx, o)
	if err != nil {
		return nil, err
	}
	defer r.close()
	p.Setup, p.LoadSeconds = r.setup(o, o.Policy), r.Load.Seconds()
	if p.Ceiling, err = MeasureCeiling(r.pool, ceilingTime); err != nil {
		return nil, err
	}
	note("reading")
	f, err := newFloor(r.pool, o.Weights, 0)
	if err != nil {
		return nil, err
	}
	defer f.close()
	mat, attn := k.Prefill(o.Context)
	var took, floors, attnFloors []time.Duration
	var spent workers.Spent
	for i := range o.Repeat + 1 {
		t, stages, err := r.prompt(ctx, o, uint64(i+1))
		if err != nil {
			return nil, err
		}
		if i == 0 {
			continue // the first run creates buffers and tables
		}
		took, spent = append(took, t), spent.Add(stages.Threads)
		if t == slices.Min(took) {
			p.Stages = stagesOf(stages, t)
		}
		if r.card != nil { // the ceiling of a card's arithmetic is not measured
			floors, attnFloors = []time.Duration{0}, []time.Duration{0}
			continue
		}
		floors, attnFloors = append(floors, f.arithmetic(mat, 0)), append(attnFloors, f.FMA(attn))
	}
	best, matFloor, attnFloor := slices.Min(took).Seconds(), slices.Min(floors).Seconds(), slices.Min(attnFloors).Seconds()
	p.TokensPerS, p.MedianPerS, p.MeanPerS = rates(o.Context, took)
	p.Shared = threadsOf(spent, len(took), total(took))
	p.Compression = p.Stages.Compression / p.Stages.Step
	p.GFLOPS = (mat + attn) / best / 1e9
	p.PeakShare = (matFloor + attnFloor) / best
	p.MatShare = matFloor * 1e6 / (p.Stages.Projection + p.Stages.FFN + p.Stages.Head)
	p.AttnShare = attnFloor * 1e6 / p.Stages.Attention
	return p, nil
}

// prompt reads one prompt, which replaces the previous one.
func (r *rig) prompt(ctx context.Context, o Options, seq uint64) (took time.Duration, sum step.Times, err error) {
	p := alone.Prompt{Seq: seq, Policy: o.Policy, Chunk: o.Chunk}
	for t := range o.Context {
		p.Tokens = append(p.Tokens, uint32((t*7919+int(seq))%r.ck.Config.Vocab))
	}
	if seq > 1 {
		p.Drop = []uint64{seq - 1}
	}
	_, took, sum, err = r.Prefill(ctx, p)
	return took, sum, err
}
