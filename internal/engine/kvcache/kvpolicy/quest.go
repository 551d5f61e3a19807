package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// quest keeps every token and reads few (Quest, arXiv 2406.10774). For each page an index holds the
// smallest and the largest element of its keys in each channel, which bounds a query's score there.
// Each decode step reads the pages with the highest bounds, up to the budget in tokens. The first
// and the newest page are always included; the earlier page wins a tie. Prefill reads everything,
// and so do the first skip layers (the paper: 2).
//
// Bounds are those of the stored keys: after RoPE, rounded to the type of the cache. The paper
// chooses for each query head. Here all query heads of a KV head read the same pages, those with
// the highest bound of any of them.
var quest = method.Method{Name: "quest", Params: []method.Param{{Key: "page", Value: 16, Min: 16, Max: 64, PowerOfTwo: true},
	method.Size("budget", 1024, 32), {Key: "skip", Max: 1024}}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Selector: pageBounds{page: v[0], pages: max(2, v[1]/v[0])}, Skip: v[2]}
}, Named: []method.Named{{Name: "paper", Settings: "page=16,skip=2"}}} // section 4.1

// pageBounds selects pages by tensor.KVLayout.Bound.
type pageBounds struct {
	page  int // slots
	pages int // number of pages that a query reads, at least 2
}

func (b pageBounds) Page() int { return b.page }

func (b pageBounds) Reads(slots int) int { return min(slots, b.page*b.pages) }

// Index implements Selector: the bounds of tensor.BlockSlots pages.
func (b pageBounds) Index(l tensor.KVLayout) (bytes, slots int) {
	return l.IndexBytes(), tensor.BlockSlots * b.page
}

func (b pageBounds) Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch) {
	row := s.Row(3 * l.KDim)
	for from < to {
		page := from / b.page
		first, end := page*b.page, min(to, (page+1)*b.page)
		block := first / tensor.BlockSlots
		l.Bound(index[page/tensor.BlockSlots], page%tensor.BlockSlots, blocks[block], first-block*tensor.BlockSlots,
			from-block*tensor.BlockSlots, end-block*tensor.BlockSlots, row)
		from = end
	}
}

func (b pageBounds) Select(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []int32 {
	pages := (n + b.page - 1) / b.page
	if pages <= b.pages {
		return nil
	}
	scores, chosen := s.ScorePages(l, index, pages, q.Rows, q.Heads), s.Mask(pages)
	clear(chosen)
	scores[0], scores[pages-1] = topk.NaN, topk.NaN
	if b.pages > 2 {
		topk.Highest(scores, b.pages-2, chosen, s)
	}
	chosen[0] |= 1
	chosen[(pages-1)/64] |= 1 << ((pages - 1) % 64)
	_, places := s.Chosen(0, b.pages)
	return topk.Listed(chosen, places)
}
