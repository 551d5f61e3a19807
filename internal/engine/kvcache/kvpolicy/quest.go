package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/pages"
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
var quest = method.Method{Name: "quest", Params: []method.Param{method.Page,
	method.Size("budget", 1024, 32), {Key: "skip", Max: 1024}}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Selector: pages.Bounds{Size: v[0], First: 1, Recent: 1, Pages: max(2, v[1]/v[0])}, Skip: v[2]}
}, Named: []method.Named{{Name: "paper", Settings: "page=16,skip=2"}}} // section 4.1
