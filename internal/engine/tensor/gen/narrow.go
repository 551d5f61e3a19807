package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// narrow is quant without VNNI and for any number of panels, in the memory order of the weights:
// half a panel at a time, since registers hold no more integer sums. The float32 sums stay in the
// unit's place on the stack, in the L1 cache. So one load of a weight serves four tokens, and a
// group of four panels is one rising stream.
func (g *gen) narrow(q quantType, c int) {
	a := g.fn(narrowName(g.isa, q.name, c), "TileArgs")
	w, scales := g.field(a, argW), g.field(a, argScales)
	x := g.rows(g.field(a, argX), g.field(a, argLdx), c)
	steps, nsteps := g.field(a, argSteps), g.field(a, argNsteps)
	stack, pf := g.field(a, argStack), g.field(a, argPf)
	k, panel, end := g.GP64(), g.GP64(), g.field(a, argPanels) // panel counts 64 bytes each
	g.SHLQ(operand.U8(6), end)
	n := g.narrowConstants(q, a)
	shift := 1 // of panel, to a panel's 32 bytes of scales; a third of 48 bytes with zero points
	if q.zeros() {
		shift = 2
	}
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
			part := g.GP64()
			g.MOVQ(panel, part)
			g.SHRQ(operand.U8(shift), part)
			if q.zeros() {
				g.LEAQ(operand.Mem{Base: part, Index: part, Scale: 2}, part)
			}
			sums := g.narrowBlock(q, n, func(l int) operand.Mem {
				return of(w, q.loads, l*64+i*32)
			}, operand.Mem{Base: scales, Index: part, Scale: 1, Disp: 32 + i*8}, x, c)
			ws := g.vec()
			g.VCVTPH2PS(operand.Mem{Base: scales, Index: part, Scale: 1, Disp: i * 16}, ws)
			for t := range c {
				s := g.vec()
				g.VBROADCASTSS(x.at(t, quantBlockScale), s)
				g.VMULPS(ws, s, s)
				g.VCVTDQ2PS(sums[t], sums[t])
				g.VFMADD213PS(at(stack, i, t), sums[t], s)
				g.VMOVUPS(s, at(stack, i, t))
			}
		}
		// Many tokens take several passes over these weights, and each pass prefetches a part of
		// the next weights.
		lines := q.loads
		if c > 2 {
			lines /= 2
		}
		for l := range lines {
			g.PREFETCHT0(of(pf, lines, l*64))
		}
	})
	if c <= 2 { // the scales of the block ahead, after its panels
		for line := range (4*q.scales + 63) / 64 {
			g.PREFETCHT0(operand.Mem{Base: pf, Index: end, Scale: uint8(q.loads), Disp: line * 64})
		}
	}
	g.ADDQ(mem(a, argAdvance), w)
	g.ADDQ(mem(a, argAdvance), scales)
	g.advance(x, operand.U8(quantBlockBytes))
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

// narrowRegisters are the constants of a narrow tile.
type narrowRegisters struct{ ones, bias, mask, code reg.VecVirtual }

func (g *gen) narrowConstants(q quantType, a reg.Register) (n narrowRegisters) {
	load := func(m operand.Mem) reg.VecVirtual {
		v := g.vec()
		g.VMOVDQU(m, v)
		return v
	}
	n.ones = load(g.konst("ones16", 0x00010001))
	if q.loads == 8 {
		n.bias = load(g.konst("bias128", 0x80808080))
		return n
	}
	if q.table() {
		n.code = g.code(a)
	}
	n.mask = load(g.konst("nibble", 0x0f0f0f0f))
	return n
}

// narrowBlock returns the integer sums of a block of 8 rows. The sign of signed weights is moved to
// the token, and their magnitude is multiplied. 16-bit pairs then hold at most 127*127*2 and are
// widened one by one. Those of Q4_0 and Int4 hold 15*127*2, and all eight of a block fit in 16 bits.
// zeros are the zero points of the rows.
func (g *gen) narrowBlock(q quantType, n narrowRegisters, at func(l int) operand.Mem, zeros operand.Mem, x rows, c int) []reg.VecVirtual {
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
			g.VPBROADCASTD(x.at(t, quantBlockStart), start)
			if q.zeros() { // see zeroPoints
				z := g.vec()
				g.VPMOVZXBD(zeros, z)
				g.VPSRAD(operand.U8(7), start, start)
				g.VPMADDWD(z, start, start)
			}
			g.VPMADDWD(n.ones, sums[t], sums[t])
			g.VPADDD(start, sums[t], sums[t])
		}
	}
	return sums
}
