package step

import (
	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/topology"
)

// SwiftKV's later layers, layer by layer. A sweep computes the keys and values of its caches from the input of the
// first later layer, which is stored for all tokens. Only the last rows of the prompt pass the layers, as in chunks. Their
// residual stream is stored separately.

// later restricts a pass to the later layers. In the sweep of the first of them, the last rows of the prompt continue
// through the layers. In other sweeps the pass ends after the keys and values, and kept takes the last rows through the
// layers. kept is nil if the pass has none of these rows.
func (w *sweep) later(p *pass) (kept *pass) {
	e, streams, n := w.epoch, w.seq.Streams, len(p.run.Tokens)
	first, end := e.Geometry.Later, w.stored(streams.Kept)
	rest := *p
	p.section.Caches, p.section.Before = topology.Range{Lo: w.From, Hi: w.To}, e.entry(first)-1
	if p.dropped = min(max(0, streams.From-p.run.Start), n); w.From == first {
		if p.dropped < n {
			p.to = end
		}
		return nil
	}
	rest.run.Start, rest.run.Tokens = p.run.Start+p.dropped, p.run.Tokens[p.dropped:]
	rest.from, rest.to = streams.Kept, end
	p.section.After = len(e.Weights.Layers) - e.entry(first)
	if p.dropped, p.last = n, false; len(rest.run.Tokens) == 0 {
		return nil
	}
	return &rest
}

// section returns the layers of the caches [from, to), without SwiftKV's pass.
func (e *Epoch) section(from, to int) layer.Section {
	return layer.Section{Before: e.entry(e.config.FirstLayer(from)), After: len(e.Weights.Layers) - 1 - e.entry(e.config.FirstLayer(to)-1)}
}

// entry returns the index of a layer in the layers of shard.Weights, where SwiftKV's pass comes before the first later
// layer.
func (e *Epoch) entry(number int) int {
	if first := e.config.SwiftKV.Layers; first > 0 && number >= first {
		return number + 1
	}
	return number
}
