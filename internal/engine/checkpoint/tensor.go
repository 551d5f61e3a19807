package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/mmap"
)

// Tensor is a stored tensor: row-major, little endian, in the checkpoint's mapping. It may be read
// concurrently until the checkpoint is closed.
type Tensor struct {
	Name  string
	DType tensor.DType // F32, BF16, F16; for quantized blocks and forms, the type in which they are held by default
	Shape []int
	Data  []byte // unaligned

	blocks gguf.Type                      // format of quantized blocks; 0 (which is F32): see DType
	fill   func(dst []float32, r, lo int) // instead of Data: generates a row from column lo on
	parts  []Tensor                       // with fill: the stored tensors, see joinKVUp
	form   *quantform.Matrix              // with fill: a matrix in a quantized form; its Parts are parts
	raw    bool                           // a part of form: Data is bytes
	home   *weightFile                    // the file that Data is mapped from; nil: no file
	sums   [][sha256.Size]byte            // digests of the pieces of Data, if rows are read after loading: see CheckedRow
	order  model.Order                    // of rows (of a vector: elements) in the file, if it is not that of Hugging Face
}

// Stored names the format of Data: "f32", "bf16", "f16", or a block format such as "q4_k".
func (t Tensor) Stored() string {
	if t.blocks != 0 {
		return strings.ToLower(t.blocks.String())
	}
	if t.form != nil {
		return t.form.Form.Name
	}
	if t.parts != nil {
		return t.parts[len(t.parts)-1].Stored()
	}
	return t.DType.String()
}

// stored returns the tensors of the files that t consists of.
func (t Tensor) stored() []Tensor {
	if t.parts != nil {
		return t.parts
	}
	return []Tensor{t}
}

// Rows and Cols are the shape of a matrix; a vector is one row. Dimensions after the first count as
// columns.
func (t Tensor) Rows() int {
	if len(t.Shape) < 2 {
		return 1
	}
	return t.Shape[0]
}

// Cols returns the number of elements of a row.
func (t Tensor) Cols() int {
	n := 1
	for i, d := range t.Shape {
		if i > 0 || len(t.Shape) == 1 {
			n *= d
		}
	}
	return n
}

func (t Tensor) Elements() int64 {
	if t.fill != nil {
		return int64(t.Rows()) * int64(t.Cols())
	}
	n, size := t.block()
	return int64(len(t.Data)) / size * n
}

// block returns the number of elements of a block, and its bytes.
func (t Tensor) block() (n, size int64) {
	if t.blocks != 0 {
		return int64(t.blocks.Block()), int64(t.blocks.BlockBytes())
	}
	if t.raw {
		return 1, 1
	}
	return 1, elementBytes(t.DType)
}

// Damage returns an error if Row has read elements of a quantized form that are NaN or infinite.
func (t Tensor) Damage() error {
	if t.form == nil {
		return nil
	}
	if row, found := t.form.Damaged(); found {
		return &model.Error{File: t.home.Path, Tensor: t.Name, Kind: model.ErrNotFinite,
			Detail: fmt.Sprintf("row %d has elements that are NaN or infinite: a scale or a code is damaged. Download the file again", row)}
	}
	return nil
}

// Row writes columns [lo, hi) of row r to dst[:hi-lo] as float32, exactly: all types are subsets of
// float32, blocks by their definition. It panics if the row or the columns do not exist. If the
// file was truncated, it writes zeros; Checkpoint.Since and Unchanged detect that.
func (t Tensor) Row(dst []float32, r, lo, hi int) {
	if mmap.Guard(func() { t.readRow(dst, r, lo, hi) }) != nil {
		clear(dst[:hi-lo])
	}
}

func (t Tensor) readRow(dst []float32, r, lo, hi int) {
	cols := t.Cols()
	if r < 0 || r >= t.Rows() || lo < 0 || lo > hi || hi > cols {
		panic(fmt.Sprintf("model: tensor %q of shape %v has no row %d, columns [%d, %d)", t.Name, t.Shape, r, lo, hi))
	}
	if t.fill != nil {
		t.fill(dst[:hi-lo], r, lo)
		if t.form != nil {
			t.form.Observe(r, dst[:hi-lo])
		}
		return
	}
	dst = dst[:hi-lo]
	if t.order.Head > 0 && len(t.Shape) == 1 {
		plain := t
		plain.order = model.Order{}
		for i := range dst {
			at := t.order.Row(lo + i)
			plain.readRow(dst[i:i+1], 0, at, at+1)
		}
		return
	}
	r = t.order.Row(r)
	n, bytes := t.block()
	if t.blocks != 0 {
		size := cols / int(n) * int(bytes)
		dequant.Row(dst, t.Data[r*size:(r+1)*size], t.blocks, lo, hi)
		return
	}
	size := int(bytes)
	src := t.Data[(r*cols+lo)*size : (r*cols+hi)*size]
	switch t.DType {
	case tensor.F32:
		copyF32(dst, src)
	case tensor.BF16:
		widenBF16(dst, src)
	case tensor.F16:
		dequant.F16s(dst, src)
	}
}

// copyF32 copies two elements at a time.
func copyF32(dst []float32, src []byte) {
	for len(dst) >= 2 && len(src) >= 8 {
		w := binary.LittleEndian.Uint64(src)
		dst[0] = math.Float32frombits(uint32(w))
		dst[1] = math.Float32frombits(uint32(w >> 32))
		dst, src = dst[2:], src[8:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// widenBF16 widens four at a time: bfloat16 is the upper half of a float32.
func widenBF16(dst []float32, src []byte) {
	for len(dst) >= 4 && len(src) >= 8 {
		w := binary.LittleEndian.Uint64(src)
		dst[0] = math.Float32frombits(uint32(w) << 16)
		dst[1] = math.Float32frombits(uint32(w) & 0xffff0000)
		dst[2] = math.Float32frombits(uint32(w>>32) << 16)
		dst[3] = math.Float32frombits(uint32(w>>32) & 0xffff0000)
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

// elementBytes returns the stored size of a weight's element.
func elementBytes(dt tensor.DType) int64 {
	if dt == tensor.F32 {
		return 4
	}
	return 2
}
