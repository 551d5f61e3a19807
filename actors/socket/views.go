package socket

import (
	"sync"

	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// prefillView is a prompt that is being read, as a layer sees it: slot = position.
type prefillView struct {
	*kvcache.Store
	seen  *kvcache.Observation // nil: the policy looks at nothing
	scale float32
}

func (v prefillView) Observe(layer, head, pos, n int, q []float32, ldq int) {
	if v.seen == nil {
		return
	}
	s := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(s)
	v.seen.Observe(layer, head, pos, n, q, ldq, v.scale, v.Blocks(layer, v.rows(head)), s)
}

// rows is the KV head of the rows that a head, or of latent attention a unit, reads.
func (v prefillView) rows(head int) int {
	if v.Layout().Latent {
		return 0
	}
	return head
}

var scratch = sync.Pool{New: func() any { return new(tensor.AttnScratch) }}

func (v prefillView) Put(layer, head, pos, n int, k []float32, ldk int, val []float32, ldv int) {
	v.WriteRun(layer, head, pos, n, k, ldk, val, ldv)
}

func (v prefillView) View(layer, head, _ int, _ []float32, _ *tensor.AttnScratch) ([][]byte, int, []uint64) {
	return v.Blocks(layer, head), v.Len(layer, head), nil
}

// decodeView is an owner's store: the policy names the slots.
type decodeView struct {
	*kvcache.Store
	geometry kvcache.Geometry
	scale    float32
	rope     kvcache.Rope
}

// Observe weighs the slots by the newest query, for policies that evict by it: their tokens
// come one by one.
func (v decodeView) Observe(layer, head, _, _ int, q []float32, _ int) {
	if !v.Rule(layer).Scored() {
		return
	}
	s := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(s)
	n, blocks := v.Len(layer, head), v.ReadBlocks(layer, head, v.rope, s)
	if v.geometry.Units > 0 {
		v.Store.Observe(layer, head, kvcache.LatentMass(v.geometry, q, n, v.scale, blocks, s))
		return
	}
	mass := make([]float32, n)
	tensor.AttentionMass(mass, q, 0, 1, n-1, v.geometry.Group, v.scale, v.Layout(), blocks, s)
	v.Store.Observe(layer, head, mass)
}

func (v decodeView) Put(layer, head, pos, n int, k []float32, ldk int, val []float32, ldv int) {
	v.WriteRun(layer, head, pos, n, k, ldk, val, ldv)
}

func (v decodeView) View(layer, head, pos int, q []float32, s *tensor.AttnScratch) ([][]byte, int, []uint64) {
	return v.Store.View(layer, head, pos, q, v.scale, v.rope, s)
}

var noHeads tensor.Span

// promptHeads are the KV heads of a prompt whose rows a socket keeps.
func (e *epoch) promptHeads(owner int) tensor.Span {
	mine := e.place.Slices[e.rank].KVHeads
	if e.geometry.Units == 0 {
		return tensorSpan(mine)
	}
	return tensor.Span{Lo: 0, Hi: e.geometry.PromptHeads(mine.Len(), owner == e.rank)}
}

func tensorSpan(r topology.Range) tensor.Span { return tensor.Span{Lo: r.Lo, Hi: r.Hi} }
