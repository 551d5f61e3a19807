package launch

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Row has the fields of one row (token) of a step that kernels read. The card's memory holds an array of
// rows, 16 bytes each, little-endian.
type Row struct {
	Slot   uint32 // slot of the row's own key and value: the row attends to slots [0, Slot]
	Table  uint32 // index in Cache.Tables of the block list of the sequence's first cache and KV head
	Stride uint32 // entries from the list of one KV head to the next
	_      uint32
}

// RowBytes is the size of a Row.
const RowBytes = 16

// Place is where a KV head of a token has its key and value in a cache, if that is not the slot of the token's
// row. The card's memory holds an array of places, 16 bytes each, little-endian.
type Place struct {
	Slot  uint32
	Block uint32 // the block in row form (tensor.KVLayout.SaveRow) for the row that is replaced; NoBlock: none
	Saved uint32 // its row there
	_     uint32
}

// PlaceBytes is the size of a Place.
const PlaceBytes = 16

// SavedRow is a row of a block in row form (tensor.KVLayout.SaveRow), and the slot of a block that it was copied
// from. Blocks have numbers in the arena. Memory that the card reads holds an array of them, 16 bytes each,
// little-endian.
type SavedRow struct {
	Block, Slot uint32
	From, Row   uint32
}

// SavedRowBytes is the size of a SavedRow.
const SavedRowBytes = 16

// Put writes the little-endian bytes of a saved row.
func (r SavedRow) Put(to []byte) {
	for i, v := range [...]uint32{r.Block, r.Slot, r.From, r.Row} {
		binary.LittleEndian.PutUint32(to[4*i:], v)
	}
}

// NoBlock is the number of no block.
const NoBlock = ^uint32(0)

// Put writes the little-endian bytes of a place.
func (p Place) Put(to []byte) {
	for i, v := range [...]uint32{p.Slot, p.Block, p.Saved, 0} {
		binary.LittleEndian.PutUint32(to[4*i:], v)
	}
}

// Cache describes the caches of a layer on a card. Block i of a list is BlockSlots slots of one KV head, in
// the layout of tensor.KVLayout, at Arena + Tables[...]*BlockBytes. The list of KV head h of
// cache Index begins at Tables[row.Table + (Index*KVHeads+h)*row.Stride].
type Cache struct {
	Type    tensor.DType // F32, BF16, Int8
	Arena   cuda.Pointer
	Tables  cuda.Pointer // uint32
	Index   int
	KVHeads int
	HeadDim int // a multiple of 8, at most MaxHead
}

// MaxHead is the maximum number of elements of a head.
const MaxHead = 256

func (c Cache) suffix(heads int) (string, error) {
	name := map[tensor.DType]string{tensor.F32: "f32", tensor.BF16: "bf16", tensor.Int8: "int8"}[c.Type]
	switch {
	case name == "":
		return "", fmt.Errorf("launch: a cache of %v", c.Type)
	case c.HeadDim < 8 || c.HeadDim%8 != 0 || c.HeadDim > MaxHead:
		return "", fmt.Errorf("launch: heads of %d elements, must be a multiple of 8, at most %d", c.HeadDim, MaxHead)
	case c.KVHeads < 1 || heads%c.KVHeads != 0:
		return "", fmt.Errorf("launch: %d query heads for %d KV heads", heads, c.KVHeads)
	}
	return name, nil
}

// Rotation describes the changes of queries and keys before attention: norms by QNorm and KNorm, and
// the rotation.
type Rotation struct {
	Cos, Sin     cuda.Pointer // (N, HeadDim/2)
	QNorm, KNorm cuda.Pointer // (HeadDim), or 0
	Eps          float32
}

func (t Rotation) args() []any { return []any{t.Cos, t.Sin, t.QNorm, t.KNorm, t.Eps} }

// RopeWrite prepares the rows QKV[i*Ld:] of queries (Heads*HeadDim), keys and values
// (KVHeads*HeadDim each) for attention: tensor.RMSNorm of each query and key head where there are
// norms, tensor.RopeRotateHalf, and tensor.KVLayout.Put into the row's slot, or into its places. It replaces
// queries, and does not change keys and values.
type RopeWrite struct {
	Cache
	Rotation
	QKV    cuda.Pointer
	Ld     int
	Heads  int
	Rows   cuda.Pointer // (N) Row
	Places cuda.Pointer // (N, KVHeads) Place, or 0
	N      int
}

func (o RopeWrite) Calls() ([]Call, error) {
	suffix, err := o.suffix(o.Heads)
	if err != nil || o.N == 0 {
		return nil, err
	}
	return []Call{{"rope_write_" + suffix, cuda.Grid{X: o.Heads + 2*o.KVHeads, Y: o.N, Threads: 32},
		slices.Concat([]any{o.QKV, uint32(o.Ld)}, o.args(), []any{o.Rows, o.Tables, o.Arena,
			uint32(o.Heads), uint32(o.KVHeads), uint32(o.HeadDim), uint32(o.Index), o.Places})}}, nil
}

// RestoreRows is tensor.KVLayout.LoadRow of saved rows of caches, in any order: no two of them have the same slot.
type RestoreRows struct {
	Type    tensor.DType // F32, BF16, Int8
	Arena   cuda.Pointer
	HeadDim int
	Rows    cuda.Pointer // (N) SavedRow
	N       int
}

func (o RestoreRows) Calls() ([]Call, error) {
	suffix, err := Cache{Type: o.Type, KVHeads: 1, HeadDim: o.HeadDim}.suffix(1)
	if err != nil || o.N == 0 {
		return nil, err
	}
	return []Call{{"restore_rows_" + suffix, cuda.Grid{X: o.N, Y: 2, Threads: 32}, []any{o.Rows, o.Arena, uint32(o.HeadDim)}}}, nil
}
