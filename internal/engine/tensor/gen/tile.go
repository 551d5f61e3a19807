package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of kernel.TileArgs; select_amd64.go asserts them.
const (
	argW = 8 * iota
	argPanel
	argX
	argLdx
	argSteps
	argNsteps
	argStack
	argLevel
	argOut
	argLdout
	argPf
	argPfStep
	argScales
	argAdvance
	argPanels
	argTokens
	argGroups
	argGap
	argPfGap
	argTable
)

// tileType is a weight type of the float tiles: the bytes of one column of a panel.
type tileType struct {
	name   string
	column int
}

var tileTypes = []tileType{{"F32", 64}, {"BF16", 32}, {"F16", 32}, {"Int8", 16}}

func tileName(is isa, dt string, m, c int) string {
	return fmt.Sprintf("tile%s%dx%d%s", dt, m, c, is.name)
}

// tiles writes the tile kernels: 16 rows are one AVX-512 or two AVX2 vectors, and the shapes are
// those whose accumulators fit in the registers.
func tiles(g *gen) {
	for _, dt := range tileTypes {
		for _, m := range []int{1, 2, 4} {
			for c := 1; c <= 6; c++ {
				if g.wide() && dt.name == "F16" && m == 1 && c > 1 {
					continue // no cache is float16, and a matrix has at most one such panel, its last
				}
				if g.wide() || m == 1 || m == 2 && c <= 3 || m == 4 && c == 1 {
					g.tile(dt, m, c)
				}
			}
		}
	}
}

// stackRow is the stack's bytes from token to token: kernel.GroupRows float32.
const stackRow = 256

// unroll is the columns per loop iteration.
const unroll = 4

func (g *gen) tile(dt tileType, m, c int) {
	a := g.fn(tileName(g.isa, dt.name, m, c), "TileArgs")
	per := 64 / g.bytes // vectors per panel
	nv := m * per
	w := g.panels(g.field(a, argW), g.field(a, argPanel), m)
	x := g.rows(g.field(a, argX), g.field(a, argLdx), c)
	steps, nsteps := g.field(a, argSteps), g.field(a, argNsteps)
	stack := g.field(a, argStack)
	lines := unroll * dt.column / 64 // of a panel, per round
	var pf panels
	var ahead *spread
	if g.wide() && c >= spreadTokens {
		ahead = g.spread(a)
	} else {
		pf = panels{base: g.field(a, argPf), stride: w.stride, triple: w.triple}
	}
	var mask reg.VecVirtual
	if dt.name == "BF16" && g.wide() {
		mask = g.vec()
		g.load(g.konst("highHalf", 0xffff0000), mask)
	}
	// Either the weights of a column are held while tokens are broadcast in turn, or the other way
	// round if that needs fewer registers.
	holdTokens := !g.wide() && c*nv+nv+1 > 16

	g.Label("unit")
	acc := g.vecs(c * nv)
	for _, v := range acc {
		g.zero(v)
	}
	k := g.field(steps, 0)
	g.Label("loop")
	if ahead != nil {
		ahead.begin(g)
	}
	for u := range unroll {
		load := func(i int) operand.Op {
			v := g.vec()
			g.column(dt.name, w.at(i/per, 0), u, i%per, mask, v)
			return v
		}
		switch {
		case c == 1:
			b := g.vec()
			g.VBROADCASTSS(x.at(0, u*4), b)
			for i := range nv {
				if dt.name == "F32" {
					g.VFMADD231PS(w.at(i/per, u*64+i%per*g.bytes), b, acc[i])
				} else {
					g.VFMADD231PS(load(i), b, acc[i])
				}
			}
		case holdTokens:
			b := g.vecs(c)
			for t := range b {
				g.VBROADCASTSS(x.at(t, u*4), b[t])
			}
			for i := range nv {
				wi := load(i)
				for t := range b {
					g.VFMADD231PS(wi, b[t], acc[t*nv+i])
				}
			}
		default:
			ws := make([]operand.Op, nv)
			for i := range ws {
				ws[i] = load(i)
			}
			for t := range c {
				b := g.vec()
				g.VBROADCASTSS(x.at(t, u*4), b)
				for i := range ws {
					g.VFMADD231PS(ws[i], b, acc[t*nv+i])
				}
			}
		}
		switch {
		case u >= lines:
		case ahead != nil:
			ahead.prefetch(g, m)
		default:
			for p := range m {
				g.prefetch(pf.at(p, u*64))
			}
		}
	}
	g.ADDQ(mem(a, argAdvance), w.base)
	g.advance(x, operand.U32(unroll*4))
	if ahead != nil {
		ahead.end(g)
	} else {
		g.ADDQ(mem(a, argPfStep), pf.base)
	}
	g.SUBQ(operand.U32(unroll), k)
	g.JNZ(operand.LabelRef("loop"))
	g.finishUnit(a, steps, nsteps, stack, nil, acc, c, nv)
	g.ret()
}

// prefetch prefetches the next weights. L2 supports more outstanding misses, and lines there do not
// displace data that is still needed. (Zen 4, AVX-512: Q8_0 of 4 and 6 tokens, 64 KB ahead, 6.2 and 7.0
// us without, 5.2 and 6.8 into L1, 3.5 and 3.0 into L2. A loss with AVX2.)
func (g *gen) prefetch(at operand.Mem) {
	if g.wide() {
		g.PREFETCHT1(at)
	} else {
		g.PREFETCHT0(at)
	}
}

// column loads vector i of column u of a panel as float32.
func (g *gen) column(dt string, at operand.Mem, u, i int, mask, v reg.VecVirtual) {
	switch dt {
	case "F32":
		g.VMOVUPS(at.Offset(u*64+i*g.bytes), v)
	case "F16":
		g.VCVTPH2PS(at.Offset(u*32+i*g.bytes/2), v)
	case "Int8":
		g.VPMOVSXBD(at.Offset(u*16+i*g.bytes/4), v)
		g.VCVTDQ2PS(v, v)
	case "BF16":
		at = at.Offset(u/2*64 + i*g.bytes)
		switch {
		case g.wide() && u%2 == 0:
			g.VPSLLD(operand.U8(16), at, v)
		case g.wide():
			g.VPANDD(at, mask, v)
		case u%2 == 0:
			g.VMOVDQU(at, v)
			g.VPSLLD(operand.U8(16), v, v)
		default:
			g.VMOVDQU(at, v)
			g.VPAND(g.konst("highHalf", 0xffff0000), v, v)
		}
	}
}

// finishUnit adds the tree nodes that the unit completes, then continues with the next unit or
// stores the result: at to, or at the address in the arguments.
func (g *gen) finishUnit(a, steps, nsteps, stack, to reg.Register, acc []reg.VecVirtual, c, nv int) {
	merges, level := g.field(steps, 8), g.field(a, argLevel)
	g.counted("merge", merges, func() {
		g.SUBQ(level, stack)
		for t := range c {
			for i := range nv {
				g.VADDPS(mem(stack, t*stackRow+i*g.bytes), acc[t*nv+i], acc[t*nv+i])
			}
		}
		g.SUBQ(operand.U8(1), merges)
	})
	g.SUBQ(operand.U8(1), nsteps)
	g.JZ(operand.LabelRef("last"))
	for t := range c {
		for i := range nv {
			g.VMOVUPS(acc[t*nv+i], mem(stack, t*stackRow+i*g.bytes))
		}
	}
	g.ADDQ(level, stack)
	g.ADDQ(operand.U8(16), steps)
	g.JMP(operand.LabelRef("unit"))
	g.Label("last")
	if to == nil {
		to = g.field(a, argOut)
	}
	out := g.rows(to, g.field(a, argLdout), c)
	for t := range c {
		for i := range nv {
			g.VMOVUPS(acc[t*nv+i], out.at(t, i*g.bytes))
		}
	}
}
