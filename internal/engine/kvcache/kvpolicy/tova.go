package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// tova keeps size tokens. Every step evicts the token, old or new, that the newest query attends to
// least (TOVA, arXiv 2401.06104). Each KV head decides by the attention of its group; the paper
// averages all heads of a layer.
var tova = method.Method{Name: "tova", Params: []method.Param{method.Size("size", 1024, 2)}, Parts: func(v []int) kvcache.Parts {
	of := windowVotes(1, 1, ofPrompt, 0, 1)
	return kvcache.Parts{Recent: 1, TopK: v[0] - 1, Compressor: of, Needs: of.needs,
		Eviction: leastAttended{lowestScore{recent: 1, size: v[0]}}}
}}

// leastAttended evicts the token that the newest query attends to least, but not the newest token
// itself.
type leastAttended struct{ lowestScore }

// Observe implements Scored: only the newest query counts.
func (leastAttended) Observe(h *kvcache.Head, attention []float32) { copy(h.Scores, attention) }
