package kvpolicy

import (
	"cmp"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// lagKV keeps prompt tokens whose keys and values differ most from those of later tokens (LagKV, arXiv
// 2504.04704, section 3). It reads no queries. After the first sink tokens the prompt is cut into
// partitions of lag tokens. Within the range that the next partition has in each channel, a token's
// elements vary by their standard deviation over the channels. The softmax of the deviations of a
// partition is a token's score, of keys and of values, and both are averaged. Each partition then keeps
// equally many, its highest. The last whole partition and the tokens after it stay. Of sink, lag and
// topk tokens in all, these come first.
//
// A prompt of fewer than two partitions keeps its newest tokens. Generated tokens stay; the paper goes on to
// compress them.
var lagKV = method.Method{Name: "lagkv", Params: []method.Param{
	method.Size("sink", 4, 0), method.Size("lag", 128, 2), method.Size("topk", 892, 0),
}, Parts: func(v []int) kvcache.Parts {
	return kvcache.Parts{Sink: v[0], Recent: v[1], TopK: v[2], Compressor: lagRelative{sink: v[0], lag: v[1]}}
}}

type lagRelative struct{ sink, lag int }

// Score returns the rank of a token in its partition. So the highest ranks of all partitions stay.
func (x lagRelative) Score(s *kvcache.Statistics) []float32 {
	scores := make([]float32, s.Prompt)
	for pos := range scores {
		scores[pos] = float32(pos)
	}
	if s.Prompt < x.sink+2*x.lag {
		return scores
	}
	partitions := (s.Prompt - x.sink) / x.lag
	for pos := x.sink + (partitions-1)*x.lag; pos < s.Prompt; pos++ {
		scores[pos] = float32(x.lag)
	}
	of := [2]reference{{width: s.Layout.KDim}, {width: s.Layout.VDim}}
	for i := partitions - 2; i >= 0; i-- {
		first := x.sink + i*x.lag
		for plane := range of {
			of[plane].least, of[plane].most = x.bounds(s, first+x.lag, plane, of[plane].width)
		}
		shares := x.shares(s, first, of)
		order := make([]int, x.lag)
		for j := range order {
			order[j] = j
		}
		// Of equal tokens the earlier one ranks higher.
		slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(shares[a], shares[b]), b-a) })
		for rank, j := range order {
			scores[first+j] = float32(rank)
		}
	}
	return scores
}

// reference is the range of the keys or of the values of a partition in each channel.
type reference struct {
	width       int
	least, most []float32
}

// row returns the key (plane 0) or the value of a token.
func row(s *kvcache.Statistics, pos, plane int, k, v []float32) []float32 {
	s.Layout.Get(s.Rows()[pos/tensor.BlockSlots], pos%tensor.BlockSlots, k, v)
	return [][]float32{k, v}[plane]
}

func (x lagRelative) bounds(s *kvcache.Statistics, first, plane, width int) (least, most []float32) {
	k, v := make([]float32, s.Layout.KDim), make([]float32, s.Layout.VDim)
	for pos := first; pos < first+x.lag; pos++ {
		r := row(s, pos, plane, k, v)
		if pos == first {
			least, most = slices.Clone(r), slices.Clone(r)
		}
		for c := range width {
			least[c], most[c] = min(least[c], r[c]), max(most[c], r[c])
		}
	}
	return least, most
}

// shares returns the scores of a partition's tokens.
func (x lagRelative) shares(s *kvcache.Statistics, first int, of [2]reference) []float32 {
	shares, deviations := make([]float32, x.lag), make([]float32, x.lag)
	k, v := make([]float32, s.Layout.KDim), make([]float32, s.Layout.VDim)
	for plane, ref := range of {
		for j := range deviations {
			deviations[j] = ref.deviation(row(s, first+j, plane, k, v))
		}
		top, sum := slices.Max(deviations), float32(0)
		for j, d := range deviations {
			deviations[j] = f32.Exp(d - top)
			sum += deviations[j]
		}
		for j, d := range deviations {
			shares[j] += d / sum
		}
	}
	return shares
}

// deviation returns the standard deviation of a row over its channels, each relative to the reference. Channels
// without a range count as 0. Conversions prevent fused operations, which some processors have.
func (r reference) deviation(row []float32) float32 {
	mean, relative := 0.0, make([]float64, r.width)
	for c := range relative {
		if span := r.most[c] - r.least[c]; span > 0 {
			relative[c] = float64(row[c]-r.least[c]) / float64(span)
		}
		mean += relative[c]
	}
	mean /= float64(r.width)
	sum := 0.0
	for _, x := range relative {
		sum += float64((x - mean) * (x - mean))
	}
	return float32(math.Sqrt(sum / float64(max(1, r.width-1))))
}
