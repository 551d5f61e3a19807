package pages

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/voting"
)

// Recall returns the parts of a policy that keeps the tokens which a policy with a ring evicts. p are the
// parts of that policy, without its ring. A query reads the tokens that the ring's policy would have kept,
// and of the others the given number of tokens in the pages with the highest bounds. (ArkVale, NeurIPS
// 2024, recalls evicted pages in this way.) With rows in files, memory has only these pages and the index.
//
// The prompt is laid out in this order of slots, and the generated tokens follow in text order:
//
//	| sink | chosen by the compressor | others, in text order | newest |
//
// The first two parts fill whole pages: the compressor chooses additional tokens for the last page. All
// counts are rounded up to pages of size slots, so a query reads a constant number of pages of a long
// sequence. A prompt without other tokens, or of a policy without a compressor, stays in text order. Its
// first pages then have its first tokens.
func Recall(p kvcache.Parts, ring kvcache.Ring, tokens, size int) kvcache.Parts {
	first := pagesOf(ring.Sink+p.TopK, size)
	parts := kvcache.Parts{Selector: Bounds{Size: size, First: first, Recent: ring.Recent,
		Pages: first + pagesOf(tokens, size) + Newest(ring.Recent, size)}}
	if p.Compressor != nil {
		parts.Index, parts.Reorders, parts.Needs = layout{p.Compressor, ring, first * size}, true, p.Needs
	}
	return parts
}

func pagesOf(tokens, size int) int { return (tokens + size - 1) / size }

// layout is the PromptIndex of Recall. It reorders the rows of a prompt, and needs no memory.
type layout struct {
	kvcache.Compressor
	ring  kvcache.Ring
	first int // slots of the first pages
}

// Fits implements kvcache.PromptIndex.
func (layout) Fits(kvcache.Geometry) error { return nil }

// Plan implements kvcache.PromptIndex.
func (layout) Plan(kvcache.Geometry, int) kvcache.IndexPlan { return kvcache.IndexPlan{} }

// Prepare implements kvcache.PromptIndex.
func (layout) Prepare(*kvcache.Observation, *kvcache.Store, int, kvcache.Run) {}

// Arrange implements kvcache.PromptIndex.
func (x layout) Arrange(s *kvcache.Statistics) kvcache.Kept {
	n, newest := s.Prompt, s.Prompt-x.ring.Recent
	if newest <= x.first {
		return kvcache.Kept{Positions: kvcache.Positions(nil, 0, n)}
	}
	order := kvcache.Positions(make([]int32, 0, n), 0, x.ring.Sink)
	order = append(order, voting.Top(x.Score(s), x.ring.Sink, newest, x.first-x.ring.Sink)...)
	chosen := order
	for pos := int32(x.ring.Sink); pos < int32(newest); pos++ {
		if _, found := slices.BinarySearch(chosen, pos); !found {
			order = append(order, pos)
		}
	}
	return kvcache.Kept{Positions: kvcache.Positions(order, newest, n)}
}

// Open implements kvcache.PromptIndex.
func (layout) Open(*kvcache.Store, bool) (kvcache.StoreIndex, error) { return laidOut{}, nil }

// laidOut is the StoreIndex of layout. It stores nothing, since the positions move with the rows.
type laidOut struct{}

// Build implements kvcache.StoreIndex.
func (laidOut) Build(int, kvcache.Run, kvcache.Ropes) error { return nil }

// IndexBytes implements kvcache.StoreIndex.
func (laidOut) IndexBytes(_, _ int) int { return 0 }

// ReadIndex implements kvcache.StoreIndex.
func (laidOut) ReadIndex([]byte, int, int) {}

// WriteIndex implements kvcache.StoreIndex.
func (laidOut) WriteIndex([]byte, int, int) error { return nil }

// Bytes implements kvcache.StoreIndex.
func (laidOut) Bytes() int64 { return 0 }

// Release implements kvcache.StoreIndex.
func (laidOut) Release() {}
