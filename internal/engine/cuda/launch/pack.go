package launch

import (
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// PanelRows is the number of rows of a panel of a card's weights. The last panel is padded with zeros.
const PanelRows = 16

// PackedBytes returns the memory of a weight's data and scales on a card.
func PackedBytes(t tensor.DType, rows, cols int) (data, scales int64) {
	elements := int64(ceil(rows, PanelRows)*PanelRows) * int64(cols)
	switch t {
	case tensor.F32:
		return 4 * elements, 0
	case tensor.BF16, tensor.F16:
		return 2 * elements, 0
	case tensor.Q8_0:
		return elements, elements / block * 2
	case tensor.Q4_0:
		return elements / 2, elements / block * 2
	}
	return 0, 0
}

// Pack writes a weight in the layout of a card, from that of package tensor:
//
//	F32        (panel, column/4, row, 4)
//	BF16, F16  (panel, column/8, row, 8)
//	Q8_0       (panel, block, row, 32) int8
//	Q4_0       (panel, block, row, 16), columns i low and i+16 high, with 8 added
//	scales     (panel, block, row) float16
//
// data and scales have PackedBytes of the columns of the weight's Span. All columns are a multiple of
// 32.
func Pack(data, scales []byte, w *tensor.Weight) error {
	if err := wholeBlocks("a weight", w.Cols); err != nil {
		return err
	}
	cols := w.Span().Len()
	d, s := PackedBytes(w.Type, w.Rows, cols)
	if d == 0 && cols > 0 && w.Rows > 0 {
		return fmt.Errorf("launch: no layout for a weight of %v", w.Type)
	}
	if int64(len(data)) != d || int64(len(scales)) != s {
		return fmt.Errorf("launch: %d bytes of data and %d of scales for a weight of %d and %d", len(data), len(scales), d, s)
	}
	const group = 4 // panels of package tensor whose columns are interleaved
	panels := ceil(w.Rows, PanelRows)
	panelBytes := len(w.Packed()) / max(1, panels)
	for first := 0; first < panels; first += group {
		n := min(group, panels-first)
		from := w.Packed()[first*panelBytes:]
		for p := range n {
			packPanel(data[len(data)/panels*(first+p):][:len(data)/panels], scales[len(scales)/panels*(first+p):][:len(scales)/panels],
				from, w.Type, cols, p, n)
		}
	}
	return nil
}

// packPanel writes panel p of a group of n panels.
func packPanel(data, scales, from []byte, t tensor.DType, cols, p, n int) {
	switch t {
	case tensor.F32, tensor.F16, tensor.BF16:
		size := 2
		if t == tensor.F32 {
			size = 4
		}
		chunk := 16 / size // columns of a row that lie together
		for k := range cols {
			at := from[(k/4*n+p)*4*PanelRows*size:]
			for row := range PanelRows {
				i := k%4*PanelRows + row
				if t == tensor.BF16 {
					i = k%4&^1*PanelRows + row*2 + k&1
				}
				copy(data[(k/chunk*PanelRows+row)*16+k%chunk*size:][:size], at[i*size:])
			}
		}
	default:
		packBlocks(data, scales, from, t, cols, p, n)
	}
}

func packBlocks(data, scales, from []byte, t tensor.DType, cols, p, n int) {
	width, flip := block, byte(0x80) // bytes of a block; package tensor stores Q8_0 with 128 added
	if t == tensor.Q4_0 {
		width, flip = block/2, 0
	}
	size := width * PanelRows
	for b := range cols / block {
		at := from[b*n*(size+2*PanelRows):]
		for i := range width {
			for row := range PanelRows {
				data[b*size+row*width+i] = at[p*size+i/4*4*PanelRows+row*4+i%4] ^ flip
			}
		}
		copy(scales[b*2*PanelRows:][:2*PanelRows], at[n*size+2*p*PanelRows:])
	}
}

// RowsBytes returns the little-endian bytes of rows, as kernels read them.
func RowsBytes(rows []Row) []byte {
	b := make([]byte, 0, RowBytes*len(rows))
	for _, r := range rows {
		for _, v := range []uint32{r.Slot, r.Table, r.Stride, 0} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	return b
}
