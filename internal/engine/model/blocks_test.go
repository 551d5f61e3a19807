package model

import (
	"math"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Two random blocks of every type, dequantized by llama.cpp's own Python
// package (gguf.quants.dequantize, gguf-py 0.17 or later), bit for bit.
func TestDequantGoldens(t *testing.T) {
	var golden map[string]struct{ Blocks, Values []byte } // base64
	readJSON(t, "testdata/gguf/blocks.json", &golden)
	if len(golden) != len(dequant) || len(golden) != len(blockScales) {
		t.Fatalf("%d types, %d are dequantised, %d are checked", len(golden), len(dequant), len(blockScales))
	}
	for typ := range dequant {
		g := golden[typ.String()]
		n := typ.Block()
		row := Tensor{Shape: []int{1, 2 * n}, Data: g.Blocks, blocks: typ}
		want := make([]float32, 2*n)
		copyF32(want, g.Values)
		for _, span := range [][2]int{{0, 2 * n}, {0, n}, {n, 2 * n}, {n - 32, n + 32}, {5, 6}, {n - 1, n + 1}, {3, 3}} {
			got := make([]float32, span[1]-span[0])
			row.Row(got, 0, span[0], span[1])
			for i, v := range got {
				if math.Float32bits(v) != math.Float32bits(want[span[0]+i]) {
					t.Errorf("%v: element %d is %g, want %g", typ, span[0]+i, v, want[span[0]+i])
					break
				}
			}
		}
		if row.Elements() != int64(2*n) {
			t.Errorf("%v: %d elements", typ, row.Elements())
		}
		for _, at := range blockScales[typ] {
			broken := append([]byte{}, g.Blocks...)
			broken[at], broken[at+1] = 0, 0x7c // infinity
			if bad, any := blocksNotFinite(broken, typ); bad != int64(n) || !any {
				t.Errorf("%v: an infinite scale at %d damages %d elements, want %d", typ, at, bad, n)
			}
		}
		if bad, any := blocksNotFinite(g.Blocks, typ); bad != 0 || !any {
			t.Errorf("%v: %d elements are not finite, %v", typ, bad, any)
		}
	}
}

// Rows of a projection that are stored in pairs are returned in halves.
func TestPairedRows(t *testing.T) {
	const dim, heads, cols = 8, 3, 2
	data := make([]byte, 4*heads*dim*cols)
	at := 0
	for h := range heads {
		for i := range dim / 2 {
			for half := range 2 { // as stored: i and i+dim/2 adjacent
				for c := range cols {
					v := math.Float32bits(float32(((h*2+half)*dim/2+i)*cols + c))
					data[at], data[at+1], data[at+2], data[at+3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
					at += 4
				}
			}
		}
	}
	m := Tensor{DType: tensor.F32, Shape: []int{heads * dim, cols}, Data: data, order: Order{Head: dim, Rotated: dim, Neighbours: true}}
	v := Tensor{DType: tensor.F32, Shape: []int{heads * dim * cols}, Data: data, order: m.order}
	var got [cols]float32
	for r := range heads * dim {
		if m.Row(got[:], r, 0, cols); got != [cols]float32{float32(r * cols), float32(r*cols + 1)} {
			t.Errorf("row %d is %v", r, got)
		}
	}
	v.Shape, v.Data = []int{heads * dim}, nil
	for i := 0; i < len(data); i += 4 * cols {
		v.Data = append(v.Data, data[i:i+4]...)
	}
	bias := make([]float32, 7)
	v.Row(bias, 0, 5, 12)
	for i, b := range bias {
		if b != float32((5+i)*cols) {
			t.Errorf("element %d of the bias is %g", 5+i, b)
		}
	}
}

func BenchmarkDequant(b *testing.B) {
	var y [maxBlock]float32
	for _, typ := range []gguf.Type{gguf.Q8_0, gguf.Q4_0, gguf.Q4_K, gguf.Q6_K} {
		b.Run(typ.String(), func(b *testing.B) {
			block := make([]byte, typ.BlockBytes())
			b.SetBytes(int64(4 * typ.Block()))
			for b.Loop() {
				dequant[typ](&y, block)
			}
		})
	}
}
