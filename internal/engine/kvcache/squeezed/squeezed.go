// Package squeezed is the policy Squeezed Attention. It orders the rows of a prompt by clusters of
// their keys, and reads the clusters that a query attends to.
package squeezed

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Method keeps every token and reads few (Squeezed Attention, arXiv 2411.09688). At the end of
// prefill the keys of the context, except its last obs tokens, are clustered per KV head and stored
// cluster by cluster. A step compares its queries with the centroids. It attends exactly to the
// keys of clusters whose estimated share of the softmax (equation 1) exceeds a threshold, and to
// all later tokens. The threshold is the same in all layers and heads. It is set so that the last
// obs queries of the context, averaged, leave sparsity of the keys unread (appendix C).
//
// The last tail tokens of a prompt are the user's input. A step reads a chunk of them. They attend like
// generated tokens, each with its own selection, so that no cut of the prompt changes a bit. (The
// paper averages the selections of an input's tokens.) With levels=2, a fifth as many centroids of centroids are
// compared first, and rule out half of the keys by their own threshold (equations 2 and 3).
//
// All query heads of a KV head read what any of them selects, so thresholds are set on the largest
// share of a group: sparsity is then the fraction of bytes that stay unread. Contexts longer than
// segment are clustered in equal parts of about that size, so the time of clustering is linear. Parts are
// larger if clusters=C gives a part less than one cluster. A step selects among all clusters.
var Method = method.Method{Name: "squeezed", Params: []method.Param{
	method.Share("clusters", 50, 5, 500), {Key: "levels", Value: 1, Min: 1, Max: 2}, method.Share("sparsity", 900, 0, 999),
	method.Size("tail", 64, 1), method.Size("obs", 100, 2), method.Size("segment", 8192, 64),
}, Parts: func(v []int) kvcache.Parts {
	c := clusters{share: v[0], sparsity: v[2], tail: v[3], obs: v[4], segment: v[5]}
	if v[1] == 2 {
		c.coarse = max(1, v[0]/5)
	}
	return kvcache.Parts{Index: c, Reorders: true, Selector: c,
		Needs: kvcache.Needs{Window: v[4], Queries: true, Labels: true}, Tail: c.tailOf}
}, Named: []method.Named{
	{Name: "paper", Settings: "clusters=0.05,levels=1,sparsity=0.9,obs=100"},         // section 6.1, appendix C
	{Name: "hierarchical", Settings: "clusters=0.05,levels=2,sparsity=0.9,obs=100"}}} // centroids of 1 % and 5 %

// clusters is the PromptIndex and the Selector.
type clusters struct {
	share, coarse, sparsity int // thousandths of keys; coarse 0: one level
	tail, obs, segment      int // tokens
}

// minKeys returns the least number of keys that are clustered.
func (c clusters) minKeys() int { return (999+c.minShare())/c.minShare() + c.tail }

// minShare returns the share of the smaller number of centroids.
func (c clusters) minShare() int {
	if c.coarse > 0 {
		return c.coarse
	}
	return c.share
}

// arranged returns the number of a context's first tokens that are clustered.
func (c clusters) arranged(context int) int {
	if n := context - c.obs; n >= c.minKeys() {
		return n
	}
	return 0
}

// tailOf returns the number of a prompt's last tokens that attend like generated ones, unless too few are
// before them.
func (c clusters) tailOf(prompt int) int {
	if c.arranged(prompt) == 0 {
		return 0
	}
	return c.tail // the tokens before it may still be too few to cluster
}

// Page implements Selector: tokens are selected one by one.
func (c clusters) Page() int { return 1 }

// Reads implements Selector. It is an estimate: the threshold may select more or fewer.
func (c clusters) Reads(slots int) int {
	behind := min(slots, c.obs+c.tail)
	return behind + (slots-behind)*(1000-c.sparsity)/1000
}

// FileBlocks returns the number of blocks of clustered keys in a prompt, whose rows can be in a file. The
// keys after them are always read.
func (c clusters) FileBlocks(prompt int) int { return c.arranged(prompt) / tensor.BlockSlots }

// filePage is the number of slots of a page in a file.
const filePage = 16

// KeptPages returns the mean number of pages with the calibrated share of keys. A cluster of size slots is
// in 1 + (size-1)/filePage pages on average.
func (c clusters) KeptPages(slots int) int {
	size := 1000 / c.share
	return slots * (1000 - c.sparsity) / 1000 * (size + filePage - 1) / (size * filePage)
}

// kind returns the type of the centroids.
func (clusters) kind(l tensor.KVLayout) tensor.DType {
	if l.Type == tensor.F32 {
		return tensor.F32
	}
	return tensor.BF16
}

// Index implements Selector: centroids, the coarse ones first. Each has the logarithm of the number
// of keys that it represents, and the place where these start.
func (c clusters) Index(l tensor.KVLayout) (bytes, slots int) {
	return l.LandmarkBytes(c.kind(l)) + placeBytes*tensor.BlockSlots, 1000 * tensor.BlockSlots / (c.share + c.coarse)
}

// Update implements Selector: tokens after the prompt are not indexed.
func (clusters) Update(tensor.KVLayout, [][]byte, [][]byte, int, int, *tensor.AttnScratch) {}

// SelectSlots implements slotSelector.
func (c clusters) SelectSlots(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []uint64 {
	if len(index) == 0 {
		return nil
	}
	x := c.indexOf(l, index)
	coarse, fine, keys := int(x.words()[coarseWord]), int(x.words()[fineWord]), int(x.words()[keysWord])
	if keys == 0 {
		return nil
	}
	_, runs := s.Chosen(0, max(2, 2*coarse))
	runs = append(runs[:0], int32(coarse), int32(coarse+fine))
	if coarse > 0 {
		runs = x.survivors(coarse, fine, q, x.bound(coarseBound), s)
	}
	mask := s.Mask(n)
	clear(mask)
	scores, m := x.score(runs, q, s)
	excess := x.excess(runs, scores, m, q, x.bound(fineBound), s)
	for k := 0; k < len(runs); k += 2 {
		n := int(runs[k+1] - runs[k])
		x.mark(mask, int(runs[k]), excess[:n])
		excess = excess[n:]
	}
	topk.Mark(mask, keys, n)
	return mask
}
