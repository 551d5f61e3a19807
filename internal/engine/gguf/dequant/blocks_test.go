package dequant

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
)

// Two blocks of every type, dequantized by llama.cpp's own Python package (gguf.quants.dequantize,
// gguf-py 0.17 or later), bit for bit.
func TestGoldens(t *testing.T) {
	var golden map[string]struct{ Blocks, Values []byte } // base64
	text, err := os.ReadFile("testdata/blocks.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(golden) != len(dequant) || len(golden) != len(blockScales) {
		t.Fatalf("%d types, %d are dequantized, %d are checked", len(golden), len(dequant), len(blockScales))
	}
	for typ := range dequant {
		g := golden[typ.String()]
		n := typ.Block()
		for _, span := range [][2]int{{0, 2 * n}, {0, n}, {n, 2 * n}, {n - 32, n + 32}, {5, 6}, {n - 1, n + 1}, {3, 3}} {
			got := make([]float32, span[1]-span[0])
			Row(got, g.Blocks, typ, span[0], span[1])
			for i, v := range got {
				if want := binary.LittleEndian.Uint32(g.Values[4*(span[0]+i):]); math.Float32bits(v) != want {
					t.Errorf("%v: element %d is %g, want %g", typ, span[0]+i, v, math.Float32frombits(want))
					break
				}
			}
		}
		var q [32]int16
		for lo := 0; HasCodes(typ) && lo < 2*n; lo += 32 {
			scale := Codes(&q, g.Blocks, typ, lo)
			for i, code := range q {
				if want := math.Float32frombits(binary.LittleEndian.Uint32(g.Values[4*(lo+i):])); float32(code)*scale != want {
					t.Errorf("%v: element %d has the code %d and the scale %g, want %g", typ, lo+i, code, scale, want)
				}
			}
		}
		broken := map[int][]byte{}
		for _, at := range blockScales[typ] {
			broken[at] = []byte{0, 0x7c} // infinity
		}
		if typ == gguf.MXFP4 {
			broken[0] = []byte{FP4NaN}
		}
		if typ == gguf.IQ1_M { // the upper nibbles of four words are 0x7c00
			broken[48] = []byte{0, 0, 0, 0, 0, 0xc0, 0, 0x70}
		}
		for at, scale := range broken {
			blocks := append([]byte{}, g.Blocks...)
			copy(blocks[at:], scale)
			if bad, any := NotFinite(blocks, typ); bad != int64(n) || !any {
				t.Errorf("%v: a scale at %d that is not finite damages %d elements, want %d", typ, at, bad, n)
			}
		}
		if bad, any := NotFinite(g.Blocks, typ); bad != 0 || !any {
			t.Errorf("%v: %d elements are not finite, %v", typ, bad, any)
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
