// Package shadowkv is the policy ShadowKV. It chooses by landmarks the few chunks of keys that a step
// reads, and can store keys as factors of low rank.
package shadowkv

import (
	"math/bits"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Method keeps every token and reads few (ShadowKV, arXiv 2410.21465, algorithms 1 and 2, by
// default with exact keys; see lowrank.go). The landmark of a chunk of chunk tokens is the mean of
// its keys. A step reads the chunks whose landmarks it attends to most, budget tokens in all. It
// also always reads the outliers: the chunks whose landmarks represent their keys worst, by the
// lowest cosine between a key and the mean. They have no landmark. And it reads the newest local
// chunks and the tokens after them. Prefill reads everything.
//
// A step's attention to the landmarks is a softmax over all of them, for each query head. The score
// of a chunk is the largest over the query heads that share its KV head. The earlier chunk wins a
// tie, among outliers too. The paper chooses the outliers of the prompt and never indexes generated
// tokens. Here a chunk gets a landmark as soon as local whole chunks follow it, and the outliers
// are those of all chunks with a landmark. So a choice is a pure function of the keys, independent of
// earlier writes, rollbacks and hand-overs.
//
// Landmarks are float32 if the cache is, otherwise bfloat16. With int8=1 they take one byte per
// element and a scale: half of the index, and of its bytes that a step reads.
var Method = method.Method{Name: "shadowkv", Params: []method.Param{
	{Key: "chunk", Value: 8, Min: 2, Max: 64, PowerOfTwo: true}, method.Size("budget", 256, 2), {Key: "outliers", Value: 48, Max: 1 << 16},
	{Key: "local", Value: 4, Min: 1, Max: 1 << 16}, method.Flag("int8"), {Key: "skip", Max: 1024},
	{Key: "keys", Words: []string{"exact", "lowrank"}, Max: 1}, {Key: "rank", Value: 128, Min: 8, Max: 4096, MultipleOf8: true},
}, Parts: func(v []int) kvcache.Parts {
	m := landmarks{chunk: v[0], chunks: max(1, v[1]/v[0]), outliers: v[2], local: v[3], int8: v[4] == 1}
	p := kvcache.Parts{Selector: m, Skip: v[5]}
	if v[6] == 1 {
		p.Index, p.ReplacesKeys = lowRank{m, v[7]}, true
	}
	return p
}, Named: []method.Named{{Name: "paper", Settings: "chunk=8,budget=1.56%,outliers=48,local=4,keys=lowrank,rank=160"}}} // section 5.1

// landmarks selects chunks by tensor.KVLayout.Landmark.
type landmarks struct {
	chunk    int // slots
	chunks   int // chunks that a query chooses
	outliers int // chunks
	local    int // chunks
	int8     bool
}

// marked returns the number of chunks from which a query chooses; 0: it reads all.
func (m landmarks) marked(slots int) int {
	if n := slots/m.chunk - m.local; n > m.chunks+m.outliers {
		return n
	}
	return 0
}

func (m landmarks) kind(l tensor.KVLayout) tensor.DType {
	switch {
	case m.int8:
		return tensor.Int8
	case l.Type == tensor.F32:
		return tensor.F32
	}
	return tensor.BF16
}

func (m landmarks) Page() int { return m.chunk }

// Newest returns the number of newest tokens that every query reads. A ring has at least as many.
func (m landmarks) Newest() int { return m.local * m.chunk }

func (m landmarks) Reads(slots int) int { return min(slots, (m.chunks+m.outliers+m.local+1)*m.chunk-1) }

// Index implements Selector: the landmarks of tensor.BlockSlots chunks.
func (m landmarks) Index(l tensor.KVLayout) (bytes, slots int) {
	return l.LandmarkBytes(m.kind(l)), tensor.BlockSlots * m.chunk
}

// Update implements Selector: a whole chunk gets a landmark. The index also has a bit for each
// outlier among the chunks from which the newest token chooses, and their number in the first
// block.
func (m landmarks) Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch) {
	row := s.Row((1 + m.chunk) * l.KDim)
	for c := from / m.chunk; c < to/m.chunk; c++ {
		first := c * m.chunk
		block := first / tensor.BlockSlots
		first -= block * tensor.BlockSlots
		l.Landmark(m.kind(l), index[c/tensor.BlockSlots], c%tensor.BlockSlots, blocks[block], first, first+m.chunk, row)
	}
	if n := m.marked(to); from/m.chunk < to/m.chunk && n > 0 {
		for i, word := range m.choose(l, index, n, s) {
			l.LandmarkWords(m.kind(l), index[i])[0] = word
		}
		l.LandmarkWords(m.kind(l), index[0])[1] = uint64(n)
	}
}

func (m landmarks) Select(l tensor.KVLayout, index [][]byte, n int, q kvcache.Queries, s *tensor.AttnScratch) []int32 {
	chunks := (n + m.chunk - 1) / m.chunk
	marked := m.marked(n)
	if marked == 0 {
		return nil
	}
	fixed := m.fixed(l, index, marked, s)
	scores := s.ScoreLandmarks(l, m.kind(l), index, marked, q.Rows, q.Heads)
	best := s.Row(marked)
	best[0] = topk.NegInf
	for n := 1; n < marked; n *= 2 {
		copy(best[n:], best[:n])
	}
	for r := range q.Heads {
		row := scores[r*marked:][:marked]
		q.Score.Of(row)
		for i, word := range fixed {
			for ; word != 0; word &= word - 1 {
				row[i*64+bits.TrailingZeros64(word)] = topk.NegInf
			}
		}
		if normaliser := q.Score.LogSum(row, r); normaliser > topk.NegInf { // then every element is a number, too
			tensor.Raise(best, row, normaliser)
		}
	}
	for i, word := range fixed {
		for ; word != 0; word &= word - 1 {
			best[i*64+bits.TrailingZeros64(word)] = topk.NaN
		}
	}
	topk.Highest(best, m.chunks, fixed, s)
	_, places := s.Chosen(0, m.chunks+m.outliers+chunks-marked)
	places = topk.Listed(fixed, places)
	for c := marked; c < chunks; c++ {
		places = append(places, int32(c))
	}
	return places
}

// fixed returns a bit for each outlier among the first n chunks.
func (m landmarks) fixed(l tensor.KVLayout, index [][]byte, n int, s *tensor.AttnScratch) []uint64 {
	if l.LandmarkWords(m.kind(l), index[0])[1] != uint64(n) { // of a token before the newest
		return m.choose(l, index, n, s)
	}
	fixed := s.Mask(n)
	for i := range fixed {
		fixed[i] = l.LandmarkWords(m.kind(l), index[i])[0]
	}
	return fixed
}

// choose computes fixed from the cosines.
func (m landmarks) choose(l tensor.KVLayout, index [][]byte, n int, s *tensor.AttnScratch) []uint64 {
	fixed := s.Mask(n)
	clear(fixed)
	if m.outliers == 0 {
		return fixed
	}
	against := s.Row(n)
	for first := 0; first < n; first += tensor.BlockSlots {
		for i, cosine := range l.LandmarkNumbers(m.kind(l), index[first/tensor.BlockSlots])[:min(tensor.BlockSlots, n-first)] {
			against[first+i] = -cosine
		}
	}
	topk.Highest(against, m.outliers, fixed, s)
	return fixed
}
