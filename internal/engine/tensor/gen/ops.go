package main

import (
	"strings"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// ops writes the elementwise operations and the 16-lane sums. Each handles n
// elements, a multiple of 16; the callers do the rest in Go.
func ops(g *gen) {
	g.elementwise("add", "dst, x", func(p []reg.Register, _ reg.VecVirtual, d int) {
		v := g.vec()
		g.VMOVUPS(mem(p[0], d), v)
		g.VADDPS(mem(p[1], d), v, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.elementwise("mul", "dst, x", func(p []reg.Register, _ reg.VecVirtual, d int) {
		v := g.vec()
		g.VMOVUPS(mem(p[0], d), v)
		g.VMULPS(mem(p[1], d), v, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.elementwise("siluMul", "dst, gate, up", func(p []reg.Register, _ reg.VecVirtual, d int) {
		gate, e := g.vec(), g.vec()
		g.VMOVUPS(mem(p[1], d), gate)
		g.by(g.VXORPS, g.VPXORD_BCST)(g.konst("sign", 1<<31), gate, e)
		g.exp(e)
		g.addBy()(g.f32("one", 1), e, e)
		g.VDIVPS(e, gate, gate)
		g.VMULPS(mem(p[2], d), gate, gate)
		g.VMOVUPS(gate, mem(p[0], d))
	})
	g.elementwise("geluMul", "dst, gate, up", func(p []reg.Register, _ reg.VecVirtual, d int) {
		gate, e := g.vec(), g.vec()
		g.VMOVUPS(mem(p[1], d), gate)
		g.VMULPS(gate, gate, e)
		g.mulBy()(g.f32("geluCube", -0x1.2444f2p-4), e, e)
		g.addBy()(g.f32("geluLine", -0x1.988454p+0), e, e)
		g.VMULPS(gate, e, e)
		g.exp(e)
		g.addBy()(g.f32("one", 1), e, e)
		g.VDIVPS(e, gate, gate)
		g.VMULPS(mem(p[2], d), gate, gate)
		g.VMOVUPS(gate, mem(p[0], d))
	})
	g.elementwise("clampedMul", "dst, gate, up", func(p []reg.Register, _ reg.VecVirtual, d int) {
		// The loaded element is the second source of minimum and maximum: a NaN stays.
		gate, up, e, limit := g.vec(), g.vec(), g.vec(), g.vec()
		g.load(g.f32("clampLimit", 7), limit)
		g.VMOVUPS(mem(p[1], d), gate)
		g.VMINPS(gate, limit, gate)
		g.VMOVUPS(mem(p[2], d), up)
		g.VMINPS(up, limit, up)
		g.load(g.f32("clampFloor", -7), limit)
		g.VMAXPS(up, limit, up)
		g.load(g.f32("clampSlope", -0x1.b3b646p+0), e)
		g.VMULPS(gate, e, e)
		g.exp(e)
		g.addBy()(g.f32("one", 1), e, e)
		g.VDIVPS(e, gate, gate)
		g.addBy()(g.f32("one", 1), up, up)
		g.VMULPS(up, gate, gate)
		g.VMOVUPS(gate, mem(p[0], d))
	})
	g.elementwise("softCap", "x, by", func(p []reg.Register, by reg.VecVirtual, d int) {
		x, two := g.vec(), g.vec()
		g.VMOVUPS(mem(p[0], d), x)
		g.VDIVPS(by, x, x)
		g.load(g.f32("two", 2), two)
		g.VMULPS(two, x, x)
		g.exp(x)
		g.addBy()(g.f32("one", 1), x, x)
		g.VDIVPS(x, two, x)
		one := g.vec()
		g.load(g.f32("one", 1), one)
		g.VSUBPS(x, one, x)
		g.VMULPS(by, x, x)
		g.VMOVUPS(x, mem(p[0], d))
	})
	g.elementwise("sigmoidMul", "dst, gate, x", func(p []reg.Register, _ reg.VecVirtual, d int) {
		x, e := g.vec(), g.vec()
		g.VMOVUPS(mem(p[1], d), x)
		g.by(g.VXORPS, g.VPXORD_BCST)(g.konst("sign", 1<<31), x, e)
		g.exp(e)
		g.addBy()(g.f32("one", 1), e, e)
		g.VMOVUPS(mem(p[2], d), x)
		g.VDIVPS(e, x, x)
		g.VMOVUPS(x, mem(p[0], d))
	})
	g.elementwise("addProduct", "dst, x, y", func(p []reg.Register, _ reg.VecVirtual, d int) {
		v, w := g.vec(), g.vec()
		g.VMOVUPS(mem(p[0], d), v)
		g.VMOVUPS(mem(p[1], d), w)
		g.VFMADD231PS(mem(p[2], d), w, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.elementwise("rope", "lo, hi, cos, sin", func(p []reg.Register, _ reg.VecVirtual, d int) {
		lo, hi, c, s := g.vec(), g.vec(), g.vec(), g.vec()
		t, u := g.vec(), g.vec()
		g.VMOVUPS(mem(p[0], d), lo)
		g.VMOVUPS(mem(p[1], d), hi)
		g.VMOVUPS(mem(p[2], d), c)
		g.VMOVUPS(mem(p[3], d), s)
		g.VMULPS(c, lo, t)
		g.VMULPS(s, hi, u)
		g.VSUBPS(u, t, t)
		g.VMULPS(c, hi, hi)
		g.VMULPS(s, lo, lo)
		g.VADDPS(lo, hi, hi)
		g.VMOVUPS(t, mem(p[0], d))
		g.VMOVUPS(hi, mem(p[1], d))
	})
	g.widenBF16()
	g.elementwise("scale", "x, by", func(p []reg.Register, by reg.VecVirtual, d int) {
		v := g.vec()
		g.VMULPS(mem(p[0], d), by, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.elementwise("norm", "dst, x, w, by", func(p []reg.Register, by reg.VecVirtual, d int) {
		v := g.vec()
		g.VMULPS(mem(p[1], d), by, v)
		g.VMULPS(mem(p[2], d), v, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.elementwise("raise", "dst, x, by", func(p []reg.Register, by reg.VecVirtual, d int) {
		v := g.vec()
		g.VMOVUPS(mem(p[1], d), v)
		g.VSUBPS(by, v, v)
		g.VMAXPS(mem(p[0], d), v, v)
		g.VMOVUPS(v, mem(p[0], d))
	})
	g.reduce("sumSquares", "", func(x operand.Mem, acc, _ reg.VecVirtual) {
		v := g.vec()
		g.VMOVUPS(x, v)
		g.VFMADD231PS(v, v, acc)
	})
	g.reduce("sumExp", "top", func(x operand.Mem, acc, top reg.VecVirtual) {
		v := g.vec()
		g.VMOVUPS(x, v)
		g.VSUBPS(top, v, v)
		g.exp(v)
		g.VADDPS(v, acc, acc)
	})
	// The loaded element is the first source: if it is NaN, the second source, which is the maximum
	// so far, stays.
	g.reduce("maximum", "", func(x operand.Mem, acc, _ reg.VecVirtual) {
		v := g.vec()
		g.VMOVUPS(x, v)
		g.VMAXPS(acc, v, acc)
	})
	g.indexOf()
	if !g.wide() {
		g.plain("pause", "", "func()")
		g.PAUSE()
		g.RET()
	}
}

// elementwise writes a loop over n elements of the named arrays, 16 at a time. A last parameter
// "by" is a number.
func (g *gen) elementwise(name, params string, body func(p []reg.Register, by reg.VecVirtual, disp int)) {
	arrays, number := strings.CutSuffix(params, ", by")
	params = arrays + " *float32, n int"
	if number {
		params = arrays + " *float32, by float32, n int"
	}
	g.plain(name+g.name, params, "func("+strings.Replace(params, "*float32", "uintptr", 1)+")")
	var p []reg.Register
	for _, q := range strings.Split(arrays, ", ") {
		r := g.GP64()
		g.Load(g.Param(q), r)
		p = append(p, r)
	}
	n, by := g.GP64(), g.vec()
	g.Load(g.Param("n"), n)
	if number {
		at, err := g.Param("by").Resolve()
		if err != nil {
			panic(err)
		}
		g.VBROADCASTSS(at.Addr, by)
	}
	g.counted("loop", n, func() {
		for d := 0; d < 64; d += g.bytes {
			body(p, by, d)
		}
		for _, r := range p {
			g.ADDQ(operand.U8(64), r)
		}
		g.SUBQ(operand.U8(16), n)
	})
	g.ret()
}

// widenBF16 writes dst = src: n bfloat16 as float32, with every zero as +0.
func (g *gen) widenBF16() {
	g.plain("widenBF16"+g.name, "dst *float32, src *uint16, n int", "func(dst, src uintptr, n int)")
	dst, src, n, zero := g.GP64(), g.GP64(), g.GP64(), g.vec()
	g.Load(g.Param("dst"), dst)
	g.Load(g.Param("src"), src)
	g.Load(g.Param("n"), n)
	g.zero(zero)
	g.counted("loop", n, func() {
		for d := 0; d < 64; d += g.bytes {
			v := g.vec()
			g.VPMOVZXWD(mem(src, d/2), v)
			g.VPSLLD(operand.U8(16), v, v)
			g.VADDPS(zero, v, v)
			g.VMOVUPS(v, mem(dst, d))
		}
		g.ADDQ(operand.U8(64), dst)
		g.ADDQ(operand.U8(32), src)
		g.SUBQ(operand.U8(16), n)
	})
	g.ret()
}

// reduce writes a loop that folds n elements into the 16 lanes at acc.
func (g *gen) reduce(name, extra string, body func(x operand.Mem, acc, extra reg.VecVirtual)) {
	if extra == "" {
		g.plain(name+g.name, "acc *Lanes, x *float32, n int", "func(acc, x uintptr, n int)")
	} else {
		g.plain(name+g.name, "acc *Lanes, x *float32, n int, "+extra+" float32", "func(acc, x uintptr, n int, "+extra+" float32)")
	}
	at, x, n := g.GP64(), g.GP64(), g.GP64()
	g.Load(g.Param("acc"), at)
	g.Load(g.Param("x"), x)
	g.Load(g.Param("n"), n)
	var ex reg.VecVirtual
	if extra != "" {
		ex = g.vec()
		p, err := g.Param(extra).Resolve()
		if err != nil {
			panic(err)
		}
		g.VBROADCASTSS(p.Addr, ex)
	}
	acc := g.vecs(16 / g.lanes())
	for i, v := range acc {
		g.VMOVUPS(mem(at, i*g.bytes), v)
	}
	g.counted("loop", n, func() {
		for i, v := range acc {
			body(mem(x, i*g.bytes), v, ex)
		}
		g.ADDQ(operand.U8(64), x)
		g.SUBQ(operand.U8(16), n)
	})
	for i, v := range acc {
		g.VMOVUPS(v, mem(at, i*g.bytes))
	}
	g.ret()
}

// indexOf finds the first element equal to v in blocks of 16; it returns n if there is none.
func (g *gen) indexOf() {
	g.plain("indexOf"+g.name, "x *float32, n int, v float32) (at int", "func(x uintptr, n int, v float32) (at int)")
	x, n, i := g.GP64(), g.GP64(), g.GP64()
	g.Load(g.Param("x"), x)
	g.Load(g.Param("n"), n)
	v := g.vec()
	p, err := g.Param("v").Resolve()
	if err != nil {
		panic(err)
	}
	g.VBROADCASTSS(p.Addr, v)
	g.XORQ(i, i)
	g.Label("loop")
	g.CMPQ(i, n)
	g.JGE(operand.LabelRef("none"))
	bitsOf := g.GP32()
	if g.wide() {
		k := g.K()
		g.VCMPPS(operand.U8(0), operand.Mem{Base: x, Index: i, Scale: 4}, v, k)
		g.KMOVW(k, bitsOf)
	} else {
		c := g.vec()
		g.VCMPPS(operand.U8(0), operand.Mem{Base: x, Index: i, Scale: 4}, v, c)
		g.VMOVMSKPS(c, bitsOf)
	}
	g.TESTL(bitsOf, bitsOf)
	g.JNZ(operand.LabelRef("found"))
	g.ADDQ(operand.U8(uint8(g.lanes())), i)
	g.JMP(operand.LabelRef("loop"))
	g.Label("found")
	low := g.GP32()
	g.BSFL(bitsOf, low)
	g.ADDQ(low.As64(), i)
	g.Store(i, g.ReturnIndex(0))
	g.ret()
	g.Label("none")
	g.Store(n, g.ReturnIndex(0))
	g.ret()
}

// fetch prefetches n bytes, a positive multiple of 64.
func (g *gen) fetch() {
	g.plain("fetch"+g.name, "p *byte, n int", "func(p uintptr, n int)")
	p, n := g.GP64(), g.GP64()
	g.Load(g.Param("p"), p)
	g.Load(g.Param("n"), n)
	g.Label("loop")
	g.PREFETCHT1(mem(p, 0))
	g.ADDQ(operand.U8(64), p)
	g.SUBQ(operand.U8(64), n)
	g.JNZ(operand.LabelRef("loop"))
	g.RET()
}
