package tensor

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// table rotates by n positions, with the angle in float64.
func table(half int) func(n int) (cos, sin []float32) {
	return func(n int) (cos, sin []float32) {
		for i := range half {
			s, c := math.Sincos(float64(n) * math.Pow(10000, -float64(i)/float64(half)))
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
		return cos, sin
	}
}

// A rotated slot is Put(RopeRotateHalf(Get)). Other slots and all values are unchanged, and the
// rotate-half cache changes no bit.
func TestRotateKeys(t *testing.T) {
	for _, dt := range []DType{F32, BF16, Int8} {
		for _, dim := range []int{8, 40, 64, 128} {
			l := KVLayout{Type: dt, KDim: dim, VDim: 24}
			t.Run(fmt.Sprint(dt, dim), func(t *testing.T) {
				r := rand.New(rand.NewPCG(1, uint64(dim)))
				src, half := make([]byte, l.BlockBytes()), make([]byte, l.HalfBytes())
				k, v := make([]float32, dim), make([]float32, l.VDim)
				offsets := make([]int32, 50)
				want := make([]byte, l.BlockBytes())
				for slot := range BlockSlots {
					for i := range k {
						k[i] = r.Float32()*2 - 1
					}
					l.Put(src, slot, k, v)
					l.PutHalf(half, src, slot)
				}
				copy(want, src)
				rope := table(dim / 2)
				for slot := range offsets {
					if offsets[slot] = int32(r.IntN(3) * r.IntN(5000)); offsets[slot] == 0 {
						continue
					}
					l.Get(src, slot, k, v)
					cos, sin := rope(int(offsets[slot]))
					RopeRotateHalf(k, cos, sin)
					l.Put(want, slot, k, v)
				}
				got := new(AttnScratch).Blocks(1, l.BlockBytes())[0]
				for _, h := range [][]byte{nil, half} {
					clear(got)
					l.RotateKeys(got, src, h, offsets, rope, make([]float32, 2*dim))
					if !slices.Equal(got, want) {
						t.Errorf("rotate-half cache %v: another block", h != nil)
					}
				}
			})
		}
	}
}

func BenchmarkRotateKeys(b *testing.B) {
	for _, dt := range []DType{F32, BF16} {
		l := KVLayout{Type: dt, KDim: 64, VDim: 64}
		src, dst, half := make([]byte, l.BlockBytes()), make([]byte, l.BlockBytes()), make([]byte, l.HalfBytes())
		offsets := make([]int32, BlockSlots)
		for i := range offsets {
			offsets[i] = 7
		}
		cos, sin := table(32)(7)
		rope := func(int) ([]float32, []float32) { return cos, sin }
		row := make([]float32, 128)
		for name, h := range map[string][]byte{"off": nil, "on": half} {
			b.Run(fmt.Sprintf("%v/rotate-half cache %s", dt, name), func(b *testing.B) {
				for b.Loop() {
					l.RotateKeys(dst, src, h, offsets, rope, row)
				}
			})
		}
	}
}

// In a latent row only the rope key is rotated; the latent and its scale are unchanged.
func TestRotateLatent(t *testing.T) {
	for _, dt := range []DType{F32, BF16, Int8} {
		l := KVLayout{Type: dt, KDim: 48, VDim: 32, Latent: true}
		r := rand.New(rand.NewPCG(2, 48))
		src, half := make([]byte, l.BlockBytes()), make([]byte, l.HalfBytes())
		k, want := make([]float32, l.KDim), make([]float32, l.KDim)
		offsets := make([]int32, 50)
		for slot := range BlockSlots {
			for i := range k {
				k[i] = r.Float32()*2 - 1
			}
			l.Put(src, slot, k, nil)
			l.PutHalf(half, src, slot)
		}
		for slot := range offsets {
			offsets[slot] = int32(r.IntN(3) * r.IntN(5000))
		}
		rope := table(8)
		for _, h := range [][]byte{nil, half} {
			got := make([]byte, l.BlockBytes())
			l.RotateKeys(got, src, h, offsets, rope, make([]float32, 2*l.KDim))
			again, turned := make([]byte, l.BlockBytes()), make([]float32, l.KDim)
			for slot := range BlockSlots {
				l.Get(src, slot, want, make([]float32, l.VDim))
				if slot < len(offsets) && offsets[slot] != 0 {
					cos, sin := rope(int(offsets[slot]))
					RopeRotateHalf(want[l.VDim:], cos, sin)
					l.Put(again, slot, want, nil)
					l.Get(again, slot, turned, make([]float32, l.VDim))
					copy(want[l.VDim:], turned[l.VDim:])
				}
				l.Get(got, slot, k, make([]float32, l.VDim))
				if !slices.Equal(k, want) {
					t.Fatalf("%v, rotate-half cache %v, slot %d by %d: got %v, want %v", dt, h != nil, slot, offsets[min(slot, 49)], k, want)
				}
			}
		}
	}
}
