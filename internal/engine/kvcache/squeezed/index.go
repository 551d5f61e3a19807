package squeezed

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/topk"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// index is the index of the clusters of one head.
type index struct {
	l      tensor.KVLayout
	kind   tensor.DType
	blocks [][]byte
	places int // offset of a block's places
}

func (c clusters) indexOf(l tensor.KVLayout, blocks [][]byte) index {
	return index{l, c.kind(l), blocks, l.LandmarkBytes(c.kind(l))}
}

// The words of the first block: the numbers of coarse centroids, fine centroids and clustered keys,
// and the logarithms of the thresholds.
const (
	coarseWord = iota
	fineWord
	keysWord
	coarseBound
	fineBound
)

func (x index) words() []uint64       { return x.l.LandmarkWords(x.kind, x.blocks[0]) }
func (x index) bound(i int) float32   { return math.Float32frombits(uint32(x.words()[i])) }
func (x index) set(i int, to float32) { x.words()[i] = uint64(math.Float32bits(to)) }
func (x index) logs(block int) []float32 {
	return x.l.LandmarkNumbers(x.kind, x.blocks[block])
}

// placeBytes is the size of two numbers.
const placeBytes = 8

func (x index) place(i int) []byte {
	return x.blocks[i/tensor.BlockSlots][x.places+i%tensor.BlockSlots*placeBytes:]
}

// begin returns the first slot of the keys that centroid i represents, or for a coarse centroid the
// first fine one.
func (x index) begin(i int) int { return int(binary.LittleEndian.Uint32(x.place(i))) }

// keys returns the number of keys that centroid i represents.
func (x index) keys(i int) int { return int(binary.LittleEndian.Uint32(x.place(i)[4:])) }

func (x index) setPlace(i int, begin, keys uint32) {
	binary.LittleEndian.PutUint32(x.place(i), begin)
	binary.LittleEndian.PutUint32(x.place(i)[4:], keys)
}

// end returns the fine centroid after those of coarse centroid i.
func (x index) end(i, coarse, fine int) int {
	if i+1 < coarse {
		return x.begin(i + 1)
	}
	return coarse + fine
}

// put sets centroid i, which represents n keys from begin on.
func (x index) put(i int, key []float32, n, begin int) {
	x.l.SetLandmark(x.kind, x.blocks[i/tensor.BlockSlots], i%tensor.BlockSlots, key)
	x.logs(i / tensor.BlockSlots)[i%tensor.BlockSlots] = f32.Log(float32(n))
	x.setPlace(i, uint32(begin), uint32(n))
}

// survivors returns the runs of fine centroids whose coarse centroid is selected by any query head.
func (x index) survivors(coarse, fine int, q kvcache.Queries, bound float32, s *tensor.AttnScratch) []int32 {
	keys, runs := s.Chosen(coarse, 2*coarse)
	clear(keys)
	all := [2]int32{0, int32(coarse)}
	scores, m := x.score(all[:], q, s)
	for i, z := range x.excess(all[:], scores, m, q, bound, s) {
		if z > 0 {
			keys[i] = 1
		}
	}
	return x.expand(keys, coarse, fine, runs)
}

// expand lists the runs of fine centroids of the coarse ones with a key above 0.
func (x index) expand(keys []uint32, coarse, fine int, runs []int32) []int32 {
	runs = runs[:0]
	for i, chosen := range keys {
		if chosen == 0 {
			continue
		}
		lo, hi := x.begin(i), x.end(i, coarse, fine)
		if k := len(runs); k > 0 && int(runs[k-1]) == lo {
			runs[k-1] = int32(hi)
		} else {
			runs = append(runs, int32(lo), int32(hi))
		}
	}
	return runs
}

// score computes the logits of the queries with the centroids in runs, [Heads][n].
func (x index) score(runs []int32, q kvcache.Queries, s *tensor.AttnScratch) (scores []float32, n int) {
	scores, n = s.ScoreLandmarkRuns(x.l, x.kind, x.blocks, runs, q.Rows, q.Heads)
	q.Score.Of(scores)
	return scores, n
}

// weigh returns the logarithm of the denominator of equations 1 to 3: the sum over one query head's
// logits, each weighted by the number of its centroid's keys. z is scratch of as many elements.
func (x index) weigh(runs []int32, row []float32, score tensor.Score, head int, z []float32) float32 {
	copy(z, row)
	at := 0
	for k := 0; k < len(runs); k += 2 {
		for lo, hi := int(runs[k]), int(runs[k+1]); lo < hi; {
			in := lo % tensor.BlockSlots
			some := min(hi-lo, tensor.BlockSlots-in)
			tensor.Add(z[at:at+some], x.logs(lo / tensor.BlockSlots)[in:in+some])
			lo, at = lo+some, at+some
		}
	}
	return score.LogSum(z, head)
}

// excess returns by how much the logarithm of each centroid's share exceeds the bound, for the query head with the
// largest excess, or 0. scores are [Heads][m], of the m centroids in runs.
func (x index) excess(runs []int32, scores []float32, m int, q kvcache.Queries, bound float32, s *tensor.AttnScratch) []float32 {
	memory := s.Row(2 * m)
	best, z := memory[:m], memory[m:]
	clear(best)
	for r := range q.Heads {
		row := scores[r*m:][:m]
		tensor.Raise(best, row, x.weigh(runs, row, q.Score, r, z)+bound)
	}
	return best
}

// mark sets the bits of the slots of the fine centroids from first on whose excess is above 0.
func (x index) mark(mask []uint64, first int, excess []float32) {
	lo, hi := 0, 0 // slots that are not marked yet
	for i, z := range excess {
		if !(z > 0) {
			continue
		}
		begin := x.begin(first + i)
		if begin != hi {
			topk.Mark(mask, lo, hi)
			lo = begin
		}
		hi = begin + x.keys(first+i)
	}
	topk.Mark(mask, lo, hi)
}

// runsOf returns where the clusters of the first n slots start. Their positions must be a
// permutation of [0, n). Later slots hold the tokens of their own positions.
func runsOf(positions []int32, n int) (begins []int, err error) {
	seen := make([]uint64, (n+63)/64)
	for slot, pos := range positions[:n] {
		if pos < 0 || int(pos) >= n || seen[pos/64]>>(pos%64)&1 != 0 {
			return nil, fmt.Errorf("slot %d of %d clustered ones has position %d", slot, n, pos)
		}
		seen[pos/64] |= 1 << (pos % 64)
		if slot == 0 || pos < positions[slot-1] {
			begins = append(begins, slot)
		}
	}
	return begins, nil
}
