package tensor

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// A latent layout (KVLayout.Latent) is the cache of multi-head latent attention in its absorbed
// form (DeepSeek-V2, arXiv 2405.04434, section 2.1). A slot has one row, [latent | rope key], which
// is the key of all query heads. Its first VDim elements are the value of all of them, so the
// latent is stored once.
//
//	rows    row by row: [64 slots][KDim]
//	scales  Int8 only: [64] float32 of the latents, [64] of the rope keys
//
// Other layouts interleave 16 slots, so that a vector scores 16 slots for one query. Here many
// query heads share a row, so the queries are interleaved instead: a vector scores 16 heads for one
// slot, and the same rows serve as values. Every chain has the same order as in the other layouts.
// The scaling of Int8 differs: rows are widened to float32, scales included, before they are read.

// latentRows bounds the (query, head) rows that walk a latent cache together, in whole groups of
// panels.
const latentRows = kernel.GroupRows

// ropeWidth returns the width of the rotated part of a latent row.
func (l KVLayout) ropeWidth() int { return l.KDim - l.VDim }

// latentParts returns the element ranges of a row with one Int8 scale each.
func (l KVLayout) latentParts() [2]Span { return [2]Span{{0, l.VDim}, {l.VDim, l.KDim}} }

func (l KVLayout) putLatent(block []byte, slot int, k []float32) {
	for part := range 2 { // of latentParts
		l.putLatentPart(block, slot, part, k)
	}
}

// putLatentPart stores one part of row k [KDim].
func (l KVLayout) putLatentPart(block []byte, slot, part int, k []float32) {
	span := l.latentParts()[part]
	at, k := slot*l.KDim+span.Lo, k[span.Lo:span.Hi]
	switch l.Type {
	case F32:
		copy(floats(block)[at:], k)
	case BF16:
		h := halves(block)[at:][:len(k)]
		for i, x := range k {
			h[i] = f32.ToBF16(x)
		}
	case Int8:
		b := int8s(block)[at:][:len(k)]
		inv := int8Scale(k, &l.scales(block, part)[slot])
		for i, x := range k {
			b[i] = toInt8(x, inv)
		}
	}
}

// getLatent widens a row to k [KDim].
func (l KVLayout) getLatent(block []byte, slot int, k []float32) {
	at := slot * l.KDim
	switch l.Type {
	case F32:
		copy(k, floats(block)[at:][:len(k)])
	case BF16:
		for i, h := range halves(block)[at:][:len(k)] {
			k[i] = f32.FromBF16(h)
		}
	case Int8:
		b := int8s(block)[at:][:len(k)]
		for part, span := range l.latentParts() {
			scale := l.scales(block, part)[slot]
			for i := span.Lo; i < span.Hi; i++ {
				k[i] = float32(b[i]) * scale
			}
		}
	}
}

func (l KVLayout) copyLatent(dst []byte, dslot int, src []byte, sslot int) {
	n := l.KDim * l.elem()
	copy(dst[dslot*n:][:n], src[sslot*n:])
	if l.Type == Int8 {
		for which := range 2 {
			l.scales(dst, which)[dslot] = l.scales(src, which)[sslot]
		}
	}
}

// exportLatent writes a row's wire form: its elements, then the two scales of Int8.
func (l KVLayout) exportLatent(dst, block []byte, slot int) {
	n := l.KDim * l.elem()
	copy(dst[:n], block[slot*n:])
	if l.Type == Int8 {
		for which := range 2 {
			binary.LittleEndian.PutUint32(dst[n+4*which:], math.Float32bits(l.scales(block, which)[slot]))
		}
	}
}

func (l KVLayout) importLatent(block []byte, slot int, src []byte) {
	n := l.KDim * l.elem()
	copy(block[slot*n:][:n], src)
	if l.Type == Int8 {
		for which := range 2 {
			l.scales(block, which)[slot] = math.Float32frombits(binary.LittleEndian.Uint32(src[n+4*which:]))
		}
	}
}

// rotateLatent is RotateKeys for a latent layout: only the rope key is rotated. half has [64
// slots][rope width].
func (l KVLayout) rotateLatent(dst, src, half []byte, offsets []int32, rope func(n int) (cos, sin []float32), row []float32) {
	k, turned := row[:l.KDim], row[l.KDim:][:l.ropeWidth()]
	for slot, n := range offsets {
		if n == 0 {
			continue
		}
		cos, sin := rope(int(n))
		l.getLatent(src, slot, k)
		if half == nil {
			kernel.Active.Rope(k[l.VDim:], cos, sin)
		} else {
			l.getLatentHalf(half, src, slot, turned)
			straightAndTurned(k[l.VDim:], turned, cos, sin)
		}
		l.putLatentPart(dst, slot, 1, k)
	}
}

func (l KVLayout) getLatentHalf(half, block []byte, slot int, turned []float32) {
	scale := float32(1)
	if l.Type == Int8 {
		scale = l.scales(block, 1)[slot]
	}
	width := l.ropeWidth()
	for i := range turned {
		switch at := slot*width + i; l.Type {
		case F32:
			turned[i] = floats(half)[at]
		case BF16:
			turned[i] = f32.FromBF16(halves(half)[at])
		case Int8:
			turned[i] = float32(int8s(half)[at]) * scale
		}
	}
}

func turnLatent[T any](half, block []T, l KVLayout, slot int, negative func(T) T) {
	width := l.ropeWidth()
	h, key := width/2, block[slot*l.KDim+l.VDim:]
	for i := range h {
		half[slot*width+i], half[slot*width+h+i] = negative(key[h+i]), key[i]
	}
}

// pack interleaves the queries of the rows [0, rows): [panel][KDim][16 rows].
func (s *AttnScratch) pack(l KVLayout, q []float32, rows int) {
	panels := (rows + kernel.PanelRows - 1) / kernel.PanelRows
	// A kernel's pointer ends one load beyond the last panel.
	if need := panels*l.KDim*kernel.PanelRows + kernel.PanelRows*kernel.TileColumns; cap(s.packed) < need {
		s.packed = make([]float32, need)
	}
	s.packed = s.packed[:panels*l.KDim*kernel.PanelRows]
	clear(s.packed[rows/kernel.PanelRows*l.KDim*kernel.PanelRows:])
	for r := range rows {
		to := s.packed[r/kernel.PanelRows*l.KDim*kernel.PanelRows+r%kernel.PanelRows:]
		for i, v := range q[r*l.KDim:][:l.KDim] {
			to[i*kernel.PanelRows] = v
		}
	}
}

var unscaled = float32(1)

// widen converts the slots [lo, n) of a block to float32 rows, [64][KDim], with every zero as +0.
func (s *AttnScratch) widen(l KVLayout, block []byte, lo, n int) {
	if l.Type == F32 {
		s.wide = floats(block)[:BlockSlots*l.KDim]
		return
	}
	if need := BlockSlots * l.KDim; cap(s.widened) < need {
		s.widened = make([]float32, need)
	}
	s.wide = s.widened[:BlockSlots*l.KDim]
	if l.Type == BF16 {
		kernel.Active.Widen(s.wide[lo*l.KDim:], halves(block)[lo*l.KDim:n*l.KDim])
		return
	}
	// The kernel that adds values also widens them: fma(scale, element, +0) is the scaled element,
	// and a zero becomes +0.
	clear(s.wide[lo*l.KDim : n*l.KDim])
	a, e := &s.values, l.elem()
	a.LdV, a.LdO, a.Slots = 0, 0, 1
	for slot := lo; slot < n; slot++ {
		for part, span := range l.latentParts() {
			a.P = unsafe.Pointer(&unscaled)
			if l.Type == Int8 {
				a.P = unsafe.Pointer(&l.scales(block, part)[slot])
			}
			for col := span.Lo; col < span.Hi; {
				cols, f := kernel.Active.PickValues(l.Type, span.Hi-col, 1)
				a.V = unsafe.Pointer(&block[(slot*l.KDim+col)*e])
				a.O = unsafe.Pointer(&s.wide[slot*l.KDim+col])
				a.Rows, a.Cols = 1, cols
				f(a)
				col += cols
			}
		}
	}
}

// scoreLatent is score for the slots [lo, n) and packed queries: panels of rows times slots.
func (s *AttnScratch) scoreLatent(l KVLayout, block []byte, r0, r1, lo, n int) {
	s.widen(l, block, lo, n)
	if s.bySlot == nil {
		s.bySlot = (*[BlockSlots][kernel.GroupRows]float32)(unsafe.Pointer(&lines(BlockSlots * kernel.GroupRows)[0]))
	}
	a := &s.tile
	a.Panel, a.Advance = uintptr(kernel.PanelRows*l.KDim*4), uintptr(kernel.PanelRows*kernel.TileColumns*4)
	a.LdX, a.LdOut = uintptr(l.KDim)*4, kernel.GroupRows*4
	s.step.K = uintptr(l.KDim)
	a.Steps, a.NSteps = &s.step, 1
	last := (r1 + kernel.PanelRows - 1) / kernel.PanelRows
	most := kernel.Active.Tokens(F32, 1)
	for first := r0 / kernel.PanelRows; first < last; {
		panels := min(last-first, kernel.MaxTilePanels)
		for slot := lo; slot < n; {
			left := (n - slot + most - 1) / most
			c := (n - slot) / left
			for p := 0; p < panels; {
				step, f := kernel.Active.Pick(F32, panels-p, c)
				a.W = unsafe.Pointer(&s.packed[(first+p)*kernel.PanelRows*l.KDim])
				a.X = unsafe.Pointer(&s.wide[slot*l.KDim])
				a.Out = unsafe.Pointer(&s.bySlot[slot][p*kernel.PanelRows])
				a.Prefetch, a.PrefetchStep = uintptr(a.W), 0
				a.Panels, a.Tokens = step, c
				call(f, a)
				p += step
			}
			slot += c
		}
		s.byRow(first*kernel.PanelRows, min(r1, (first+panels)*kernel.PanelRows), n)
		first += panels
	}
}

// byRow transposes bySlot into the scores of the rows [lo, hi), for at least n slots.
func (s *AttnScratch) byRow(lo, hi, n int) {
	const row = uintptr(kernel.GroupRows * 4)
	tiles := (n + 7) / 8
	r := lo
	for ; r+8 <= hi; r += 8 {
		kernel.Active.Turn((*byte)(unsafe.Pointer(&s.s[r][0])), (*byte)(unsafe.Pointer(&s.bySlot[0][r-lo])), BlockSlots*4, row, 32, 8*row, tiles)
	}
	for ; r < hi; r++ {
		for slot := range n {
			s.s[r][slot] = s.bySlot[slot][r-lo]
		}
	}
}
