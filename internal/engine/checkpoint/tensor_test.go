package checkpoint

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Every half-precision value, against its definition.
func TestWidenAllHalves(t *testing.T) {
	var data []byte
	for h := range 1 << 16 {
		data = binary.LittleEndian.AppendUint16(data, uint16(h))
	}
	f16, bf16 := make([]float32, 1<<16), make([]float32, 1<<16)
	Tensor{DType: tensor.F16, Shape: []int{1 << 16}, Data: data}.Row(f16, 0, 0, 1<<16)
	Tensor{DType: tensor.BF16, Shape: []int{1 << 16}, Data: data}.Row(bf16, 0, 0, 1<<16)
	for h := range 1 << 16 {
		if math.Float32bits(bf16[h]) != uint32(h)<<16 {
			t.Fatalf("bf16 %#04x is %g", h, bf16[h])
		}
		exp, frac := h>>10&31, float64(h&0x3ff)
		want := math.Ldexp(1+frac/1024, exp-15)
		switch {
		case exp == 0:
			want = math.Ldexp(frac, -24)
		case exp == 31 && frac == 0:
			want = math.Inf(1)
		case exp == 31:
			want = math.NaN()
		}
		if h>>15 == 1 {
			want = math.Copysign(want, -1)
		}
		got := float64(f16[h])
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != (h>>15 == 1) {
			t.Fatalf("f16 %#04x is %g, want %g", h, got, want)
		}
	}
}

func TestRowStretches(t *testing.T) {
	const rows, cols = 5, 23
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		data := []byte{9} // so that nothing is aligned
		for i := range rows * cols {
			switch dt {
			case tensor.F32:
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(i)))
			case tensor.BF16:
				data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(float32(i))>>16))
			case tensor.F16:
				data = binary.LittleEndian.AppendUint16(data, uint16(i))
			}
		}
		w := Tensor{Name: "w", DType: dt, Shape: []int{rows, cols}, Data: data[1:]}
		full := make([]float32, cols)
		for r := range rows {
			w.Row(full, r, 0, cols)
			for lo := range cols + 1 {
				for hi := lo; hi <= cols; hi++ {
					part := make([]float32, hi-lo+1)
					part[hi-lo] = -1
					w.Row(part, r, lo, hi)
					for i := lo; i < hi; i++ {
						if part[i-lo] != full[i] {
							t.Fatalf("%v row %d [%d,%d)[%d] is %g, want %g", dt, r, lo, hi, i, part[i-lo], full[i])
						}
					}
					if part[hi-lo] != -1 {
						t.Fatalf("%v row %d [%d,%d) wrote past its end", dt, r, lo, hi)
					}
				}
			}
		}
		for _, bad := range [][3]int{{-1, 0, 1}, {rows, 0, 1}, {0, -1, 1}, {0, 2, 1}, {0, 0, cols + 1}} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%v: Row%v did not panic", dt, bad)
					}
				}()
				w.Row(make([]float32, 64), bad[0], bad[1], bad[2])
			}()
		}
	}
}

func BenchmarkRow(b *testing.B) {
	const n = 1 << 14
	dst := make([]float32, n)
	for _, dt := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		data := make([]byte, n*elementBytes(dt))
		for i := range data {
			data[i] = byte(i%200) & 0x5f
		}
		w := Tensor{DType: dt, Shape: []int{n}, Data: data}
		b.Run(dt.String(), func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				w.Row(dst, 0, 0, n)
			}
		})
	}
}
