package tensor

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// Weight is a matrix [Rows][Cols], or the columns of its units [UnitLo, UnitHi), packed for reading
// once from front to back while many tokens are multiplied.
//
// Rows are packed in panels of 16 interleaved rows with the contraction axis outermost, padded with
// zeros to whole blocks of 32 columns. Four panels (the last ones fewer) form a group with
// interleaved columns. So a group, and one group after the other, is read as one stream:
//
//	F32, F16  [group][column/4][panel][4 columns][16 rows]
//	BF16      [group][column/4][panel][2][16 rows][2 columns]
//	Q8_0      [group][block] of [panel][8][16 rows][4 columns] bytes w+128, then [panel][16] float16 scales
//	Q4_0      [group][block] of [panel][4][16 rows][4] bytes, columns 4g+i low, 16+4g+i high, w+8 each, then scales
//	IQ4_NL    the same with the index of the value in a table of 16; MXFP4 likewise
//	Int4      the same with the codes unchanged, then [panel] of [16] float16 scales and [16] bytes of zero points
//
// So one vector holds the same column of 16 rows, and every output element is one chain along the
// columns for any vector width.
type Weight struct {
	Type           DType
	Rows, Cols     int
	UnitLo, UnitHi int

	span   Span            // the columns held here
	padded int             // their number, rounded up to whole blocks
	nodes  []Span          // Subtrees(UnitLo, UnitHi)
	steps  [][]kernel.Step // per node, its units
	panel  int             // bytes of one panel
	chunk  int             // columns of a panel that are contiguous: a quantized block, or 4
	column int             // bytes of one column of a panel, without scales
	scales int             // bytes of the scales of a chunk of one panel
	data   []byte
	mem    hugemem.Part
	free   func() error // frees memory that belongs to the caller
}

// NewWeight returns a zero matrix that owns all units of its columns.
func NewWeight(dt DType, rows, cols int) (*Weight, error) {
	return NewWeightUnits(dt, rows, cols, 0, Units(cols))
}

// NewWeightUnits returns a zero matrix that holds the columns of the units [unitLo, unitHi) of an
// axis of cols elements. Fill it with SetRow, and release its memory with Close.
func NewWeightUnits(dt DType, rows, cols, unitLo, unitHi int) (*Weight, error) {
	w, err := describe(dt, rows, cols, unitLo, unitHi)
	if err != nil || w.size() == 0 {
		return w, err
	}
	w.mem, err = hugemem.MapPart(w.size())
	w.data = w.mem.Data
	return w, err
}

// NewWeightIn is NewWeightUnits in the caller's memory of WeightBytes, which is zero or holds
// another such matrix. Close calls free.
func NewWeightIn(dt DType, rows, cols, unitLo, unitHi int, data []byte, free func() error) (*Weight, error) {
	w, err := describe(dt, rows, cols, unitLo, unitHi)
	if err != nil {
		return nil, err
	}
	if len(data) != w.size() {
		return nil, fmt.Errorf("tensor: %d bytes of memory for a weight of %d", len(data), w.size())
	}
	w.data, w.free = data, free
	return w, nil
}

// describe is NewWeightUnits without memory.
func describe(dt DType, rows, cols, unitLo, unitHi int) (*Weight, error) {
	switch {
	case columnBytes(dt) == 0:
		return nil, fmt.Errorf("tensor: weights cannot be stored as %v; use f32, bf16, f16, q8_0, q4_0, iq4_nl, int4 or mxfp4", dt)
	case rows < 0 || cols <= 0 || rows > math.MaxInt32 || cols > math.MaxInt32:
		return nil, fmt.Errorf("tensor: weight of %d rows and %d columns is not a matrix", rows, cols)
	case unitLo < 0 || unitLo > unitHi || unitHi > Units(cols):
		return nil, fmt.Errorf("tensor: units [%d,%d) outside of the %d units of %d columns", unitLo, unitHi, Units(cols), cols)
	}
	w := &Weight{Type: dt, Rows: rows, Cols: cols, UnitLo: unitLo, UnitHi: unitHi}
	w.span = UnitsSpan(cols, unitLo, unitHi)
	w.padded = (w.span.Len() + BlockWidth - 1) / BlockWidth * BlockWidth
	w.nodes = Subtrees(unitLo, unitHi, Units(cols))
	for _, n := range w.nodes {
		w.steps = append(w.steps, treeSteps(cols, n.Lo, n.Hi))
	}
	w.column, w.chunk = columnBytes(dt), kernel.TileColumns
	if kernel.Quantized(dt) {
		w.chunk, w.scales = BlockWidth, scaleBytes(dt)
	}
	w.panel = panelBytes(dt, w.padded)
	if panels := (rows + kernel.PanelRows - 1) / kernel.PanelRows; w.panel > 0 && panels > math.MaxInt/2/w.panel {
		return nil, fmt.Errorf("tensor: weight of %d rows and %d columns does not fit the address space", rows, cols)
	}
	return w, nil
}

func (w *Weight) size() int { return (w.Rows + kernel.PanelRows - 1) / kernel.PanelRows * w.panel }

// columnBytes returns the size of one column of a panel, without scales; 0 if dt is not a weight type.
func columnBytes(dt DType) int {
	switch dt {
	case F32:
		return kernel.PanelRows * 4
	case BF16, F16:
		return kernel.PanelRows * 2
	case Q8_0:
		return kernel.PanelRows
	case Q4_0, IQ4_NL, Int4, MXFP4:
		return kernel.PanelRows / 2
	}
	return 0
}

// panelBytes returns the size of a panel: its columns and, if quantized, its scales, rounded up to a
// whole cache line.
func panelBytes(dt DType, padded int) int {
	n := padded * columnBytes(dt)
	if kernel.Quantized(dt) {
		n += padded / BlockWidth * scaleBytes(dt)
	}
	return (n + 63) &^ 63
}

// Span returns the range of columns that the weight holds.
func (w *Weight) Span() Span { return w.span }

// Bytes returns the size of the packed matrix in memory.
func (w *Weight) Bytes() int64 { return int64(len(w.data)) }

// Packed returns the matrix as the kernels read it, in the layout above. It can be stored and copied
// back into a weight of the same type, rows and units. It is valid until Close.
func (w *Weight) Packed() []byte { return w.data }

// Close returns the memory to the system. The weight must not be used afterwards. Close may be
// called twice.
func (w *Weight) Close() error {
	settle()
	mem, free := w.mem, w.free
	w.mem, w.data, w.free = hugemem.Part{}, nil, nil
	if free != nil {
		return free()
	}
	return mem.Free()
}

// SetRow stores row r: src holds the columns of Span, which are rounded or quantized to Type.
// Different rows may be set concurrently (best in groups of 16, which share cache lines).
func (w *Weight) SetRow(r int, src []float32) { w.SetRowCodes(r, src, nil) }

// SetRowCodes is SetRow for a row that is quantized already. codes, if not nil, returns the block of 32
// columns from k on; ok is false if it is not a block of integers with one scale. Blocks that Type can
// represent are stored with their codes, and the others are quantized again from src. It returns the
// number of blocks that were stored without an error. A scale may be rounded to float16.
func (w *Weight) SetRowCodes(r int, src []float32, codes func(c *Codes, k int) (ok bool)) (kept int) {
	if r < 0 || r >= w.Rows || len(src) != w.span.Len() {
		panic(fmt.Sprintf("tensor: SetRow(%d) with %d columns in a weight of %d rows and %d columns", r, len(src), w.Rows, w.span.Len()))
	}
	if len(src) == 0 {
		return 0
	}
	base, panels := w.group(r / kernel.PanelRows)
	data, advance := w.data[base:], w.advance(panels)
	first, lane := r/kernel.PanelRows%kernel.MaxTilePanels*w.chunk*w.column, r%kernel.PanelRows
	switch w.Type {
	case F32:
		for k := 0; k < len(src); k += kernel.TileColumns {
			f := floats(data[k/kernel.TileColumns*advance+first:])
			for i, v := range src[k:min(len(src), k+kernel.TileColumns)] {
				f[i*kernel.PanelRows+lane] = v
			}
		}
	case F16:
		for k := 0; k < len(src); k += kernel.TileColumns {
			h := halves(data[k/kernel.TileColumns*advance+first:])
			for i, v := range src[k:min(len(src), k+kernel.TileColumns)] {
				h[i*kernel.PanelRows+lane] = f32.ToF16(v)
			}
		}
	case BF16:
		for k := 0; k < len(src); k += kernel.TileColumns {
			h := halves(data[k/kernel.TileColumns*advance+first:])
			for i, v := range src[k:min(len(src), k+kernel.TileColumns)] {
				h[i&^1*kernel.PanelRows+lane*2+i&1] = f32.ToBF16(v)
			}
		}
	default:
		var c Codes
		for b := 0; b*BlockWidth < len(src); b++ {
			at := data[b*advance:][:advance]
			block := at[first:][:w.chunk*w.column]
			scales := at[panels*w.chunk*w.column+r/kernel.PanelRows%kernel.MaxTilePanels*w.scales:][:w.scales]
			if codes != nil && codes(&c, b*BlockWidth) && putCodes(w.Type, block, scales, lane, &c) {
				if f32.FromF16(halves(scales)[lane]) == c.Scale {
					kept++
				}
				continue
			}
			var x [BlockWidth]float32
			copy(x[:], src[b*BlockWidth:])
			putBlock(w.Type, block, scales, lane, &x)
		}
	}
	return kept
}

// group returns where the group of a panel starts in the data, and its number of panels.
func (w *Weight) group(panel int) (base, panels int) {
	first := panel / kernel.MaxTilePanels * kernel.MaxTilePanels
	all := (w.Rows + kernel.PanelRows - 1) / kernel.PanelRows
	return first * w.panel, min(kernel.MaxTilePanels, all-first)
}

// advance returns the bytes from a chunk of a group of panels to the next chunk.
func (w *Weight) advance(panels int) int { return panels * (w.chunk*w.column + w.scales) }

// WeightBytes returns the memory of a whole matrix as dt.
func WeightBytes(dt DType, rows, cols int) int64 {
	padded := (cols + BlockWidth - 1) / BlockWidth * BlockWidth
	return int64((rows+kernel.PanelRows-1)/kernel.PanelRows) * int64(panelBytes(dt, padded))
}

// Row reads row r into dst, the columns of Span, with the values that products use.
func (w *Weight) Row(r int, dst []float32) {
	if r < 0 || r >= w.Rows || len(dst) != w.span.Len() {
		panic(fmt.Sprintf("tensor: Row(%d) of %d columns in a weight of %d rows and %d columns", r, len(dst), w.Rows, w.span.Len()))
	}
	if len(dst) == 0 {
		return
	}
	base, panels := w.group(r / kernel.PanelRows)
	data, advance := w.data[base:], w.advance(panels)
	first, lane := r/kernel.PanelRows%kernel.MaxTilePanels*w.chunk*w.column, r%kernel.PanelRows
	scales := panels*w.chunk*w.column + r/kernel.PanelRows%kernel.MaxTilePanels*w.scales
	for k := range dst {
		chunk := data[k/w.chunk*advance:]
		at, i := chunk[first:], k%w.chunk
		nibble := func() byte { return at[i%16/4*4*kernel.PanelRows+lane*4+i%4] >> (i / 16 * 4) & 15 }
		scale := func() float32 { return f32.FromF16(halves(chunk[scales:])[lane]) }
		switch w.Type {
		case F32:
			dst[k] = floats(at)[i*kernel.PanelRows+lane]
		case F16:
			dst[k] = f32.FromF16(halves(at)[i*kernel.PanelRows+lane])
		case BF16:
			dst[k] = f32.FromBF16(halves(at)[i&^1*kernel.PanelRows+lane*2+i&1])
		case Q8_0:
			dst[k] = scale() * float32(int(at[i/4*4*kernel.PanelRows+lane*4+i%4])-128)
		case Q4_0:
			dst[k] = scale() * float32(int(nibble())-8)
		case IQ4_NL, MXFP4:
			dst[k] = scale() * float32(kernel.Tables[w.Type].Values[nibble()])
		case Int4:
			dst[k] = scale() * float32(int(nibble())-int(chunk[scales+2*kernel.PanelRows+lane]))
		}
	}
}

// treeSteps lists the units [lo, hi), which are one node of the tree. Finished nodes are on a
// stack, as in a binary counter: unit i of the node merges with as many of them as i+1 has trailing
// zero bits, the last unit with all remaining ones.
func treeSteps(cols, lo, hi int) []kernel.Step {
	steps := make([]kernel.Step, 0, hi-lo)
	depth := 0
	for u := lo; u < hi; u++ {
		merges := bits.TrailingZeros(uint(u - lo + 1))
		if u == hi-1 {
			merges = depth
		}
		depth += 1 - merges
		padded := (UnitSpan(cols, u).Len() + BlockWidth - 1) / BlockWidth * BlockWidth
		steps = append(steps, kernel.Step{K: uintptr(padded), Merges: uintptr(merges)})
	}
	return steps
}
