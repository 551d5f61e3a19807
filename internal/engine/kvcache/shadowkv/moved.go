package shadowkv

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The plane rowblock.Index of a head: the landmarks of the replaced rows, the factors, and the numbers of the exact
// chunks, int32, padded with -1.

// memory returns the memory of the landmarks and the factors.
func (f *factored) memory(layer, head int) [][]byte {
	_, covers := f.Index(f.l)
	n := (f.blocks*tensor.BlockSlots + covers - 1) / covers
	return append(slices.Clone(f.s.IndexBlocks(layer, head)[:n]), f.layers[layer][head].pieces()...)
}

// IndexBytes implements kvcache.StoreIndex.
func (f *factored) IndexBytes(layer, head int) int {
	if f.blocks == 0 {
		return 0
	}
	n := 4 * f.outliers
	for _, b := range f.memory(layer, head) {
		n += len(b)
	}
	return n
}

// ReadIndex implements kvcache.StoreIndex.
func (f *factored) ReadIndex(dst []byte, layer, head int) {
	for _, b := range f.memory(layer, head) {
		dst = dst[copy(dst, b):]
	}
	exact := f.layers[layer][head].exact
	for i := range f.outliers {
		chunk := int32(-1)
		if i < len(exact) {
			chunk = exact[i]
		}
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(chunk))
	}
}

// WriteIndex implements kvcache.StoreIndex.
func (f *factored) WriteIndex(src []byte, layer, head int) error {
	h, numbers := f.layers[layer][head], src[len(src)-4*f.outliers:]
	h.exact = h.exact[:0]
	for last, i := int32(-1), 0; i < f.outliers; i++ {
		chunk := int32(binary.LittleEndian.Uint32(numbers[4*i:]))
		switch all := f.blocks * tensor.BlockSlots / f.chunk; {
		case chunk == -1:
		case chunk <= last || int(chunk) >= all || len(h.exact) < i:
			return fmt.Errorf("%w: layer %d, head %d: exact chunk %d follows %d, of %d", rowblock.Err, layer, head, chunk, last, all)
		default:
			h.exact, last = append(h.exact, chunk), chunk
		}
	}
	for _, b := range f.memory(layer, head) {
		src = src[copy(b, src):]
	}
	return nil
}
