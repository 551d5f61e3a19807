package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
)

// SwiftKV compares reading a prompt where all tokens except the last skip a share of the layers
// with reading it completely.
type SwiftKV struct {
	Setup
	Tokens  int          `json:"tokens"`
	Chunk   int          `json:"chunk"`
	Repeat  int          `json:"repeat"`
	Rows    []SwiftKVRow `json:"rows"`
	Ceiling Ceiling      `json:"ceiling"`
	Machine Machine      `json:"machine"`
}

// SwiftKVRow is one share of the layers; the first row skips none.
type SwiftKVRow struct {
	Share      float64 `json:"share"`
	Group      int     `json:"group"`
	Layers     int     `json:"layers"` // layers that every token passes
	Caches     int     `json:"caches"`
	TokensPerS float64 `json:"tokens_per_s"` // fastest prompt
	MedianPerS float64 `json:"median_tokens_per_s"`
	Processor  float64 `json:"processor_s"` // CPU time of all threads, minimum over the prompts
	Times      float64 `json:"times"`       // speed relative to none, fastest prompts
	Arithmetic float64 `json:"arithmetic"`  // expected speed by the number of operations at the machine's peaks
	TokenBytes int64   `json:"token_bytes"` // bytes of cache
	Stages     Stages  `json:"stages"`
}

// RunSwiftKV measures prompts of o.Context tokens with no share and with every share, in turn, so
// that other load disturbs all equally.
func RunSwiftKV(ctx context.Context, o Options, shares []float64, group int, note func(string)) (*SwiftKV, error) {
	s := &SwiftKV{Tokens: o.Context, Repeat: o.Repeat, Machine: ThisMachine()}
	if o.Chunk <= 0 || o.Chunk > o.Context {
		o.Chunk = o.Context
	}
	s.Chunk = o.Chunk
	var rigs []*rig
	defer func() {
		for _, r := range rigs {
			r.close()
		}
	}()
	var costs []Costs
	for _, share := range slices.Concat([]float64{0}, shares) {
		of := o
		if share > 0 {
			of.Model += fmt.Sprintf(",swiftkv=%v,group=%d", share, group)
		}
		note(fmt.Sprintf("loading %s", of.Model))
		r, k, err := promptRig(ctx, of)
		if err != nil {
			return nil, err
		}
		c := &r.ck.Config
		rigs, costs = append(rigs, r), append(costs, k)
		row := SwiftKVRow{Share: share, Group: group, Layers: c.Layers, Caches: c.CacheLayers()}
		if share > 0 {
			row.Layers = c.SwiftKV.Layers
		}
		g := kvcache.Geometry{Layers: row.Caches, KVHeads: c.KVHeads, Layout: c.CacheLayout(o.KV)}
		row.TokenBytes = g.TokenBytes()
		s.Rows = append(s.Rows, row)
	}
	s.Setup = rigs[0].setup(o, o.Policy)
	var err error
	if s.Ceiling, err = MeasureCeiling(rigs[0].pool, ceilingTime); err != nil {
		return nil, err
	}
	took, worked := make([][]time.Duration, len(rigs)), make([][]time.Duration, len(rigs))
	for i := range o.Repeat + 1 {
		for j, r := range rigs {
			note(fmt.Sprintf("reading prompt %d of %d, share %v", i, o.Repeat, s.Rows[j].Share))
			before := cpuTime()
			t, stages, err := r.prompt(ctx, o, layered.Shape{}, uint64(i+1))
			if err != nil {
				return nil, err
			}
			if i == 0 {
				continue // the first run creates buffers and tables
			}
			worked[j] = append(worked[j], cpuTime()-before)
			if took[j] = append(took[j], t); t == slices.Min(took[j]) {
				s.Rows[j].Stages = stagesOf(stages, t)
			}
		}
	}
	whole := costs[0].PrefillFloor(o.Context, o.Weights, s.Ceiling)
	for j := range s.Rows {
		r := &s.Rows[j]
		r.TokensPerS, r.MedianPerS, _ = rates(o.Context, took[j])
		r.Processor = slices.Min(worked[j]).Seconds()
		r.Times = r.TokensPerS / s.Rows[0].TokensPerS
		r.Arithmetic = float64(whole) / float64(costs[j].PrefillFloor(o.Context, o.Weights, s.Ceiling))
	}
	return s, nil
}
