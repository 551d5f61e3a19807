package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// SwiftKV is reading a prompt with parts of the layers left out for all its tokens but the
// last, beside reading it whole.
type SwiftKV struct {
	Setup
	Tokens  int          `json:"tokens"`
	Chunk   int          `json:"chunk"`
	Repeat  int          `json:"repeat"`
	Rows    []SwiftKVRow `json:"rows"`
	Ceiling Ceiling      `json:"ceiling"`
	Machine Machine      `json:"machine"`
}

// SwiftKVRow is one share of the layers; the first is none.
type SwiftKVRow struct {
	Share      float64 `json:"share"`
	Group      int     `json:"group"`
	Layers     int     `json:"layers"` // that every token goes through
	Caches     int     `json:"caches"`
	TokensPerS float64 `json:"tokens_per_s"` // of the fastest prompt
	MedianPerS float64 `json:"median_tokens_per_s"`
	Processor  float64 `json:"processor_s"` // of all threads, the least of a prompt
	Times      float64 `json:"times"`       // as fast as none, fastest by fastest
	Arithmetic float64 `json:"arithmetic"`  // as many fewer operations, by the peaks of the machine
	TokenBytes int64   `json:"token_bytes"` // of cache
	Stages     Stages  `json:"stages"`
}

// RunSwiftKV measures prompts of o.Context tokens whole and with every share, in turn, so
// that what disturbs the machine disturbs all alike.
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
			t, stages, err := r.prompt(ctx, o, uint64(i+1))
			if err != nil {
				return nil, err
			}
			if i == 0 {
				continue // buffers and tables are made
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
