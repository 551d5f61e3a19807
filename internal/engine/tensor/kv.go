package tensor

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// maxHead bounds KDim and VDim. maxLatent bounds KDim of latent rows: 704 is the key of MLA with that of
// an indexer.
const (
	maxHead   = 576
	maxLatent = 1024
)

// KVLayout describes a cache block: BlockSlots slots of one KV head of one layer. Every slot has a
// key of KDim values and a value of VDim values, stored as Type (F32, BF16, or Int8 with one
// float32 scale per row).
//
//	keys    panels of 16 interleaved slots: [4 panels][KDim][16], BF16 in pairs
//	        [4][KDim/2][16][2], so that one vector scores 16 slots
//	values  row by row: [64 slots][VDim]
//	scales  Int8 only: [64] float32 of the keys, [64] of the values
//
// Slots can be written, moved and exported one by one. A block needs no initialisation.
type KVLayout struct {
	Type       DType
	KDim, VDim int
	Latent     bool // the value is the first VDim elements of the key, stored once; see latent.go
}

// Validate returns an error if cache blocks of this shape are not possible.
func (l KVLayout) Validate() error {
	switch l.Type {
	case F32, BF16, Int8:
	default:
		return fmt.Errorf("tensor: a cache cannot be stored as %v; use f32, bf16 or int8", l.Type)
	}
	most := maxHead
	if l.Latent {
		most = maxLatent
	}
	for _, d := range []int{l.KDim, l.VDim} {
		if d < 8 || d%8 != 0 || d > most {
			return fmt.Errorf("tensor: head of %d key and %d value elements; both must be a multiple of 8, from 8 to %d", l.KDim, l.VDim, most)
		}
	}
	if l.Latent && l.VDim >= l.KDim {
		return fmt.Errorf("tensor: latent row of %d elements has no rope key after a latent of %d", l.KDim, l.VDim)
	}
	return nil
}

func (l KVLayout) elem() int { return l.Type.Size() }

func (l KVLayout) valuesAt() int { return BlockSlots * l.KDim * l.elem() }

func (l KVLayout) scalesAt() int {
	if l.Latent {
		return l.valuesAt()
	}
	return BlockSlots * (l.KDim + l.VDim) * l.elem()
}

func (l KVLayout) BlockBytes() int {
	n := l.scalesAt()
	if l.Type == Int8 {
		n += 2 * 4 * BlockSlots
	}
	return n
}

// RowBytes returns the size of one exported slot.
func (l KVLayout) RowBytes() int { return l.BlockBytes() / BlockSlots }

// scales returns the per-slot scales of the keys (0) or values (1) of an Int8 block.
func (l KVLayout) scales(block []byte, which int) *[BlockSlots]float32 {
	return (*[BlockSlots]float32)(floats(block[l.scalesAt()+which*4*BlockSlots:]))
}

// at returns the index of element k of a slot's key, in elements.
func (l KVLayout) at(slot, k int) int {
	if l.Type == BF16 {
		return slot/kernel.PanelRows*l.KDim*kernel.PanelRows + k&^1*kernel.PanelRows + slot%kernel.PanelRows*2 + k&1
	}
	return slot/kernel.PanelRows*l.KDim*kernel.PanelRows + k*kernel.PanelRows + slot%kernel.PanelRows
}

func (l KVLayout) check(block []byte, slot int) {
	if slot < 0 || slot >= BlockSlots || len(block) < l.BlockBytes() {
		panic(fmt.Sprintf("tensor: slot %d of a cache block of %d bytes (%d slots, %d bytes)", slot, len(block), BlockSlots, l.BlockBytes()))
	}
}

// Put rounds or quantizes one key k [KDim] and one value v [VDim] into a slot. A latent layout
// takes the value from the key and ignores v.
func (l KVLayout) Put(block []byte, slot int, k, v []float32) {
	l.check(block, slot)
	if l.Latent {
		l.putLatent(block, slot, k[:l.KDim])
		return
	}
	l.putKey(block, slot, k[:l.KDim])
	v = v[:l.VDim]
	values := block[l.valuesAt():]
	switch l.Type {
	case F32:
		copy(floats(values)[slot*l.VDim:], v)
	case BF16:
		kernel.Active.ToBF16(halves(values)[slot*l.VDim:], len(v), v, len(v), 1, len(v))
	case Int8:
		b := int8s(values)[slot*l.VDim:]
		inv := int8Scale(v, &l.scales(block, 1)[slot])
		for i, x := range v {
			b[i] = toInt8(x, inv)
		}
	}
}

// Fetch prefetches the memory that Put of a slot will write: the lines of a panel, each of which
// holds a part of the key, and the value's lines.
func (l KVLayout) Fetch(block []byte, slot int) {
	if l.Latent {
		return
	}
	l.check(block, slot)
	panel, row := kernel.PanelRows*l.KDim*l.elem(), l.VDim*l.elem()
	kernel.Active.Fetch(&block[slot/kernel.PanelRows*panel], panel)
	at := (l.valuesAt() + slot*row) &^ 63
	kernel.Active.Fetch(&block[at], min((row+63)&^63, len(block)-at)&^63)
}

// Key reads the key of a slot as stored.
func (l KVLayout) Key(k []float32, block []byte, slot int) {
	l.check(block, slot)
	l.getKey(block, slot, block, k[:l.KDim])
}

// SetKey writes the key as Put does. Key and SetKey are not for latent layouts.
func (l KVLayout) SetKey(block []byte, slot int, k []float32) {
	l.check(block, slot)
	l.putKey(block, slot, k[:l.KDim])
}

// putKey writes the key of a slot. A slot's elements (for BF16 its pairs) are 16 apart.
func (l KVLayout) putKey(block []byte, slot int, k []float32) {
	at := l.at(slot, 0)
	switch l.Type {
	case F32:
		f := floats(block)[at:]
		for i, x := range k {
			f[i*kernel.PanelRows] = x
		}
	case BF16: // a pair, which is as wide as a float32, in one store
		f := floats(block)[at/2:]
		for i := 0; i < len(k); i += 2 {
			f[i/2*kernel.PanelRows] = math.Float32frombits(uint32(f32.ToBF16(k[i])) | uint32(f32.ToBF16(k[i+1]))<<16)
		}
	case Int8:
		b := int8s(block)[at:]
		inv := int8Scale(k, &l.scales(block, 0)[slot])
		for i, x := range k {
			b[i*kernel.PanelRows] = toInt8(x, inv)
		}
	}
}

// Get reads a slot as float32: k [KDim], v [VDim].
func (l KVLayout) Get(block []byte, slot int, k, v []float32) {
	l.check(block, slot)
	if l.Latent {
		l.getLatent(block, slot, k[:l.KDim])
		copy(v[:l.VDim], k)
		return
	}
	l.getKey(block, slot, block, k[:l.KDim])
	v = v[:l.VDim]
	values := block[l.valuesAt():]
	switch l.Type {
	case F32:
		copy(v, floats(values)[slot*l.VDim:])
	case BF16:
		h := halves(values)[slot*l.VDim:]
		for i := range v {
			v[i] = f32.FromBF16(h[i])
		}
	case Int8:
		b, scale := int8s(values)[slot*l.VDim:], l.scales(block, 1)[slot]
		for i := range v {
			v[i] = float32(b[i]) * scale
		}
	}
}

// getKey reads a slot's key from panels. The scale of Int8 is taken from block.
func (l KVLayout) getKey(panels []byte, slot int, block []byte, k []float32) {
	at := l.at(slot, 0)
	switch l.Type {
	case F32:
		f := floats(panels)[at:]
		for i := range k {
			k[i] = f[i*kernel.PanelRows]
		}
	case BF16:
		h := halves(panels)[at:]
		for i := 0; i < len(k); i += 2 {
			k[i], k[i+1] = f32.FromBF16(h[i*kernel.PanelRows]), f32.FromBF16(h[i*kernel.PanelRows+1])
		}
	case Int8:
		b, scale := int8s(panels)[at:], l.scales(block, 0)[slot]
		for i := range k {
			k[i] = float32(b[i*kernel.PanelRows]) * scale
		}
	}
}

// CopySlot copies the exact bits of slot sslot of src to slot dslot of dst. dst may be src.
func (l KVLayout) CopySlot(dst []byte, dslot int, src []byte, sslot int) {
	l.check(dst, dslot)
	l.check(src, sslot)
	if l.Latent {
		l.copyLatent(dst, dslot, src, sslot)
		return
	}
	to, from := l.at(dslot, 0), l.at(sslot, 0)
	switch l.Type {
	case F32:
		copyStrided(floats(dst)[to:], floats(src)[from:], l.KDim)
	case BF16: // pairs are as wide as a float32
		copyStrided(floats(dst)[to/2:], floats(src)[from/2:], l.KDim/2)
	case Int8:
		copyStrided(int8s(dst)[to:], int8s(src)[from:], l.KDim)
	}
	l.copyValues(dst, dslot, src, sslot, 1)
}

func copyStrided[T any](dst, src []T, n int) {
	for i := range n {
		dst[i*kernel.PanelRows] = src[i*kernel.PanelRows]
	}
}

// ExportRow writes a slot's wire form, RowBytes long: key elements, value elements, then the two
// scales of Int8, all little-endian.
func (l KVLayout) ExportRow(dst []byte, block []byte, slot int) {
	l.check(block, slot)
	dst = dst[:l.RowBytes()]
	if l.Latent {
		l.exportLatent(dst, block, slot)
		return
	}
	at, e := l.at(slot, 0), l.elem()
	switch l.Type {
	case F32, BF16: // a pair of BF16 is as wide as a float32
		f := floats(block)[at*e/4:]
		for i := range l.KDim * e / 4 {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f[i*kernel.PanelRows]))
		}
	case Int8:
		for i := range l.KDim {
			dst[i] = block[at+i*kernel.PanelRows]
		}
		copy(dst[l.KDim+l.VDim:][:4], block[l.scalesAt()+4*slot:])
		copy(dst[l.KDim+l.VDim+4:][:4], block[l.scalesAt()+4*(BlockSlots+slot):])
	}
	n := l.VDim * e
	copy(dst[l.KDim*e:][:n], block[l.valuesAt()+slot*n:])
}

// ImportRow is the inverse of ExportRow: the slot gets the exact exported bits.
func (l KVLayout) ImportRow(block []byte, slot int, src []byte) {
	l.check(block, slot)
	src = src[:l.RowBytes()]
	if l.Latent {
		l.importLatent(block, slot, src)
		return
	}
	at, e := l.at(slot, 0), l.elem()
	switch l.Type {
	case F32, BF16:
		f := floats(block)[at*e/4:]
		for i := range l.KDim * e / 4 {
			f[i*kernel.PanelRows] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case Int8:
		for i := range l.KDim {
			block[at+i*kernel.PanelRows] = src[i]
		}
		copy(block[l.scalesAt()+4*slot:][:4], src[l.KDim+l.VDim:])
		copy(block[l.scalesAt()+4*(BlockSlots+slot):][:4], src[l.KDim+l.VDim+4:])
	}
	n := l.VDim * e
	copy(block[l.valuesAt()+slot*n:][:n], src[l.KDim*e:])
}

// int8Scale stores the scale of a row, max|x|/127, and returns its inverse. The inverse is 0 for a
// row of zeros or with non-finite elements, which is stored as zeros.
func int8Scale(x []float32, scale *float32) float32 {
	m := float32(0)
	for _, v := range x {
		m = max(m, float32(math.Abs(float64(v))))
	}
	*scale = m / 127
	if !(*scale > 0) || math.IsInf(float64(m), 0) || math.IsInf(float64(1 / *scale), 0) {
		*scale = 0
		return 0
	}
	return 1 / *scale
}

func toInt8(x, inverse float32) int8 {
	if inverse == 0 {
		return 0
	}
	q := math.RoundToEven(float64(float32(x * inverse)))
	return int8(max(-127, min(127, q)))
}
