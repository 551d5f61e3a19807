package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// quantize rounds tokens to quantized blocks; see portableQuantize. AVX-512 uses the AVX2 form too:
// it runs once per product.
func (g *gen) quantize() {
	g.plain("quantize"+g.name, "dst *byte, x *float32, blocks int, start int32", "func(dst, x uintptr, blocks int, start int32)")
	dst, x, n, start := g.GP64(), g.GP64(), g.GP64(), g.GP32()
	g.Load(g.Param("dst"), dst)
	g.Load(g.Param("x"), x)
	g.Load(g.Param("blocks"), n)
	g.Load(g.Param("start"), start)
	abs, order := g.vec(), g.vec()
	g.VMOVUPS(g.konst("absMask", 0x7fffffff), abs)
	m, ok := g.consts["order"]
	if !ok {
		m = g.table("order")
		for i, v := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
			g.AddDatum(4*i, operand.U32(v))
		}
		g.consts["order"] = m
	}
	g.VMOVDQU(m, order)
	scale, inv := g.XMM(), g.XMM()
	amax, t := g.GP32(), g.GP32()
	g.counted("loop", n, func() {
		v := g.vecs(4)
		top, u := g.vec(), g.vec()
		for i := range v {
			g.VMOVUPS(mem(x, 32*i), v[i])
			if i == 0 {
				g.VPAND(v[i], abs, top)
			} else {
				g.VPAND(v[i], abs, u)
				g.VPMAXUD(u, top, top)
			}
		}
		across := func(v reg.VecVirtual, op func(mxy, xy, xy1 operand.Op)) {
			g.VEXTRACTI128(operand.U8(1), v, u.AsX())
			op(u.AsX(), v.AsX(), v.AsX())
			g.VPSHUFD(operand.U8(0x4e), v.AsX(), u.AsX())
			op(u.AsX(), v.AsX(), v.AsX())
			g.VPSHUFD(operand.U8(0xb1), v.AsX(), u.AsX())
			op(u.AsX(), v.AsX(), v.AsX())
		}
		max := func(a, b, c operand.Op) { g.VPMAXUD(a, b, c) }
		add := func(a, b, c operand.Op) { g.VPADDD(a, b, c) }
		across(top, max)
		g.VMOVD(top.AsX(), amax)
		g.MOVL(operand.U32(0x7fc00000), t)
		g.CMPL(amax, operand.U32(0x7f800000))
		g.JAE(operand.LabelRef("empty"))
		g.VDIVSS(g.f32("c127", 127), top.AsX(), scale)
		g.VMOVSS(g.f32("one", 1), inv)
		g.VDIVSS(scale, inv, inv)
		g.XORL(t, t)
		g.VMOVD(inv, amax)
		g.CMPL(amax, operand.U32(0x7f800000))
		g.JAE(operand.LabelRef("empty"))
		by := g.vec()
		g.VBROADCASTSS(inv, by)
		for i := range v {
			g.VMULPS(by, v[i], v[i])
			g.VCVTPS2DQ(v[i], v[i])
		}
		sum := g.vec()
		g.VPADDD(v[0], v[1], sum)
		g.VPADDD(v[2], sum, sum)
		g.VPADDD(v[3], sum, sum)
		across(sum, add)
		g.VMOVD(sum.AsX(), t)
		g.IMULL(start, t)
		g.VPACKSSDW(v[1], v[0], v[0])
		g.VPACKSSDW(v[3], v[2], v[2])
		g.VPACKSSWB(v[2], v[0], v[0])
		g.VPERMD(v[0], order, v[0])
		g.VMOVDQU(v[0], mem(dst, 0))
		g.VMOVSS(scale, mem(dst, quantBlockScale))
		g.MOVL(t, mem(dst, quantBlockStart))
		g.JMP(operand.LabelRef("next"))
		g.Label("empty")
		g.VPXOR(u, u, u)
		g.VMOVDQU(u, mem(dst, 0))
		g.MOVL(t, mem(dst, quantBlockScale))
		g.MOVL(operand.U32(0), mem(dst, quantBlockStart))
		g.Label("next")
		g.ADDQ(operand.U8(quantBlockBytes), dst)
		g.ADDQ(operand.U32(128), x)
		g.SUBQ(operand.U8(1), n)
	})
	g.ret()
}
