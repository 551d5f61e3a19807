package squeezed

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The plane rowblock.Index of a head, little endian: the threshold of fine centroids and that of coarse centroids,
// float32. The hand-over leaves both zero. With two levels, the number of the coarse cluster of each
// cluster follows, in the order of slots: uint32, counted from 1, padded with zeros. Seal computes
// the rest from the rows.

// boundBytes is the size of two thresholds.
const boundBytes = 8

func (c clusters) movedBytes(keys int) int {
	switch {
	case keys == 0:
		return 0
	case c.coarse == 0:
		return boundBytes
	}
	return boundBytes + 4*c.most(0, keys)
}

// IndexBytes implements kvcache.StoreIndex.
func (b *built) IndexBytes(_, _ int) int { return b.movedBytes(b.keys) }

// ReadIndex implements kvcache.StoreIndex.
func (b *built) ReadIndex(dst []byte, layer, head int) {
	clear(dst)
	x := b.indexOf(b.s.Layout(), b.s.IndexBlocks(layer, head))
	for i, bound := range [...]int{fineBound, coarseBound} {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x.bound(bound)))
	}
	coarse, fine := int(x.words()[coarseWord]), int(x.words()[fineWord])
	clusters := make([][2]int, 0, fine) // slot and coarse cluster
	for j := range coarse {
		for i, end := x.begin(j), x.end(j, coarse, fine); i < end; i++ {
			clusters = append(clusters, [2]int{x.begin(i), 1 + j})
		}
	}
	slices.SortFunc(clusters, func(a, b [2]int) int { return a[0] - b[0] })
	for i, c := range clusters {
		binary.LittleEndian.PutUint32(dst[boundBytes+4*i:], uint32(c[1]))
	}
}

// WriteIndex implements kvcache.StoreIndex. Until Build the coarse clusters are in the index, in the
// places of centroids.
func (b *built) WriteIndex(src []byte, layer, head int) error {
	if len(src) == 0 {
		return nil
	}
	x := b.indexOf(b.s.Layout(), b.s.IndexBlocks(layer, head))
	for i, bound := range [...]int{fineBound, coarseBound} {
		x.set(bound, math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:])))
	}
	for i := range (len(src) - boundBytes) / 4 {
		x.setPlace(i, binary.LittleEndian.Uint32(src[boundBytes+4*i:]), 0)
	}
	return nil
}

// received returns the coarse clusters of the first n clusters, which must be all that came.
func (x index) received(n, most int) ([]int32, error) {
	groups := make([]int32, n)
	for i := range groups {
		group := x.begin(i)
		if group < 1 || group > most {
			return nil, fmt.Errorf("cluster %d of %d has the coarse cluster %d of %d", i, n, group, most)
		}
		groups[i] = int32(group - 1)
	}
	return groups, nil
}

// Bytes implements kvcache.StoreIndex: all that stays is in the selector's index.
func (*built) Bytes() int64 { return 0 }

// Release implements kvcache.StoreIndex.
func (*built) Release() {}
