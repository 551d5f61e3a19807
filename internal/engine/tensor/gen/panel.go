package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// panel writes the kernels that move rows into a cache's panels of 16 slots and back. AVX-512 uses
// the AVX2 form too, since memory is the bottleneck.
func panel(g *gen) {
	g.fetch()
	g.transpose8()
	g.roundBF16()
}

// transpose8 transposes n tiles of 8 x 8 cells of 32 bits. Rows of a tile are lds apart in src and
// ldd apart in dst; the next tile is sstep and dstep further. All values are in bytes.
func (g *gen) transpose8() {
	const params = "ldd, lds, dstep, sstep uintptr, n int"
	g.plain("transpose8"+g.name, "dst, src *byte, "+params, "func(dst, src, "+params+")")
	load := func(name string) reg.GPVirtual {
		r := g.GP64()
		g.Load(g.Param(name), r)
		return r
	}
	dst, src, ldd, lds := load("dst"), load("src"), load("ldd"), load("lds")
	dstep, sstep, n := load("dstep"), load("sstep"), load("n")
	from, to := g.eight(src, lds), g.eight(dst, ldd)
	g.counted("tile", n, func() {
		a, b := make([]reg.VecVirtual, 8), make([]reg.VecVirtual, 8)
		for i := range a {
			a[i] = g.vec()
			g.VMOVUPS(from.at(i), a[i])
		}
		for i := range b {
			b[i] = g.vec()
			if i&1 == 0 {
				g.VUNPCKLPS(a[i|1], a[i&^1], b[i])
			} else {
				g.VUNPCKHPS(a[i|1], a[i&^1], b[i])
			}
		}
		c := make([]reg.VecVirtual, 8)
		for i := range c { // 0 2, 0 2, 1 3, 1 3, and the same of the lower four rows
			at := i&4 | i>>1&1
			c[i] = g.vec()
			if i&1 == 0 {
				g.VUNPCKLPD(b[at+2], b[at], c[i])
			} else {
				g.VUNPCKHPD(b[at+2], b[at], c[i])
			}
		}
		for i := range 8 {
			v := g.vec()
			g.VPERM2F128(operand.U8(0x20+i/4*0x11), c[i&3+4], c[i&3], v)
			g.VMOVUPS(v, to.at(i))
		}
		g.ADDQ(sstep, from.low)
		g.ADDQ(sstep, from.high)
		g.ADDQ(dstep, to.low)
		g.ADDQ(dstep, to.high)
		g.SUBQ(operand.U8(1), n)
	})
	g.ret()
}

// eight addresses eight rows at a run-time stride.
type eight struct{ low, high, stride, third reg.Register }

func (g *gen) eight(base, stride reg.Register) eight {
	high, third := g.GP64(), g.GP64()
	g.LEAQ(operand.Mem{Base: base, Index: stride, Scale: 4}, high)
	g.LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, third)
	return eight{base, high, stride, third}
}

func (e eight) at(i int) operand.Mem {
	m := operand.Mem{Base: e.low}
	if i >= 4 {
		m.Base = e.high
	}
	switch i & 3 {
	case 1, 2:
		m.Index, m.Scale = e.stride, uint8(i&3)
	case 3:
		m.Index, m.Scale = e.third, 1
	}
	return m
}

// roundBF16 rounds rows of n float32, a positive multiple of 8, as portableToBF16 does: VCVTNEPS2BF16 would
// flush subnormals. Rows are ldx apart in x and ldd in dst, in bytes.
func (g *gen) roundBF16() {
	const params = "ldd, ldx uintptr, rows, n int"
	g.plain("roundBF16"+g.name, "dst *uint16, x *float32, "+params, "func(dst, x uintptr, "+params+")")
	load := func(name string) reg.GPVirtual {
		r := g.GP64()
		g.Load(g.Param(name), r)
		return r
	}
	dst, x, ldd, ldx, rows, n := load("dst"), load("x"), load("ldd"), load("ldx"), load("rows"), load("n")
	constant := func(name string, bits uint32) reg.VecVirtual {
		v := g.vec()
		g.VMOVDQU(g.konst(name, bits), v)
		return v
	}
	one, half, quiet := constant("one", 1), constant("half", 0x7fff), constant("quiet", 0x40)
	round := func(at operand.Mem) reg.VecVirtual {
		v, high, nan, r := g.vec(), g.vec(), g.vec(), g.vec()
		g.VMOVUPS(at, v)
		g.VPSRLD(operand.U8(16), v, high)
		g.VPAND(one, high, r)
		g.VPADDD(half, r, r)
		g.VPADDD(v, r, r)
		g.VPSRLD(operand.U8(16), r, r)
		g.VCMPPS(operand.U8(3), v, v, nan) // unordered
		g.VPOR(quiet, high, high)
		g.VPBLENDVB(nan, high, r, r)
		return r
	}
	at := func(base reg.Register, i reg.Register, scale uint8, disp int) operand.Mem {
		return operand.Mem{Base: base, Index: i, Scale: scale, Disp: disp}
	}
	whole, i := g.GP64(), g.GP64()
	g.MOVQ(n, whole)
	g.ANDQ(operand.I8(-16), whole)
	g.counted("row", rows, func() {
		g.XORQ(i, i)
		g.CMPQ(i, whole)
		g.JE(operand.LabelRef("rest"))
		g.Label("pair")
		a, b := round(at(x, i, 4, 0)), round(at(x, i, 4, 32))
		g.VPACKUSDW(b, a, a)
		g.VPERMQ(operand.U8(0xd8), a, a)
		g.VMOVDQU(a, at(dst, i, 2, 0))
		g.ADDQ(operand.U8(16), i)
		g.CMPQ(i, whole)
		g.JNE(operand.LabelRef("pair"))
		g.Label("rest")
		g.CMPQ(i, n)
		g.JE(operand.LabelRef("next"))
		c := round(at(x, i, 4, 0))
		g.VPACKUSDW(c, c, c)
		g.VPERMQ(operand.U8(0xd8), c, c)
		g.VMOVDQU(c.AsX(), at(dst, i, 2, 0))
		g.Label("next")
		g.ADDQ(ldd, dst)
		g.ADDQ(ldx, x)
		g.SUBQ(operand.U8(1), rows)
	})
	g.ret()
}
