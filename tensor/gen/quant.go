package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A quantised token is a row of records, one per block of 32.
const (
	recordBytes = 40 // 32 int8, the scale, and the start value of the integer sums
	recordScale = 32
	recordStart = 36
)

// quantType is a quantised weight: 16 rows of a block are `loads` vectors of 64
// bytes, 4 columns of each row side by side; Q4_0 has columns 4g.. in the low and
// 16+4g.. in the high halves of the bytes of load g.
type quantType struct {
	name  string
	loads int
}

var quantTypes = []quantType{{"Q8_0", 8}, {"Q4_0", 4}, {"IQ4_NL", 4}}

// nonLinear is the code of IQ4_NL; the package's own copy is in quant.go, and a test
// compares them.
var nonLinear = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// code is a vector of the values of IQ4_NL, 16 bytes again and again: plus 128 where
// VPDPBUSD wants unsigned weights.
func (g *gen) code() operand.Mem {
	if m, ok := g.consts["code"]; ok {
		return m
	}
	g.konst("nibble", 0x0f0f0f0f) // makes the map
	m := g.table("code")
	for i := range g.bytes {
		v := uint8(nonLinear[i%16])
		if g.wide() {
			v += 128
		}
		g.AddDatum(i, operand.U8(v))
	}
	g.consts["code"] = m
	return m
}

// quants writes the tiles of quantised weights: per block an exact integer sum per
// row and token, then one fused multiply-add by the product of the two scales.
func quants(g *gen) {
	for _, q := range quantTypes {
		for c := 1; c <= 6; c++ {
			if !g.wide() {
				g.narrow(q, c)
				continue
			}
			for _, m := range []int{1, 2, 4} {
				if m < 4 || c <= 2 {
					g.quant(q, m, c, false)
				}
			}
			if c == 1 {
				g.quant(q, 4, c, true)
			}
		}
	}
	if !g.wide() {
		g.quantise()
	}
}

// risingName is the kernel for processors that follow a rising stream themselves: one
// token, and one group of four panels after the other.
func risingName(is isa, dt string, m, c int) string {
	return fmt.Sprintf("tile%s%dx%dRising%s", dt, m, c, is.name)
}

func (g *gen) quant(q quantType, m, c int, rising bool) {
	name := tileName(g.isa, q.name, m, c)
	if rising {
		name = risingName(g.isa, q.name, m, c)
	}
	a := g.fn(name, "tileArgs")
	nv := m // a panel's 16 rows are one vector
	w := g.panels(g.field(a, argW), g.field(a, argPanel), m)
	scales := g.field(a, argScales) // 16 float16 a panel, side by side
	x := g.rows(g.field(a, argX), g.field(a, argLdx), c)
	steps, nsteps := g.field(a, argSteps), g.field(a, argNsteps)
	stack := g.field(a, argStack)
	var pf panels
	var ahead *spread
	switch {
	case rising:
	case c >= spreadTokens:
		ahead = g.spread(a)
	default:
		pf = panels{base: g.field(a, argPf), stride: w.stride, triple: w.triple}
	}
	k := g.GP64()
	var bits nibbles
	if q.loads == 4 {
		bits.mask = g.vec()
		g.VMOVDQU32(g.konst("nibble", 0x0f0f0f0f), bits.mask)
	}
	if q.name == "IQ4_NL" {
		bits.code = g.vec()
		g.VMOVDQU32(g.code(), bits.code)
	}
	// One token has registers for two sums a panel: then the high halves of the bytes
	// are multiplied where they are, 16 times too large, and one shift a block does
	// what else is one a load.
	apart := c == 1 && q.name == "Q4_0"
	if apart {
		bits.high = g.vec()
		g.VMOVDQU32(g.konst("highNibble", 0xf0f0f0f0), bits.high)
	}

	var groups, out reg.Register
	if rising {
		groups, out = g.field(a, argGroups), g.field(a, argOut)
	}
	g.Label("unit")
	acc := g.vecs(c * nv)
	for _, v := range acc {
		g.zero(v)
	}
	g.MOVQ(mem(steps, 0), k)
	g.Label("loop")
	sums := g.vecs(c * nv)
	for i, s := range sums {
		if i%nv > 0 { // the same for all panels; a copy costs nothing, a load of a core's busy half does
			g.VMOVDQA32(sums[i-1], s)
		} else {
			g.VPBROADCASTD(x.at(i/nv, recordStart), s)
		}
	}
	highs := sums
	if apart {
		highs = g.vecs(nv)
		for _, v := range highs {
			g.zero(v)
		}
	}
	if c <= 2 {
		g.inOrder(q, m, c, w, x, pf, bits, sums, highs)
	} else {
		g.byLoad(q, m, c, w, x, ahead, bits, sums)
	}
	if apart {
		for i, v := range highs {
			g.VPSRAD(operand.U8(4), v, v)
			g.VPADDD(v, sums[i], sums[i])
		}
	}
	ws := g.vecs(nv)
	for i, v := range ws {
		g.VCVTPH2PS(mem(scales, i*32), v)
	}
	for t := range c {
		xs := g.vec()
		g.VBROADCASTSS(x.at(t, recordScale), xs)
		for i, v := range ws {
			sum, s := sums[t*nv+i], g.vec()
			g.VMULPS(v, xs, s)
			g.VCVTDQ2PS(sum, sum)
			g.VFMADD231PS(sum, s, acc[t*nv+i])
		}
	}
	g.ADDQ(mem(a, argAdvance), w.base)
	g.ADDQ(mem(a, argAdvance), scales)
	g.advance(x, operand.U8(recordBytes))
	if pf.base != nil {
		g.ADDQ(mem(a, argPfStep), pf.base)
	}
	g.SUBQ(operand.U8(32), k)
	g.JNZ(operand.LabelRef("loop"))
	g.finishUnit(a, steps, nsteps, stack, out, acc, c, nv)
	if rising { // the next group follows: no pause for memory between two calls
		g.ADDQ(operand.U32(stackRow), out)
		g.SUBQ(operand.U8(1), groups)
		g.JZ(operand.LabelRef("done"))
		g.ADDQ(mem(a, argGap), w.base)
		g.ADDQ(mem(a, argGap), scales)
		g.MOVQ(mem(a, argX), x.base)
		g.MOVQ(mem(a, argSteps), steps)
		g.MOVQ(mem(a, argNsteps), nsteps)
		g.MOVQ(mem(a, argStack), stack)
		g.JMP(operand.LabelRef("unit"))
		g.Label("done")
	}
	g.ret()
}

// nibbles are what 4-bit weights are unpacked with.
type nibbles struct{ mask, high, code reg.VecVirtual }

// byLoad multiplies a block of all panels load by load: each broadcast of a token
// serves all panels.
func (g *gen) byLoad(q quantType, m, c int, w panels, x rows, ahead *spread, bits nibbles, sums []reg.VecVirtual) {
	ahead.begin(g)
	for l := range q.loads {
		for part := 0; part < 8/q.loads; part++ {
			ws := make([]reg.VecVirtual, m)
			for p := range ws {
				ws[p] = g.quantLoad(q, w.at(p, l*64), part, bits)
			}
			for t := range c {
				b := g.vec()
				g.VPBROADCASTD(x.at(t, 4*(l+4*part)), b)
				for p := range ws {
					g.dot4(ws[p], b, sums[t*m+p])
				}
			}
		}
		ahead.prefetch(g, m)
	}
	ahead.end(g)
}

// inOrder does the same in the order in which the weights lie in memory, for
// few tokens: then memory is what binds, and the processor's prefetcher follows
// one rising stream (a third of the speed, on Zen 4, when four panels alternate).
//
// Without a place to prefetch from, one line of each panel of 4-bit weights is fetched
// into the second level four blocks ahead. More lines than that, or any into the first level, hide the
// misses that the processor's own prefetcher lives on (Zen 4).
func (g *gen) inOrder(q quantType, m, c int, w panels, x rows, pf panels, bits nibbles, sums, highs []reg.VecVirtual) {
	const blocksAhead = 4
	block := m * (q.loads*64 + 32)
	half := q.loads / c // as many broadcasts as there are registers for
	for from := 0; from < q.loads; from += half {
		parts := 8 / q.loads
		b := g.vecs(c * half * parts)
		for i := range b {
			t, l, part := i/(half*parts), from+i%half, i/half%parts
			g.VPBROADCASTD(x.at(t, 4*(l+4*part)), b[i])
		}
		for p := range m {
			for l := range half {
				for part := range parts {
					ws := g.quantLoad(q, w.at(p, (from+l)*64), part, bits)
					for t := range c {
						sum := sums[t*m+p]
						if part > 0 {
							sum = highs[t*m+p]
						}
						g.dot4(ws, b[(t*parts+part)*half+l], sum)
					}
				}
				switch {
				case pf.base != nil:
					g.PREFETCHT0(pf.at(p, (from+l)*64)) // it is read at once
				case q.loads == 8: // not ahead, but worth a tenth all the same
					g.PREFETCHT0(w.at(p, (from+l)*64))
				case l == 0:
					g.PREFETCHT1(w.at(p, blocksAhead*block))
				}
			}
		}
	}
}

// quantLoad returns the unsigned bytes of a load for VPDPBUSD.
func (g *gen) quantLoad(q quantType, at operand.Mem, part int, bits nibbles) reg.VecVirtual {
	v := g.vec()
	if q.loads == 8 {
		g.VMOVDQU32(at, v)
		return v
	}
	switch {
	case part == 0:
		g.VPANDD(at, bits.mask, v)
	case bits.high != nil:
		g.VPANDD(at, bits.high, v)
	default:
		g.VPSRLD(operand.U8(4), at, v)
		g.VPANDD(v, bits.mask, v)
	}
	if bits.code != nil {
		g.VPSHUFB(v, bits.code, v)
	}
	return v
}

// dot4 adds to each int32 of sum the products of four unsigned weights and four
// signed token bytes.
func (g *gen) dot4(w, x, sum reg.VecVirtual) {
	if g.wide() {
		g.Instruction(&ir.Instruction{
			Opcode:   "VPDPBUSD",
			Operands: []operand.Op{x, w, sum},
			Inputs:   []operand.Op{x, w, sum},
			Outputs:  []operand.Op{sum},
		})
		return
	}
	p := g.vec()
	g.VPMADDUBSW(x, w, p)
	g.VPMADDWD(g.konst("ones16", 0x00010001), p, p)
	g.VPADDD(p, sum, sum)
}

// narrow is quant without VNNI and for any number of panels, in the order in which
// the weights lie in memory: half a panel at a time, whose integer sums are all that
// registers hold. The float32 sums stay in the unit's place on the stack, which is
// in the first-level cache; so one load of a weight serves six tokens, and a group
// of four panels is one rising stream.
func (g *gen) narrow(q quantType, c int) {
	a := g.fn(narrowName(g.isa, q.name, c), "tileArgs")
	w, scales := g.field(a, argW), g.field(a, argScales)
	x := g.rows(g.field(a, argX), g.field(a, argLdx), c)
	steps, nsteps := g.field(a, argSteps), g.field(a, argNsteps)
	stack, pf := g.field(a, argStack), g.field(a, argPf)
	k, panel, end := g.GP64(), g.GP64(), g.field(a, argPanels) // panel counts 64 bytes each
	g.SHLQ(operand.U8(6), end)
	n := g.narrowConstants(q)
	of := func(base reg.Register, scale, disp int) operand.Mem {
		return operand.Mem{Base: base, Index: panel, Scale: uint8(scale), Disp: disp}
	}
	at := func(base reg.Register, i, t int) operand.Mem { return of(base, 1, t*stackRow+i*32) }
	label := 0
	panels := func(body func()) {
		label++
		l := fmt.Sprintf("panel%d", label)
		g.XORQ(panel, panel)
		g.Label(l)
		body()
		g.ADDQ(operand.U8(64), panel)
		g.CMPQ(panel, end)
		g.JNE(operand.LabelRef(l))
	}
	each := func(f func(i, t int)) {
		panels(func() {
			for t := range c {
				f(0, t)
				f(1, t)
			}
		})
	}

	g.Label("unit")
	zero := g.vec()
	g.zero(zero)
	each(func(i, t int) { g.VMOVUPS(zero, at(stack, i, t)) })
	g.MOVQ(mem(steps, 0), k)
	g.Label("loop")
	panels(func() {
		for i := range 2 {
			sums := g.narrowBlock(q, n, func(l int) operand.Mem { return of(w, q.loads, l*64+i*32) }, x, c)
			half := g.GP64() // panel/2: 32 bytes of scales a panel
			g.MOVQ(panel, half)
			g.SHRQ(operand.U8(1), half)
			ws := g.vec()
			g.VCVTPH2PS(operand.Mem{Base: scales, Index: half, Scale: 1, Disp: i * 16}, ws)
			for t := range c {
				s := g.vec()
				g.VBROADCASTSS(x.at(t, recordScale), s)
				g.VMULPS(ws, s, s)
				g.VCVTDQ2PS(sums[t], sums[t])
				g.VFMADD213PS(at(stack, i, t), sums[t], s)
				g.VMOVUPS(s, at(stack, i, t))
			}
		}
		// Many tokens take several passes over these weights, each of which fetches
		// a part of the next ones.
		lines := q.loads
		if c > 2 {
			lines /= 2
		}
		for l := range lines {
			g.PREFETCHT0(of(pf, lines, l*64))
		}
	})
	if c <= 2 { // the scales of the block ahead, behind its panels
		for line := range 2 {
			g.PREFETCHT0(operand.Mem{Base: pf, Index: end, Scale: uint8(q.loads), Disp: line * 64})
		}
	}
	g.ADDQ(mem(a, argAdvance), w)
	g.ADDQ(mem(a, argAdvance), scales)
	g.advance(x, operand.U8(recordBytes))
	g.ADDQ(mem(a, argPfStep), pf)
	g.SUBQ(operand.U8(32), k)
	g.JNZ(operand.LabelRef("loop"))

	merges, level, below := g.field(steps, 8), g.field(a, argLevel), g.GP64()
	g.counted("merge", merges, func() {
		g.MOVQ(stack, below)
		g.SUBQ(level, below)
		each(func(i, t int) {
			v := g.vec()
			g.VMOVUPS(at(stack, i, t), v)
			g.VADDPS(at(below, i, t), v, v)
			g.VMOVUPS(v, at(below, i, t))
		})
		g.MOVQ(below, stack)
		g.SUBQ(operand.U8(1), merges)
	})
	g.SUBQ(operand.U8(1), nsteps)
	g.JZ(operand.LabelRef("last"))
	g.ADDQ(level, stack)
	g.ADDQ(operand.U8(16), steps)
	g.JMP(operand.LabelRef("unit"))
	g.Label("last")
	out, ld := g.field(a, argOut), g.field(a, argLdout)
	for t := range c {
		panels(func() {
			for i := range 2 {
				v := g.vec()
				g.VMOVUPS(at(stack, i, t), v)
				g.VMOVUPS(v, of(out, 1, i*32))
			}
		})
		g.ADDQ(ld, out)
	}
	g.ret()
}

func narrowName(is isa, dt string, c int) string { return fmt.Sprintf("tile%sx%d%s", dt, c, is.name) }

// narrowRegisters are a narrow tile's constants.
type narrowRegisters struct{ ones, bias, mask, code reg.VecVirtual }

func (g *gen) narrowConstants(q quantType) (n narrowRegisters) {
	load := func(m operand.Mem) reg.VecVirtual {
		v := g.vec()
		g.VMOVDQU(m, v)
		return v
	}
	n.ones = load(g.konst("ones16", 0x00010001))
	switch q.name {
	case "Q8_0":
		n.bias = load(g.konst("bias128", 0x80808080))
	case "IQ4_NL":
		n.code = load(g.code())
		fallthrough
	default:
		n.mask = load(g.konst("nibble", 0x0f0f0f0f))
	}
	return n
}

// narrowBlock returns the integer sums of a block of 8 rows. Signed weights lend the
// token their sign and are multiplied by their magnitude; 16-bit pairs then hold at
// most 127*127*2, and are widened one by one. Those of Q4_0 hold 15*127*2, and all
// eight of a block fit 16 bits.
func (g *gen) narrowBlock(q quantType, n narrowRegisters, at func(l int) operand.Mem, x rows, c int) []reg.VecVirtual {
	sums := make([]reg.VecVirtual, c)
	add := func(t int, p reg.VecVirtual, sum func(a, b, c operand.Op)) {
		if sums[t] == nil {
			sums[t] = p
			return
		}
		sum(p, sums[t], sums[t])
	}
	signed := func(w reg.VecVirtual, group int) {
		abs := g.vec()
		g.VPABSB(w, abs)
		for t := range c {
			p := g.vec()
			g.VPBROADCASTD(x.at(t, 4*group), p)
			g.VPSIGNB(w, p, p)
			g.VPMADDUBSW(p, abs, p)
			g.VPMADDWD(n.ones, p, p)
			add(t, p, func(a, b, c operand.Op) { g.VPADDD(a, b, c) })
		}
	}
	if q.loads == 8 {
		for l := range q.loads {
			w := g.vec()
			g.VPXOR(at(l), n.bias, w)
			signed(w, l)
		}
		return sums
	}
	for l := range q.loads {
		v := g.vec()
		g.VMOVDQU(at(l), v)
		for part := range 2 {
			w := g.vec()
			if part == 0 {
				g.VPAND(v, n.mask, w)
			} else {
				g.VPSRLD(operand.U8(4), v, w)
				g.VPAND(w, n.mask, w)
			}
			if n.code != nil {
				g.VPSHUFB(w, n.code, w)
				signed(w, l+4*part)
				continue
			}
			for t := range c {
				p := g.vec()
				g.VPBROADCASTD(x.at(t, 4*(l+4*part)), p)
				g.VPMADDUBSW(p, w, p)
				add(t, p, func(a, b, c operand.Op) { g.VPADDW(a, b, c) })
			}
		}
	}
	if n.code == nil {
		for t := range c {
			start := g.vec()
			g.VPBROADCASTD(x.at(t, recordStart), start)
			g.VPMADDWD(n.ones, sums[t], sums[t])
			g.VPADDD(start, sums[t], sums[t])
		}
	}
	return sums
}

// quantise rounds tokens to records; see portableQuantise. The AVX2 form serves
// AVX-512 too: it runs once per product.
func (g *gen) quantise() {
	g.plain("quantise"+g.name, "dst *byte, x *float32, blocks int, start int32", "func(dst, x uintptr, blocks int, start int32)")
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
		g.VMOVSS(scale, mem(dst, recordScale))
		g.MOVL(t, mem(dst, recordStart))
		g.JMP(operand.LabelRef("next"))
		g.Label("empty")
		g.VPXOR(u, u, u)
		g.VMOVDQU(u, mem(dst, 0))
		g.MOVL(t, mem(dst, recordScale))
		g.MOVL(operand.U32(0), mem(dst, recordStart))
		g.Label("next")
		g.ADDQ(operand.U8(recordBytes), dst)
		g.ADDQ(operand.U32(128), x)
		g.SUBQ(operand.U8(1), n)
	})
	g.ret()
}
