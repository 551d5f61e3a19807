package report

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Socket is one rank of a placement, as the batcher plans for it.
type Socket struct {
	ID       string
	Budget   int64       // bytes for the cache
	Heads    tensor.Span // KV heads (latent attention: units of query heads) it reads prompts for
	Scratch  int64       // bytes of files for rows of sequences; 0: none
	Adapters int64       // bytes for LoRA adapters
}

// CheckRanks returns the error in the KV heads of a placement, or "".
func CheckRanks(sockets []Socket, heads int) string {
	next := 0
	for i, k := range sockets {
		if k.Heads == (tensor.Span{}) {
			k.Heads = tensor.Span{Lo: next, Hi: next}
		}
		if k.Heads.Hi < k.Heads.Lo || k.Heads.Hi > k.Heads.Lo && k.Heads.Lo != next {
			return fmt.Sprintf("rank %d reads KV heads [%d,%d), expected from %d on", i, k.Heads.Lo, k.Heads.Hi, next)
		}
		next = max(next, k.Heads.Hi)
	}
	if next != heads {
		return fmt.Sprintf("%d sockets read %d of %d KV heads", len(sockets), next, heads)
	}
	return ""
}

// Held is the cache of a sequence that was decoding when its epoch ended, on a socket of the next
// epoch: the owner's cache, or a replica. A change of the placement does not matter, because the
// cache is whole.
type Held struct {
	Seq     uint64
	Rank    int // in the new placement
	Prompt  int // tokens that prefill has read
	Tokens  int // committed
	Staged  int // tokens of the last step, which the socket can keep or roll back
	Replica bool
	Spilled int // the number of its blocks in a file
}

// Fits reports whether the cache matches an interrupted admission, with this number of tokens that prefill
// has read, and of tokens in the cache.
func (h *Held) Fits(read, cached int) bool {
	return h.Prompt == read && h.Tokens <= cached && cached <= h.Tokens+h.Staged
}
