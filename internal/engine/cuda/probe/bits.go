package probe

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/kernels"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// card is what the self-test uses of a card: a stream, the kernels, and memory that is freed at
// the end.
type card struct {
	*cuda.Context
	stream *cuda.Stream
	module *cuda.Module
	buffer *cuda.Pinned // for copies
	owned  []cuda.Pointer
	err    error // the first failure; later work is skipped
}

// staging is the size of the buffer for copies.
const staging = 64 << 20

func open(c *cuda.Context) (*card, error) {
	k := &card{Context: c}
	var err error
	if k.stream, err = c.Stream(); err != nil {
		return nil, err
	}
	if k.module, err = c.Load(kernels.PTX); err != nil {
		return nil, err
	}
	k.buffer, err = c.Pin(staging)
	return k, err
}

func (k *card) fail(err error) {
	if k.err == nil {
		k.err = err
	}
}

// free frees the memory of the comparison that ended.
func (k *card) free() {
	for _, p := range k.owned {
		k.fail(k.Free(p))
	}
	k.owned = nil
}

func (k *card) alloc(bytes int) cuda.Pointer {
	p, err := k.Alloc(int64(bytes))
	if err != nil {
		k.fail(err)
		return 0
	}
	k.owned = append(k.owned, p)
	return p
}

// upload copies a slice of numbers to the card.
func (k *card) upload(numbers any) cuda.Pointer {
	b := bytesOf(numbers)
	p := k.alloc(len(b))
	if k.err == nil {
		copy(k.buffer.Bytes(), b)
		k.fail(k.stream.Upload(p, k.buffer.Bytes()[:len(b)]))
		k.fail(k.stream.Wait())
	}
	return p
}

func (k *card) download(p cuda.Pointer, bytes int) []byte {
	out := make([]byte, bytes)
	if k.err == nil {
		k.fail(k.stream.Download(k.buffer.Bytes()[:bytes], p))
		k.fail(k.stream.Wait())
		copy(out, k.buffer.Bytes())
	}
	return out
}

func (k *card) launch(name string, g cuda.Grid, args ...any) {
	if k.err != nil {
		return
	}
	f, err := k.module.Kernel(name)
	if err != nil {
		k.fail(err)
		return
	}
	k.fail(f.Launch(k.stream, g, args...))
}

// equal compares the card's result with that of package tensor.
func (k *card) equal(what string, p cuda.Pointer, want []byte) {
	got := k.download(p, len(want))
	if k.err != nil {
		return
	}
	if n, first := differences(got, want); n > 0 {
		k.err = fmt.Errorf("%s: %d of %d bytes differ from the CPU's, first at %d", what, n, len(want), first)
	}
}

func differences(a, b []byte) (n, first int) {
	for i := range a {
		if a[i] != b[i] {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	return n, first
}

func bytesOf(numbers any) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, numbers)
	if err != nil {
		panic(err) // a slice of numbers
	}
	return b
}

func normal(r *rand.Rand, n int, by float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64()) * by
	}
	return x
}

// compareBits runs every kernel on fixed numbers and compares it with package tensor, to the bit.
func (k *card) compareBits() error {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range []func(*rand.Rand){k.exponentials, k.rounding, k.norms, k.gates, k.products} {
		f(r)
		k.free()
	}
	return k.err
}

func (k *card) exponentials(*rand.Rand) {
	var x []float32
	for bits := uint64(0); bits < 1<<32; bits += 65521 { // a prime: every exponent, NaN and infinity
		x = append(x, math.Float32frombits(uint32(bits)))
	}
	want := make([]float32, len(x))
	for i := range x {
		want[i] = tensor.Exp(x[i])
	}
	y := k.alloc(4 * len(x))
	k.launch("exp_all", cuda.Grid{X: (len(x) + 255) / 256, Threads: 256}, k.upload(x), y, uint32(len(x)))
	k.equal("exp", y, bytesOf(want))
}

// quantized returns the bytes and the scales of tensor.Quantize.
func quantized(x []float32) (b []byte, scales []float32) {
	records := make([]byte, tensor.QuantizedBytes(len(x)))
	tensor.Quantize(records, len(records), tensor.Q8_0, x, len(x), len(x), 1)
	size := tensor.QuantizedBytes(tensor.BlockWidth)
	for ; len(records) > 0; records = records[size:] {
		b = append(b, records[:tensor.BlockWidth]...)
		scales = append(scales, math.Float32frombits(binary.LittleEndian.Uint32(records[tensor.BlockWidth:])))
	}
	return b, scales
}

// equalRounded compares rounded activations.
func (k *card) equalRounded(what string, b, scales cuda.Pointer, want []float32) {
	wantBytes, wantScales := quantized(want)
	k.equal(what, b, wantBytes)
	k.equal(what+", scales", scales, bytesOf(wantScales))
}

func (k *card) rounding(r *rand.Rand) {
	x := normal(r, 1024, 1)
	clear(x[32:64])
	for i := range 32 {
		x[64+i] *= 1e-42 // subnormal
		x[96+i] *= 1e30
	}
	x[130], x[170] = float32(math.Inf(-1)), float32(math.NaN())
	b, scales := k.alloc(len(x)), k.alloc(len(x)/8)
	k.launch("quantize_rows", cuda.Grid{X: len(x) / 256, Threads: 256}, k.upload(x), b, scales, uint32(len(x)/32))
	k.equalRounded("rounding of activations", b, scales, x)
}

func (k *card) norms(r *rand.Rand) {
	const n, eps = 4096, 1e-5
	for _, by := range []float32{1, 1e-20, 1e15} {
		x, weight, want := normal(r, n, by), normal(r, n, 1), make([]float32, n)
		tensor.RMSNorm(want, x, weight, eps)
		b, scales := k.alloc(n), k.alloc(n/8)
		k.launch("rms_norm_quantize", cuda.Grid{X: n / 512, Threads: 512}, k.upload(x), k.upload(weight), float32(eps), b, scales, uint32(n))
		k.equalRounded(fmt.Sprintf("RMS norm of numbers near %g", by), b, scales, want)
	}
}

func (k *card) gates(r *rand.Rand) {
	const n = 4096
	gate, up, want := normal(r, n, 4), normal(r, n, 4), make([]float32, n)
	gate[0], gate[1], gate[2] = -100, 100, 88.5
	tensor.SiLUMul(want, gate, up)
	b, scales := k.alloc(n), k.alloc(n/8)
	k.launch("silu_mul_quantize", cuda.Grid{X: n / 256, Threads: 256}, k.upload(gate), k.upload(up), b, scales, uint32(n))
	k.equalRounded("SiLU", b, scales, want)
}

func (k *card) products(r *rand.Rand) {
	const rows, cols = 64, 1056 // blocks that the 16 units share unevenly
	w, err := tensor.NewWeight(tensor.Q8_0, rows, cols)
	if err != nil {
		k.fail(err)
		return
	}
	defer w.Close()
	for i := range rows {
		w.SetRow(i, normal(r, cols, 0.02))
	}
	x, residual, want := normal(r, cols, 1), normal(r, rows, 1), make([]float32, rows)
	pool := tensor.NewPool(1)
	defer pool.Close()
	pool.MatMul(want, rows, w, x, cols, 1)
	for i := range want {
		want[i] = residual[i] + want[i]
	}
	b, scales := quantized(x)
	wb, ws := unpackQ8(w)
	y := k.alloc(4 * rows)
	k.launch("q8_product", cuda.Grid{X: rows / panelRows, Threads: 512}, k.upload(wb), k.upload(ws), k.upload(b), k.upload(scales), y, k.upload(residual), uint32(cols/tensor.BlockWidth))
	k.equal("product of Q8_0 weights", y, bytesOf(want))
}

// panelRows is the number of rows that q8_product computes at once.
const panelRows = 16

// unpackQ8 returns the bytes of a matrix as (panel, block, row, 32) and its scales as (panel,
// block, row), both for the card, from the layout of tensor.Weight.
func unpackQ8(w *tensor.Weight) (q []byte, scales []uint16) {
	const group, columns = 4, 4 // panels whose columns are interleaved; columns that lie together
	const panelBlock = panelRows * tensor.BlockWidth
	blocks, panels := w.Cols/tensor.BlockWidth, w.Rows/panelRows
	q, scales = make([]byte, w.Rows*w.Cols), make([]uint16, w.Rows*blocks)
	panelBytes := (blocks*(panelBlock+2*panelRows) + 63) &^ 63
	for first := 0; first < panels; first += group {
		n := min(group, panels-first)
		at := w.Packed()[first*panelBytes:]
		for b := range blocks {
			for p := range n {
				to := (first+p)*blocks + b
				for i := range panelBlock {
					column, row := i/(panelRows*columns)*columns+i%columns, i/columns%panelRows
					q[to*panelBlock+row*tensor.BlockWidth+column] = at[p*panelBlock+i] ^ 0x80 // stored with 128 added
				}
				for row := range panelRows {
					scales[to*panelRows+row] = binary.LittleEndian.Uint16(at[n*panelBlock+2*(p*panelRows+row):])
				}
			}
			at = at[n*(panelBlock+2*panelRows):]
		}
	}
	return q, scales
}
