package main

import (
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of kernel.SoftmaxArgs; select_amd64.go asserts the last.
const (
	softS = 8 * iota
	softSum
	softMax
	softO
	softVDim
	softRows
	softKeys
	softValues
	softValid
	softScale
)

// f32 returns a constant of Exp in math.go; a test compares the results bit by bit.
func (g *gen) f32(name string, v float64) operand.Mem {
	return g.konst(name, math.Float32bits(float32(v)))
}

// exp replaces x by its exponential: the operations of Exp, in its order. NaN stays NaN because the
// minimum and maximum return their second source.
func (g *gen) exp(x reg.VecVirtual) {
	n, p := g.vec(), g.vec()
	fma, fnma := g.by(g.VFMADD213PS, g.VFMADD213PS_BCST), g.by(g.VFNMADD231PS, g.VFNMADD231PS_BCST)
	g.load(g.f32("expMax", 89), n)
	g.VMINPS(x, n, x)
	g.load(g.f32("expMin", -104), n)
	g.VMAXPS(x, n, x)
	g.mulBy()(g.f32("log2e", 0x1.715476p+0), x, n)
	if g.wide() {
		g.VRNDSCALEPS(operand.U8(8), n, n)
	} else {
		g.VROUNDPS(operand.U8(8), n, n)
	}
	fnma(g.f32("ln2High", 0x1.62e43p-1), n, x)
	fnma(g.f32("ln2Low", -0x1.05c61p-29), n, x)
	g.load(g.f32("expC6", 0x1.6a69a6p-10), p)
	fma(g.f32("expC5", 0x1.123860p-7), x, p)
	fma(g.f32("expC4", 0x1.55589ep-5), x, p)
	fma(g.f32("expC3", 0x1.555494p-3), x, p)
	fma(g.f32("expC2", 0x1.fffffcp-2), x, p)
	fma(g.f32("one", 1), x, p)
	fma(g.f32("one", 1), x, p)
	if g.wide() {
		g.VSCALEFPS(n, p, x)
		return
	}
	// 2**n in two exact steps, so that only the last one rounds.
	i, j := g.vec(), g.vec()
	g.VCVTPS2DQ(n, i)
	g.VPSRAD(operand.U8(1), i, j)
	g.VPSUBD(j, i, i)
	for _, v := range []reg.VecVirtual{j, i} {
		g.VPADDD(g.konst("bias", 127), v, v)
		g.VPSLLD(operand.U8(23), v, v)
	}
	g.VMULPS(j, p, p)
	g.VMULPS(i, p, x)
}

// softmaxes writes one block's step of the online softmax, row by row. One call covers all rows, so
// that the exponentials of successive rows overlap.
func softmaxes(g *gen) {
	a := g.fn("softmax"+g.name, "SoftmaxArgs")
	s, sum, tops := g.field(a, softS), g.field(a, softSum), g.field(a, softMax)
	o, rows, keys := g.field(a, softO), g.field(a, softRows), g.field(a, softKeys)
	ldo := g.times(g.field(a, softVDim), 4)
	nv := 64 / g.lanes()
	scale := g.vec()
	g.VBROADCASTSS(mem(a, softScale), scale)
	var masks []reg.OpmaskVirtual
	if g.wide() {
		valid := g.field(a, softValid)
		for range nv {
			k := g.K()
			g.KMOVW(valid.As32(), k)
			masks = append(masks, k)
			g.SHRQ(operand.U8(16), valid)
		}
	}
	// scaled multiplies the 64 elements of a row by the scales of a cache's rows, if there are any.
	scaled := func(by reg.Register, t []reg.VecVirtual, label string) {
		g.TESTQ(by, by)
		g.JZ(operand.LabelRef(label))
		for i := range nv {
			v := g.vec()
			if g.wide() {
				v = t[i]
			} else {
				g.VMOVUPS(mem(s, i*g.bytes), v)
			}
			g.VMULPS(mem(by, i*g.bytes), v, v)
			if !g.wide() {
				g.VMOVUPS(v, mem(s, i*g.bytes))
			}
		}
		g.Label(label)
	}

	g.Label("row")
	t := g.vecs(nv)
	top := g.vec()
	g.VBROADCASTSS(mem(tops, 0), top)
	if g.wide() {
		for i := range t {
			g.VMOVUPS(mem(s, i*g.bytes), t[i])
		}
	}
	scaled(keys, t, "scores")
	for i := range t {
		if g.wide() {
			g.VMULPS(t[i], scale, t[i])
			g.VMAXPS(t[i], top, masks[i], top)
			continue
		}
		v, m := g.vec(), g.vec()
		g.VMULPS(mem(s, i*g.bytes), scale, v)
		g.VMOVUPS(v, mem(s, i*g.bytes))
		g.validMask(a, i, m)
		g.VBLENDVPS(m, v, top, v)
		g.VMAXPS(v, top, top)
	}
	g.acrossMax(top)
	correct, was, bits := g.vec(), g.GP32(), g.GP32()
	g.VBROADCASTSS(mem(tops, 0), correct)
	g.MOVL(mem(tops, 0), was)
	g.VMOVSS(top.AsX(), mem(tops, 0))
	g.VSUBPS(top, correct, correct)
	g.exp(correct)

	// Skip the correction if it would not change anything: for zeros, and for a factor of 1.
	at, left := g.GP64(), g.GP64()
	g.CMPL(was, operand.U32(0xff800000))
	g.JE(operand.LabelRef("corrected"))
	g.VMOVD(correct.AsX(), bits)
	g.CMPL(bits, operand.U32(0x3f800000))
	g.JE(operand.LabelRef("corrected"))
	g.MOVQ(o, at)
	g.MOVQ(ldo, left)
	g.counted("correct", left, func() {
		v := g.YMM()
		g.VMULPS(mem(at, 0), correct.AsY(), v)
		g.VMOVUPS(v, mem(at, 0))
		g.ADDQ(operand.U8(32), at)
		g.SUBQ(operand.U8(32), left)
	})
	g.Label("corrected")

	l := g.vecs(16 / g.lanes())
	for i, v := range l {
		g.VMULPS(mem(sum, i*g.bytes), correct, v)
	}
	for i, p := range t {
		if !g.wide() {
			g.VMOVUPS(mem(s, i*g.bytes), p)
		}
		g.VSUBPS(top, p, p)
		g.exp(p)
		if g.wide() {
			g.VMOVAPS_Z(p, masks[i], p)
		} else {
			m := g.vec()
			g.validMask(a, i, m)
			g.VANDPS(m, p, p)
			g.VMOVUPS(p, mem(s, i*g.bytes))
		}
		g.VADDPS(p, l[i%len(l)], l[i%len(l)])
	}
	for i, v := range l {
		g.VMOVUPS(v, mem(sum, i*g.bytes))
	}
	scaled(g.field(a, softValues), t, "probabilities")
	if g.wide() {
		for i := range t {
			g.VMOVUPS(t[i], mem(s, i*g.bytes))
		}
	}
	g.ADDQ(operand.U32(256), s)
	g.ADDQ(operand.U8(64), sum)
	g.ADDQ(operand.U8(4), tops)
	g.ADDQ(ldo, o)
	g.SUBQ(operand.U8(1), rows)
	g.JNZ(operand.LabelRef("row"))
	g.ret()
}

// validMask makes all ones of the lanes whose slot 8*i+lane is valid.
func (g *gen) validMask(a reg.Register, i int, m reg.VecVirtual) {
	g.VPBROADCASTB(mem(a, softValid+i), m)
	bit := g.laneBits()
	g.VPAND(bit, m, m)
	g.VPCMPEQD(bit, m, m)
}

func (g *gen) laneBits() operand.Mem {
	if g.consts == nil {
		g.consts = map[string]operand.Mem{}
	}
	m, ok := g.consts["laneBits"]
	if !ok {
		m = g.table("laneBits")
		for i := range 8 {
			g.AddDatum(4*i, operand.U32(1<<i))
		}
		g.consts["laneBits"] = m
	}
	return m
}

// acrossMax copies the largest lane of v to all lanes.
func (g *gen) acrossMax(v reg.VecVirtual) {
	t := g.vec()
	if g.wide() {
		g.VSHUFF32X4(operand.U8(0x4e), v, v, t)
		g.VMAXPS(t, v, v)
		g.VSHUFF32X4(operand.U8(0xb1), v, v, t)
		g.VMAXPS(t, v, v)
	} else {
		g.VPERM2F128(operand.U8(1), v, v, t)
		g.VMAXPS(t, v, v)
	}
	g.VPERMILPS(operand.U8(0x4e), v, t)
	g.VMAXPS(t, v, v)
	g.VPERMILPS(operand.U8(0xb1), v, t)
	g.VMAXPS(t, v, v)
}
