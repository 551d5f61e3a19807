package bench

import (
	"context"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Forms compares types of the weights in memory.
type Forms struct {
	Model   string  `json:"model"`
	KV      string  `json:"kv"`
	Threads int     `json:"threads"`
	Context int     `json:"context"`
	Prompt  int     `json:"prompt"`
	Batch   int     `json:"batch"`
	Rounds  int     `json:"rounds"`
	Forms   []Form  `json:"forms"`
	Machine Machine `json:"machine"`
}

// Form is the speed with one type of weights: medians over the rounds, in tokens/s.
type Form struct {
	Weights        string  `json:"weights"`
	WeightBytes    int64   `json:"weight_bytes"`
	Decode         float64 `json:"decode_tokens_per_s"`
	Prefill        float64 `json:"prefill_tokens_per_s"`
	DecodeRatio    float64 `json:"decode_ratio"` // relative to the first type; medians of the ratios of each round
	PrefillRatio   float64 `json:"prefill_ratio"`
	BandwidthShare float64 `json:"bandwidth_share"` // of decode, see Decode.MedianShare
	PeakShare      float64 `json:"peak_share"`      // of prefill, see Prefill.PeakShare
}

// RunForms measures decode and prefill with each type of weights in turn, in several rounds, so that a
// machine that slows down during the run affects all of them.
func RunForms(ctx context.Context, o Options, types []tensor.DType, prompt, rounds int, note func(string)) (*Forms, error) {
	f := &Forms{Model: o.Model, KV: o.KV.String(), Threads: o.Threads, Context: o.Context, Prompt: prompt, Batch: o.Batch, Rounds: rounds,
		Machine: ThisMachine(), Forms: make([]Form, len(types))}
	c, _, err := o.shape(o.Batch, max(prompt, o.Context+o.Tokens+warmSteps), o.Batch)
	if err != nil {
		return nil, err
	}
	decode, prefill := make([][]float64, len(types)), make([][]float64, len(types))
	for round := range rounds {
		for i, dt := range types {
			say := func(s string) { note(fmt.Sprintf("round %d of %d, %v: %s", round+1, rounds, dt, s)) }
			o.Weights = dt
			d, err := RunDecode(ctx, o, []string{"full"}, say)
			if err != nil {
				return nil, err
			}
			read := o
			read.Context, read.Chunk, read.Policy, read.Repeat = prompt, 0, "full", 2
			p, err := RunPrefill(ctx, read, say)
			if err != nil {
				return nil, err
			}
			decode[i], prefill[i] = append(decode[i], d.MedianPerS), append(prefill[i], p.MedianPerS)
			x := &f.Forms[i]
			x.Weights, x.WeightBytes, x.BandwidthShare, x.PeakShare = dt.String(), CostsOf(c, dt, o.KV).WeightBytes, d.MedianShare, p.PeakShare
		}
	}
	for i := range f.Forms {
		x := &f.Forms[i]
		x.Decode, x.Prefill = medianOf(decode[i]), medianOf(prefill[i])
		x.DecodeRatio, x.PrefillRatio = ratios(decode[i], decode[0]), ratios(prefill[i], prefill[0])
	}
	return f, nil
}

// ratios returns the median of the ratios of measurements of the same round.
func ratios(of, to []float64) float64 {
	r := make([]float64, len(of))
	for i := range r {
		r[i] = of[i] / to[i]
	}
	return medianOf(r)
}
