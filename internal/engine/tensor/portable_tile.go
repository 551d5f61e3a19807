package tensor

import "unsafe"

type lanes [16]float32

// loader widens 4 columns of one panel to float32.
type loader func(dst *[4]lanes, w unsafe.Pointer)

func loadF32(dst *[4]lanes, w unsafe.Pointer) {
	*dst = *(*[4]lanes)(w)
}

func loadF16(dst *[4]lanes, w unsafe.Pointer) {
	for k, row := range (*[4][16]uint16)(w) {
		for i, h := range row {
			dst[k][i] = fromF16(h)
		}
	}
}

func loadBF16(dst *[4]lanes, w unsafe.Pointer) {
	for k, row := range (*[2][16][2]uint16)(w) {
		for i, h := range row {
			dst[2*k][i], dst[2*k+1][i] = fromBF16(h[0]), fromBF16(h[1])
		}
	}
}

func loadInt8(dst *[4]lanes, w unsafe.Pointer) {
	for k, row := range (*[4][16]int8)(w) {
		for i, v := range row {
			dst[k][i] = float32(v)
		}
	}
}

// portableTile is the reference of every float tile kernel.
func portableTile(load loader) func(*tileArgs) {
	return func(a *tileArgs) {
		steps := unsafe.Slice(a.steps, a.nsteps)
		for p := range a.panels {
			w := unsafe.Add(a.w, uintptr(p)*a.panel)
			column, level := uintptr(0), uintptr(0)
			var acc [maxTileTokens]lanes
			for i, s := range steps {
				acc = [maxTileTokens]lanes{}
				var w4 [4]lanes
				for k := column; k < column+s.k; k += 4 {
					load(&w4, w)
					w = unsafe.Add(w, a.advance)
					for t := range a.tokens {
						x := (*[4]float32)(unsafe.Add(a.x, uintptr(t)*a.ldx+k*4))
						at := &acc[t]
						for j, xk := range x {
							for i, wk := range &w4[j] {
								at[i] = fma32(wk, xk, at[i])
							}
						}
					}
				}
				column += s.k
				a.merge(p, s.merges, &level, &acc, i == len(steps)-1)
			}
			for t := range a.tokens {
				*(*lanes)(unsafe.Add(a.out, uintptr(t)*a.ldout+uintptr(p)*64)) = acc[t]
			}
		}
	}
}

// merge adds the tree nodes that a unit completes, newest first, and pushes the sum on the stack
// unless it is the last one. level is the stack's height in bytes.
func (a *tileArgs) merge(panel int, merges uintptr, level *uintptr, acc *[maxTileTokens]lanes, last bool) {
	for range merges {
		*level -= a.level
		for t := range a.tokens {
			for i, v := range a.node(panel, t, *level) {
				acc[t][i] += v
			}
		}
	}
	if !last {
		for t := range a.tokens {
			*a.node(panel, t, *level) = acc[t]
		}
		*level += a.level
	}
}

func (a *tileArgs) node(panel, token int, level uintptr) *lanes {
	return (*lanes)(unsafe.Add(a.stack, uintptr(token)*groupRows*4+uintptr(panel)*64+level))
}
