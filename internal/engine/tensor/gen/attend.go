package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of kernel.AttendArgs; select_amd64.go asserts the last.
const (
	attQ = 8 * iota
	attBlocks
	attN
	attAfter
	attO
	attP
	attSum
	attMax
	attKDim
	attVDim
	attPanel
	attScales
	attBlock
	attBeforeO
	attBeforeSum
	attBeforeMax
	attLeft
	attRun
	attColumns
	attValid
	attScale
)

var attendTypes = []string{"F32", "BF16", "Int8"}

// attendRows is the maximum number of query heads that share a block's reads in one kernel.
const attendRows = 4

func attendName(dt string, cols, r int) string {
	return fmt.Sprintf("attend%s%dx%dAVX512", dt, cols, r)
}

// attends writes attention of one token over whole blocks, for 1 to 4 query heads. A kernel adds
// values for 32, 64 or (BF16, 1 and 2 heads) 128 columns of the output at a time. Compared with
// twice 64, 128 columns gain 0 to 2 % with F32 and Int8, and 3 to 5 % with BF16. Three heads of
// Int8 are 1 to 4 % faster without a kernel of 32 columns.
func attends(g *gen) {
	for _, dt := range attendTypes {
		for _, nv := range []int{2, 4, 8} {
			for r := 1; r <= attendRows; r++ {
				if nv*r > 16 || nv == 8 && dt != "BF16" || nv == 2 && r == 3 && dt == "Int8" {
					continue
				}
				g.attend(dt, nv, r)
			}
		}
	}
}

// attend does the work of score, soften and accumulate block by block, in their order of operations.
// One call covers all blocks, because returning to Go three times per block took a seventh of the time.
func (g *gen) attend(dt string, nv, r int) {
	elem := map[string]int{"F32": 4, "BF16": 2, "Int8": 1}[dt]
	a := g.fn(attendName(dt, 16*nv, r), "AttendArgs")
	split := dt == "BF16"
	var mask reg.VecVirtual
	if split {
		mask = g.vec()
		g.load(g.konst("highHalf", 0xffff0000), mask)
		g.permute(a, "apart", true)
	}
	blocks := g.field(a, attBlocks)
	n := g.field(a, attN)

	g.Label("block")
	w, next := g.GP64(), g.GP64() // next: from a byte of the block to that of the next
	g.MOVQ(mem(blocks, 0), w)
	g.MOVQ(mem(a, attAfter), next)
	g.CMPQ(n, operand.U8(1))
	g.JE(operand.LabelRef("last"))
	g.MOVQ(mem(blocks, 24), next) // of the next slice of bytes
	g.Label("last")
	g.SUBQ(w, next)
	// Zen 4 prefetches adjacent memory better by itself, except for short lines such as 32 columns
	// of BF16 (775 ns instead of 640 with 64, but 336 instead of 516 with 32). Emerald Rapids does
	// not (32 sequences of 4096: 1.45 times as fast with prefetches); attBlock selects that.
	if (dt == "F32" || dt == "BF16" && nv > 2) && attendPanels(r) == 1 {
		zero := g.GP64()
		g.XORQ(zero, zero)
		g.CMPQ(next, mem(a, attBlock))
		g.CMOVQEQ(zero, next)
	}

	// Scores, one panel of 16 slots after the other, in memory order.
	s := make([][]reg.VecVirtual, r)
	for t := range s {
		s[t] = g.vecs(4)
	}
	m := attendPanels(r)
	kdim := g.field(a, attKDim)
	ldq := g.times(kdim, 4)
	panel := g.field(a, attPanel)
	ahead := g.GP64() // prefetches follow memory order, also where reads do not
	g.LEAQ(operand.Mem{Base: w, Index: next, Scale: 1}, ahead)
	for p := 0; p < 4; p += m {
		x := g.rows(g.field(a, attQ), ldq, r)
		k := g.GP64()
		g.MOVQ(kdim, k)
		for t := range s {
			for i := range m {
				g.load(g.konst("zero", 0), s[t][p+i]) // not g.zero, which avo takes for a use
			}
		}
		label := fmt.Sprintf("score%d", p)
		g.Label(label)
		ws := g.panels(w, panel, m)
		for u := range unroll {
			v := g.vecs(m)
			for i := range v {
				g.column(dt, ws.at(i, 0), u, 0, mask, v[i])
			}
			for t := range s {
				b := g.vec()
				g.VBROADCASTSS(x.at(t, u*4), b)
				for i := range v {
					g.VFMADD231PS(v[i], b, s[t][p+i])
				}
			}
			for line := (u*m*16*elem + 63) / 64 * 64; line < (u+1)*m*16*elem; line += 64 {
				g.prefetch(mem(ahead, line))
			}
		}
		g.ADDQ(operand.U32(unroll*16*elem), w)
		g.ADDQ(operand.U32(m*unroll*16*elem), ahead)
		g.advance(x, operand.U32(unroll*4))
		g.SUBQ(operand.U32(unroll), k)
		g.JNZ(operand.LabelRef(label))
		for range m - 1 {
			g.ADDQ(panel, w)
		}
	}

	// Probabilities, as in softmax.
	var scales reg.GPVirtual
	if dt == "Int8" {
		scales = g.field(a, attScales)
		g.ADDQ(mem(blocks, 0), scales)
	}
	probs, sums, tops := g.field(a, attP), g.field(a, attSum), g.field(a, attMax)
	scale := g.vec()
	g.VBROADCASTSS(mem(a, attScale), scale)
	correct := g.vecs(r)
	for t := range s {
		top := g.vec()
		g.VBROADCASTSS(mem(tops, 4*t), top)
		for i := range s[t] {
			if dt == "Int8" {
				g.VMULPS(mem(scales, 64*i), s[t][i], s[t][i])
			}
			g.VMULPS(s[t][i], scale, s[t][i])
			g.VMAXPS(s[t][i], top, top)
		}
		g.acrossMax(top)
		c := correct[t]
		g.VBROADCASTSS(mem(tops, 4*t), c)
		g.VMOVSS(top.AsX(), mem(tops, 4*t))
		g.VSUBPS(top, c, c)
		g.exp(c)
		sum := g.vec()
		g.VMULPS(mem(sums, 64*t), c, sum)
		for i, p := range s[t] {
			g.VSUBPS(top, p, p)
			g.exp(p)
			g.VADDPS(p, sum, sum)
			if dt == "Int8" {
				g.VMULPS(mem(scales, 256+64*i), p, p)
			}
			g.VMOVUPS(p, mem(probs, 256*t+64*i))
		}
		g.VMOVUPS(sum, mem(sums, 64*t))
	}

	// Values, a few columns at a time.
	vdim := g.field(a, attVDim)
	ldo, ldv := g.times(vdim, 4), g.times(vdim, elem)
	o := g.rows(g.field(a, attO), ldo, r)
	left := vdim
	g.Label("columns")
	acc := g.vecs(r * nv)
	for i := range acc {
		g.VMULPS(o.at(i/nv, i%nv*64), correct[i/nv], acc[i])
	}
	v, p, slots := g.GP64(), g.GP64(), g.GP64()
	g.MOVQ(w, v)
	g.MOVQ(mem(a, attP), p)
	g.MOVQ(operand.U32(64/slotsTogether), slots)
	g.Label("values")
	for u := range slotsTogether {
		b := g.vecs(r)
		for t := range b {
			g.VBROADCASTSS(mem(p, 256*t+4*u), b[t])
		}
		for i := range nv {
			x := g.vec()
			switch {
			case split && i%2 == 0:
				g.VPSLLD(operand.U8(16), mem(v, i/2*64), x)
			case split:
				g.VPANDD(mem(v, i/2*64), mask, x)
			default:
				g.natural(dt, mem(v, 0), i, x)
			}
			for t := range b {
				g.VFMADD231PS(x, b[t], acc[t*nv+i])
			}
		}
		for line := 0; line < nv*16*elem; line += 64 {
			g.prefetch(operand.Mem{Base: v, Index: next, Scale: 1, Disp: line})
		}
		g.ADDQ(ldv, v)
	}
	g.ADDQ(operand.U8(4*slotsTogether), p)
	g.SUBQ(operand.U8(1), slots)
	g.JNZ(operand.LabelRef("values"))
	for i := range acc {
		g.VMOVUPS(acc[i], o.at(i/nv, i%nv*64))
	}
	g.advance(o, operand.U32(nv*64))
	g.ADDQ(operand.U32(nv*16*elem), w)
	g.SUBQ(operand.U32(nv*16), left)
	g.JNZ(operand.LabelRef("columns"))

	g.ADDQ(operand.U8(24), blocks)
	g.SUBQ(operand.U8(1), n)
	g.JZ(operand.LabelRef("done"))
	g.SUBQ(operand.U8(1), mem(a, attLeft))
	g.JNZ(operand.LabelRef("block"))
	run := g.field(a, attRun)
	g.MOVQ(run, mem(a, attLeft))
	heads := g.GP64()
	g.MOVQ(operand.U32(r), heads)
	g.fold(state{g.field(a, attBeforeO), g.field(a, attBeforeSum), g.field(a, attBeforeMax)},
		state{g.field(a, attO), g.field(a, attSum), g.field(a, attMax)}, heads,
		func() reg.GPVirtual { return g.field(a, attVDim) }, false)
	g.JMP(operand.LabelRef("block"))
	g.Label("done")
	if split {
		g.permute(a, "together", false)
	}
	g.ret()
}

// times returns a new register with n times 1, 2 or 4.
func (g *gen) times(n reg.Register, by int) reg.GPVirtual {
	v := g.GP64()
	g.MOVQ(n, v)
	g.SHLQ(operand.U8(by/2), v)
	return v
}

// attendPanels returns the number of panels of keys whose scores are computed together. One or two heads
// read in memory order, which the CPU's prefetcher follows; more heads are bound by the latency of
// their chains of additions.
func attendPanels(r int) int {
	if r > 2 {
		return 2
	}
	return 1
}

// slotsTogether is the number of slots in an iteration of the values.
const slotsTogether = 4

// permute puts the even columns of each 32 of the output before the odd ones, or back. So a line of
// 32 bfloat16 becomes two vectors by a shift and a mask.
func (g *gen) permute(a reg.Register, label string, apart bool) {
	o, left := g.field(a, attO), g.field(a, attColumns)
	index := func(name string, of func(i int) int) reg.VecVirtual {
		key := name + "Columns"
		m, ok := g.consts[key]
		if !ok {
			m = g.table(key)
			for i := range 16 {
				g.AddDatum(4*i, operand.U32(of(i)))
			}
			g.consts[key] = m
		}
		v := g.vec()
		g.VMOVDQU32(m, v)
		return v
	}
	lo, hi := index("even", func(i int) int { return 2 * i }), index("odd", func(i int) int { return 2*i + 1 })
	if !apart {
		lo, hi = index("low", func(i int) int { return i/2 + i%2*16 }), index("high", func(i int) int { return 8 + i/2 + i%2*16 })
	}
	g.Label(label)
	x, y, z := g.vec(), g.vec(), g.vec()
	g.VMOVUPS(mem(o, 0), x)
	g.VMOVUPS(mem(o, 64), y)
	g.VMOVAPS(x, z)
	g.VPERMT2PS(y, lo, x)
	g.VPERMT2PS(y, hi, z)
	g.VMOVUPS(x, mem(o, 0))
	g.VMOVUPS(z, mem(o, 64))
	g.ADDQ(operand.U32(128), o)
	g.SUBQ(operand.U32(32), left)
	g.JNZ(operand.LabelRef(label))
}

func pickedName(dt string, cols, r int) string {
	return fmt.Sprintf("picked%s%dx%dAVX512", dt, cols, r)
}

// picked does score, soften and accumulate for one block with some invalid slots, for 1 to 4 query
// heads. It skips panels without valid slots, and their exponentials.
func picked(g *gen) {
	for _, dt := range attendTypes {
		for _, nv := range []int{2, 4} {
			for r := 1; r <= attendRows; r++ {
				g.picked(dt, nv, r)
			}
		}
	}
}

func (g *gen) picked(dt string, nv, r int) {
	elem := map[string]int{"F32": 4, "BF16": 2, "Int8": 1}[dt]
	a := g.fn(pickedName(dt, 16*nv, r), "AttendArgs")
	mask := g.vec()
	if dt == "BF16" {
		g.load(g.konst("highHalf", 0xffff0000), mask)
	}
	w := g.field(a, attBlocks)
	g.MOVQ(mem(w, 0), w)
	kdim, panel, tops := g.field(a, attKDim), g.field(a, attPanel), g.field(a, attMax)
	ldq := g.times(kdim, 4)
	scale, top := g.vec(), g.vecs(r)
	g.VBROADCASTSS(mem(a, attScale), scale)
	for t := range top {
		g.VBROADCASTSS(mem(tops, 4*t), top[t])
	}
	// panels iterates over the panels with a valid slot; probs and scales are those of the panel's
	// slots.
	panels := func(label string, body func(valid reg.OpmaskVirtual, probs, scales reg.Register), next func()) {
		valid, probs, scales, left := g.field(a, attValid), g.field(a, attP), g.field(a, attBlocks), g.GP64()
		g.MOVQ(mem(scales, 0), scales)
		g.ADDQ(mem(a, attScales), scales)
		g.MOVQ(operand.U32(4), left)
		g.Label(label)
		k := g.K()
		g.KMOVW(valid.As32(), k)
		g.KORTESTW(k, k)
		g.JZ(operand.LabelRef(label + "None"))
		body(k, probs, scales)
		g.Label(label + "None")
		next()
		for _, p := range []reg.Register{probs, scales} {
			g.ADDQ(operand.U8(64), p)
		}
		g.SHRQ(operand.U8(16), valid)
		g.SUBQ(operand.U8(1), left)
		g.JNZ(operand.LabelRef(label))
	}
	panels("score", func(valid reg.OpmaskVirtual, probs, scales reg.Register) {
		at, k := g.GP64(), g.GP64()
		g.MOVQ(w, at)
		g.MOVQ(kdim, k)
		x, s := g.rows(g.field(a, attQ), ldq, r), g.vecs(r)
		for t := range s {
			g.load(g.konst("zero", 0), s[t])
		}
		g.Label("columns")
		for u := range unroll {
			v := g.vec()
			g.column(dt, mem(at, 0), u, 0, mask, v)
			for t := range s {
				b := g.vec()
				g.VBROADCASTSS(x.at(t, u*4), b)
				g.VFMADD231PS(v, b, s[t])
			}
		}
		g.ADDQ(operand.U32(unroll*16*elem), at)
		g.advance(x, operand.U32(unroll*4))
		g.SUBQ(operand.U32(unroll), k)
		g.JNZ(operand.LabelRef("columns"))
		for t := range s {
			if dt == "Int8" {
				g.VMULPS(mem(scales, 0), s[t], s[t])
			}
			g.VMULPS(s[t], scale, s[t])
			g.VMAXPS(s[t], top[t], valid, top[t])
			g.VMOVUPS(s[t], mem(probs, 256*t))
		}
	}, func() { g.ADDQ(panel, w) })

	correct, sum, sums := g.vecs(r), g.vecs(r), g.field(a, attSum)
	tops = g.field(a, attMax)
	for t := range correct {
		g.acrossMax(top[t])
		g.VBROADCASTSS(mem(tops, 4*t), correct[t])
		g.VMOVSS(top[t].AsX(), mem(tops, 4*t))
		g.VSUBPS(top[t], correct[t], correct[t])
		g.exp(correct[t])
		g.VMULPS(mem(sums, 64*t), correct[t], sum[t])
	}
	panels("soften", func(valid reg.OpmaskVirtual, probs, scales reg.Register) {
		for t := range sum {
			p := g.vec()
			g.VMOVUPS(mem(probs, 256*t), p)
			g.VSUBPS(top[t], p, p)
			g.exp(p)
			g.VMOVAPS_Z(p, valid, p)
			g.VADDPS(p, sum[t], sum[t])
			if dt == "Int8" {
				g.VMULPS(mem(scales, 256), p, p)
			}
			g.VMOVUPS(p, mem(probs, 256*t))
		}
	}, func() {})
	for t := range sum {
		g.VMOVUPS(sum[t], mem(sums, 64*t))
	}

	left := g.field(a, attVDim)
	ldo, ldv := g.times(left, 4), g.times(left, elem)
	o, probs := g.rows(g.field(a, attO), ldo, r), g.field(a, attP)
	g.Label("values")
	acc := g.vecs(r * nv)
	for i := range acc {
		g.VMULPS(o.at(i/nv, i%nv*64), correct[i/nv], acc[i])
	}
	valid := g.field(a, attValid)
	g.Label("slot")
	slot, v, others := g.GP64(), g.GP64(), g.GP64()
	g.BSFQ(valid, slot)
	g.MOVQ(slot, v)
	g.IMULQ(ldv, v)
	g.ADDQ(w, v)
	b := g.vecs(r)
	for t := range b {
		g.VBROADCASTSS(operand.Mem{Base: probs, Index: slot, Scale: 4, Disp: 256 * t}, b[t])
	}
	for i := range nv {
		x := g.vec()
		g.natural(dt, mem(v, 0), i, x)
		for t := range b {
			g.VFMADD231PS(x, b[t], acc[t*nv+i])
		}
	}
	g.LEAQ(mem(valid, -1), others)
	g.ANDQ(others, valid)
	g.JNZ(operand.LabelRef("slot"))
	for i := range acc {
		g.VMOVUPS(acc[i], o.at(i/nv, i%nv*64))
	}
	g.advance(o, operand.U32(nv*64))
	g.ADDQ(operand.U32(nv*16*elem), w)
	g.SUBQ(operand.U32(nv*16), left)
	g.JNZ(operand.LabelRef("values"))
	g.ret()
}
