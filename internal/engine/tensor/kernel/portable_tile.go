package kernel

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

type Lanes [16]float32

// loader widens 4 columns of one panel to float32.
type loader func(dst *[4]Lanes, w unsafe.Pointer)

func loadF32(dst *[4]Lanes, w unsafe.Pointer) {
	*dst = *(*[4]Lanes)(w)
}

func loadF16(dst *[4]Lanes, w unsafe.Pointer) {
	for k, row := range (*[4][16]uint16)(w) {
		for i, h := range row {
			dst[k][i] = f32.FromF16(h)
		}
	}
}

func loadBF16(dst *[4]Lanes, w unsafe.Pointer) {
	for k, row := range (*[2][16][2]uint16)(w) {
		for i, h := range row {
			dst[2*k][i], dst[2*k+1][i] = f32.FromBF16(h[0]), f32.FromBF16(h[1])
		}
	}
}

func loadInt8(dst *[4]Lanes, w unsafe.Pointer) {
	for k, row := range (*[4][16]int8)(w) {
		for i, v := range row {
			dst[k][i] = float32(v)
		}
	}
}

// portableTile returns the reference for every float tile kernel.
func portableTile(load loader) func(*TileArgs) {
	return func(a *TileArgs) {
		steps := unsafe.Slice(a.Steps, a.NSteps)
		for p := range a.Panels {
			w := unsafe.Add(a.W, uintptr(p)*a.Panel)
			column, level := uintptr(0), uintptr(0)
			var acc [MaxTileTokens]Lanes
			for i, s := range steps {
				acc = [MaxTileTokens]Lanes{}
				var w4 [4]Lanes
				for k := column; k < column+s.K; k += 4 {
					load(&w4, w)
					w = unsafe.Add(w, a.Advance)
					for t := range a.Tokens {
						x := (*[4]float32)(unsafe.Add(a.X, uintptr(t)*a.LdX+k*4))
						at := &acc[t]
						for j, xk := range x {
							for i, wk := range &w4[j] {
								at[i] = f32.FMA(wk, xk, at[i])
							}
						}
					}
				}
				column += s.K
				a.merge(p, s.Merges, &level, &acc, i == len(steps)-1)
			}
			for t := range a.Tokens {
				*(*Lanes)(unsafe.Add(a.Out, uintptr(t)*a.LdOut+uintptr(p)*64)) = acc[t]
			}
		}
	}
}

// merge adds the tree nodes that a unit completes, newest first, and pushes the sum on the stack
// unless it is the last one. level is the stack's height in bytes.
func (a *TileArgs) merge(panel int, merges uintptr, level *uintptr, acc *[MaxTileTokens]Lanes, last bool) {
	for range merges {
		*level -= a.Level
		for t := range a.Tokens {
			for i, v := range a.node(panel, t, *level) {
				acc[t][i] += v
			}
		}
	}
	if !last {
		for t := range a.Tokens {
			*a.node(panel, t, *level) = acc[t]
		}
		*level += a.Level
	}
}

func (a *TileArgs) node(panel, token int, level uintptr) *Lanes {
	return (*Lanes)(unsafe.Add(a.Stack, uintptr(token)*GroupRows*4+uintptr(panel)*64+level))
}
