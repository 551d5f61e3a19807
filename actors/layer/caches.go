package layer

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// PromptCache adapts the cache of a prompt during prefill, where slot numbers equal positions.
type PromptCache struct {
	*kvcache.Store
	Seen  *kvcache.Observation // nil: the policy observes nothing
	Score tensor.Score
}

func (c PromptCache) Observe(layer, head, pos, n int, q []float32, ldq int) {
	if c.Seen == nil {
		return
	}
	rows := head // head whose keys are read: all units of latent attention share head 0
	if c.Layout().Latent {
		rows = 0
	}
	s := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(s)
	c.Seen.Observe(layer, head, pos, n, q, ldq, c.Score, c.Blocks(layer, rows), s)
}

func (c PromptCache) View(layer, head, _ int, _ []float32, _ *tensor.AttnScratch) ([][]byte, int, []uint64) {
	return c.Blocks(layer, head), c.Len(layer, head), nil
}

func (PromptCache) Masks(int, int, int, int, []float32, int, *tensor.AttnScratch) [][]uint64 {
	return nil
}

// OwnedCache adapts an owner's cache, where the policy assigns the slots.
type OwnedCache struct {
	*kvcache.Store
	Score tensor.Score
	Ropes kvcache.Ropes
}

// Observe updates the slot scores from the newest query, for policies that evict by attention. Their
// tokens come one at a time.
func (c OwnedCache) Observe(layer, head, _, _ int, q []float32, _ int) {
	if !c.Rule(layer).Scored() {
		return
	}
	s := scratch.Get().(*tensor.AttnScratch)
	defer scratch.Put(s)
	c.Weigh(layer, head, q, c.Score, c.Ropes.Of(layer), s)
}

func (c OwnedCache) View(layer, head, pos int, q []float32, s *tensor.AttnScratch) ([][]byte, int, []uint64) {
	return c.Store.View(layer, head, pos, q, c.Score, c.Ropes.Of(layer), s)
}

func (c OwnedCache) Masks(layer, head, pos, n int, q []float32, ldq int, s *tensor.AttnScratch) [][]uint64 {
	return c.Store.Masks(layer, head, pos, n, q, ldq, c.Score, s)
}
