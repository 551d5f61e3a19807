package tensor

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// PageBytes returns the size of n slots of a block as SavePage writes them.
func (l KVLayout) PageBytes(n int) int { return n * l.RowBytes() }

// SavePage copies the exact bits of n slots from first on, keys and values adjacent, PageBytes(n)
// long. The slots must be in one panel of 16, or be whole panels. The bytes are those of the block
// in another order; their meaning depends on the machine and the build.
func (l KVLayout) SavePage(dst, block []byte, first, n int) {
	dst = dst[:l.PageBytes(n)]
	l.eachPiece(block, first, n, func(piece []byte) { dst = dst[copy(dst, piece):] })
}

// LoadPage is the inverse of SavePage. Other slots are unchanged.
func (l KVLayout) LoadPage(block []byte, first, n int, src []byte) {
	src = src[:l.PageBytes(n)]
	l.eachPiece(block, first, n, func(piece []byte) { src = src[copy(piece, src):] })
}

// eachPiece visits the pieces of a block that hold n slots from first on.
func (l KVLayout) eachPiece(block []byte, first, n int, visit func(piece []byte)) {
	l.check(block, first)
	l.check(block, first+n-1)
	whole := first%kernel.PanelRows == 0 && n%kernel.PanelRows == 0
	if n < 1 || !whole && first%kernel.PanelRows+n > kernel.PanelRows {
		panic(fmt.Sprintf("tensor: slots [%d,%d) are neither in one panel nor whole panels", first, first+n))
	}
	for i, p := range l.planes() {
		if p.row == 0 || i > 0 || whole || l.Latent {
			visit(block[p.at+first*p.row:][:n*p.row])
			continue
		}
		wide := max(l.elem(), 4) // a pair of BF16 is as wide as a float32
		if l.Type == Int8 {
			wide = 1
		}
		panel := block[first/kernel.PanelRows*kernel.PanelRows*p.row:][:kernel.PanelRows*p.row]
		for at := first % kernel.PanelRows * wide; at < len(panel); at += kernel.PanelRows * wide {
			visit(panel[at:][:n*wide])
		}
	}
}

// ValueBytes returns the size of the values of n slots, with their scales.
func (l KVLayout) ValueBytes(n int) int {
	p := l.planes()
	return n * (p[1].row + p[3].row)
}

// SaveValues copies the values of n slots of a block from first on, ValueBytes(n) long.
func (l KVLayout) SaveValues(dst, block []byte, first, n int) {
	for _, p := range [2]plane{l.planes()[1], l.planes()[3]} {
		dst = dst[copy(dst, block[p.at+first*p.row:][:n*p.row]):]
	}
}

// LoadValues is the inverse of SaveValues. Keys and other slots are unchanged.
func (l KVLayout) LoadValues(block []byte, first, n int, src []byte) {
	for _, p := range [2]plane{l.planes()[1], l.planes()[3]} {
		src = src[copy(block[p.at+first*p.row:][:n*p.row], src):]
	}
}
