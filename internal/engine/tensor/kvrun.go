package tensor

import (
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// A block in row form has the bytes of a cache block, but its keys are stored row by row like its
// values, [64 slots][KDim]. Evicted rows are kept in such blocks, where they are written and read
// contiguously. A latent block is in row form already.

// SaveRow copies the bits of a slot to row at of a block in row form.
func (l KVLayout) SaveRow(rows []byte, at int, block []byte, slot int) {
	l.check(rows, at)
	l.check(block, slot)
	if l.Latent {
		l.copyLatent(rows, at, block, slot)
		return
	}
	n := l.KDim * l.elem()
	l.keyOut(rows[at*n:][:n], block, slot)
	l.copyValues(rows, at, block, slot, 1)
}

// LoadRow is the inverse of SaveRow.
func (l KVLayout) LoadRow(block []byte, slot int, rows []byte, at int) {
	l.check(rows, at)
	l.check(block, slot)
	if l.Latent {
		l.copyLatent(block, slot, rows, at)
		return
	}
	n := l.KDim * l.elem()
	l.keyIn(block, slot, rows[at*n:][:n])
	l.copyValues(block, slot, rows, at, 1)
}

// MoveRow copies row from of a block in row form to row to of another, or of the same.
func (l KVLayout) MoveRow(dst []byte, to int, src []byte, from int) {
	l.check(dst, to)
	l.check(src, from)
	if l.Latent {
		l.copyLatent(dst, to, src, from)
		return
	}
	n := l.KDim * l.elem()
	copy(dst[to*n:][:n], src[from*n:])
	l.copyValues(dst, to, src, from, 1)
}

// PutRun is Put for n successive slots of one block, with key and value of the i-th at k[i*ldk:]
// and v[i*ldv:]. The slots' old contents go to the rows from at on of old, a block in row form,
// unless old is nil.
//
// Keys are in panels of 16 slots, so a slot's key is spread over as many cache lines as it has
// elements or pairs. A run goes panel by panel instead: rows are rounded contiguously and then
// transposed into the panel.
func (l KVLayout) PutRun(block []byte, slot, n int, k []float32, ldk int, v []float32, ldv int, old []byte, at int) {
	if n == 0 {
		return
	}
	l.check(block, slot)
	l.check(block, slot+n-1)
	if old != nil {
		l.check(old, at)
		l.check(old, at+n-1)
	}
	if l.Latent || n < minRun || l.elem() < 2 {
		for i := range n {
			if old != nil {
				l.SaveRow(old, at+i, block, slot+i)
			}
			var value []float32
			if !l.Latent {
				value = v[i*ldv:]
			}
			l.Put(block, slot+i, k[i*ldk:], value)
		}
		return
	}
	if old != nil {
		l.copyValues(old, at, block, slot, n)
	}
	values, e := block[l.valuesAt():], l.elem()
	l.round(values[slot*l.VDim*e:], v, ldv, n, l.VDim)
	size := l.KDim * e
	s := panelScratch.Get().(*panelRowsOf)
	defer panelScratch.Put(s)
	rows := s[:kernel.PanelRows*size]
	for i := 0; i < n; {
		p, lo := (slot+i)/kernel.PanelRows, (slot+i)%kernel.PanelRows
		hi := min(kernel.PanelRows, lo+n-i)
		panel := block[p*kernel.PanelRows*size:][:kernel.PanelRows*size]
		switch whole := hi-lo == kernel.PanelRows; {
		case whole && old != nil:
			l.fromPanel(old[(at+i)*size:], panel)
		case !whole:
			l.fromPanel(rows, panel)
			if old != nil {
				copy(old[(at+i)*size:], rows[lo*size:hi*size])
			}
		}
		l.round(rows[lo*size:], k[i*ldk:], ldk, hi-lo, l.KDim)
		l.toPanel(panel, rows)
		i += hi - lo
	}
}

// minRun is the shortest run for which transposing 16 rows pays.
const minRun = 4

type panelRowsOf [kernel.PanelRows * maxHead * 4]byte

var panelScratch = sync.Pool{New: func() any { return new(panelRowsOf) }}

// round stores rows of n elements contiguously, as F32 or BF16.
func (l KVLayout) round(dst []byte, x []float32, ldx, rows, n int) {
	_ = x[(rows-1)*ldx+n-1]
	_ = dst[rows*n*l.elem()-1]
	if l.Type == BF16 {
		kernel.Active.ToBF16(halves(dst), n, x, ldx, rows, n)
		return
	}
	for i := range rows {
		copy(floats(dst)[i*n:], x[i*ldx:][:n])
	}
}

const cellsOfLine = 64 // bytes of a panel from a key's 32-bit cell to the next

// toPanel transposes 16 rows of F32 or BF16 keys to a panel; fromPanel is its inverse.
func (l KVLayout) toPanel(panel, rows []byte) {
	size := l.KDim * l.elem()
	tiles := size / 32
	if tiles > 0 {
		for half := range uintptr(2) {
			kernel.Active.Turn(&panel[half*32], &rows[half*8*uintptr(size)], cellsOfLine, uintptr(size), 8*cellsOfLine, 32, tiles)
		}
	}
	to, from := floats(panel), floats(rows)
	for c := tiles * 8; c < size/4; c++ {
		for r := range kernel.PanelRows {
			to[c*kernel.PanelRows+r] = from[r*(size/4)+c]
		}
	}
}

func (l KVLayout) fromPanel(rows, panel []byte) {
	size := l.KDim * l.elem()
	tiles := size / 32
	if tiles > 0 {
		for half := range uintptr(2) {
			kernel.Active.Turn(&rows[half*8*uintptr(size)], &panel[half*32], uintptr(size), cellsOfLine, 32, 8*cellsOfLine, tiles)
		}
	}
	to, from := floats(rows), floats(panel)
	for c := tiles * 8; c < size/4; c++ {
		for r := range kernel.PanelRows {
			to[r*(size/4)+c] = from[c*kernel.PanelRows+r]
		}
	}
}

// keyOut copies the key of a slot to a row; keyIn copies it back.
func (l KVLayout) keyOut(row, block []byte, slot int) {
	at := l.at(slot, 0)
	switch l.elem() {
	case 1:
		for i := range row {
			row[i] = block[at+i*kernel.PanelRows]
		}
	case 2:
		if l.Type == BF16 { // pairs are as wide as a float32
			gather(floats(row), floats(block)[at/2:])
			return
		}
		gather(halves(row), halves(block)[at:])
	case 4:
		gather(floats(row), floats(block)[at:])
	}
}

func (l KVLayout) keyIn(block []byte, slot int, row []byte) {
	at := l.at(slot, 0)
	switch l.elem() {
	case 1:
		for i, b := range row {
			block[at+i*kernel.PanelRows] = b
		}
	case 2:
		if l.Type == BF16 {
			scatter(floats(block)[at/2:], floats(row))
			return
		}
		scatter(halves(block)[at:], halves(row))
	case 4:
		scatter(floats(block)[at:], floats(row))
	}
}

func gather[T any](dst, src []T) {
	for i := range dst {
		dst[i] = src[i*kernel.PanelRows]
	}
}

func scatter[T any](dst, src []T) {
	for i, x := range src {
		dst[i*kernel.PanelRows] = x
	}
}

// copyValues copies the values of n slots, and both scales of Int8.
func (l KVLayout) copyValues(dst []byte, to int, src []byte, from, n int) {
	size := l.VDim * l.elem()
	copy(dst[l.valuesAt()+to*size:][:n*size], src[l.valuesAt()+from*size:])
	if l.Type == Int8 {
		for which := range 2 {
			copy(l.scales(dst, which)[to:to+n], l.scales(src, which)[from:])
		}
	}
}

// RoundBF16 stores x as bfloat16, ties to even.
func RoundBF16(dst []byte, x []float32) {
	kernel.Active.ToBF16(halves(dst)[:len(x)], len(x), x, len(x), 1, len(x))
}
