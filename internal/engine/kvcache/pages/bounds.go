// Package pages selects pages of a cache by bounds of their keys. It also makes policies that keep the
// tokens which another policy would evict, and select from them.
package pages

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Bounds selects pages by tensor.KVLayout.Bound (Quest, arXiv 2406.10774). A query reads the first
// pages, those of the newest tokens, and the pages with the highest bounds between them. The earlier
// page wins a tie.
type Bounds struct {
	Size   int // slots of a page
	First  int // number of first pages that every query reads
	Recent int // number of newest tokens that every query reads, at least 1
	Pages  int // number of pages that a query reads, at least First plus Newest(Recent, Size)
}

// Newest returns the maximum number of pages, of size slots, that contain the newest tokens.
func Newest(tokens, size int) int { return (tokens+size-2)/size + 1 }

// Page implements kvcache.Selector.
func (b Bounds) Page() int { return b.Size }

// Reads implements kvcache.Selector.
func (b Bounds) Reads(slots int) int { return min(slots, b.Size*b.Pages) }

// Index implements kvcache.Selector: the bounds of tensor.BlockSlots pages.
func (b Bounds) Index(l tensor.KVLayout) (bytes, slots int) {
	return l.IndexBytes(), tensor.BlockSlots * b.Size
}

// Update implements kvcache.Selector.
func (b Bounds) Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch) {
	row := s.Row(3 * l.KDim)
	for from < to {
		page := from / b.Size
		first, end := page*b.Size, min(to, (page+1)*b.Size)
		block := first / tensor.BlockSlots
		l.Bound(index[page/tensor.BlockSlots], page%tensor.BlockSlots, blocks[block], first-block*tensor.BlockSlots,
			from-block*tensor.BlockSlots, end-block*tensor.BlockSlots, row)
		from = end
	}
}

// Select returns the pages that the queries of a KV head read, ascending; nil: all.
func (b Bounds) Select(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []int32 {
	pages := (n + b.Size - 1) / b.Size
	if pages <= b.Pages {
		return nil
	}
	newest := (n - b.Recent) / b.Size // the first of the newest pages
	scores, chosen := s.ScorePages(l, index, pages, q.Rows, q.Heads), s.Mask(pages)
	clear(chosen)
	always := func(visit func(page int)) {
		for page := range b.First {
			visit(page)
		}
		for page := newest; page < pages; page++ {
			visit(page)
		}
	}
	always(func(page int) { scores[page] = topk.NaN })
	if best := b.Pages - b.First - (pages - newest); best > 0 {
		topk.Highest(scores, best, chosen, s)
	}
	always(func(page int) { chosen[page/64] |= 1 << (page % 64) })
	_, places := s.Chosen(0, b.Pages)
	return topk.Listed(chosen, places)
}
