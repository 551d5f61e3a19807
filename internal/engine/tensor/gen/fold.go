package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of kernel.FoldArgs; select_amd64.go asserts the last.
const (
	foldO = 8 * iota
	foldSum
	foldMax
	foldRunO
	foldRunSum
	foldRunMax
	foldRows
	foldVDim
)

// folds writes the kernel that folds a run of attention into the previous runs, see kernel.FoldArgs.
// AVX-512 uses the AVX2 form too: it runs once per 1024 slots.
func folds(g *gen) {
	a := g.fn("fold"+g.name, "FoldArgs")
	vdim := func() reg.GPVirtual { return g.field(a, foldVDim) }
	before := state{g.field(a, foldO), g.field(a, foldSum), g.field(a, foldMax)}
	run := state{g.field(a, foldRunO), g.field(a, foldRunSum), g.field(a, foldRunMax)}
	g.fold(before, run, g.field(a, foldRows), vdim, true)
	g.ret()
}

// state holds the pointers of a runState.
type state struct{ o, sum, max reg.Register }

// fold folds the rows of a run into the previous runs. Without mayBeNone each row of the run must
// have a slot.
func (g *gen) fold(to, run state, rows reg.Register, vdim func() reg.GPVirtual, mayBeNone bool) {
	const none = 0xff800000 // -Inf
	zero := g.vec()
	g.zero(zero)
	load := func(sum reg.Register) []reg.VecVirtual {
		v := g.vecs(16 / g.lanes())
		for i := range v {
			g.VMOVUPS(mem(sum, g.bytes*i), v[i])
		}
		return v
	}
	// seen emits a jump to label if a row has a slot, otherwise to unseen.
	seen := func(s state, sum []reg.VecVirtual, label, unseen string) {
		g.CMPL(mem(s.max, 0), operand.U32(none))
		g.JNE(operand.LabelRef(label))
		if g.wide() {
			k := g.K()
			g.VPTESTMD(sum[0], sum[0], k)
			g.KORTESTW(k, k)
		} else {
			t := g.vec()
			g.VPOR(sum[0], sum[1], t)
			g.VPTEST(t, t)
		}
		g.JZ(operand.LabelRef(unseen))
		g.Label(label)
	}
	columns := func(label string, f func()) {
		left := vdim()
		g.Label(label)
		f()
		g.VMOVUPS(zero, mem(run.o, 0))
		g.ADDQ(operand.U8(g.bytes), to.o)
		g.ADDQ(operand.U8(g.bytes), run.o)
		g.SUBQ(operand.U8(g.lanes()), left)
		g.JNZ(operand.LabelRef(label))
	}

	g.Label("fold")
	rs := load(run.sum)
	if mayBeNone {
		seen(run, rs, "foldRun", "foldNone")
	}
	s := load(to.sum)
	seen(to, s, "foldBoth", "foldFirst")
	m, x, y := g.vec(), g.vec(), g.vec()
	g.VBROADCASTSS(mem(to.max, 0), x)
	g.VBROADCASTSS(mem(run.max, 0), y)
	g.VMAXPS(x, y, m)
	g.VMOVSS(m.AsX(), mem(to.max, 0))
	g.VSUBPS(m, x, x)
	g.VSUBPS(m, y, y)
	g.exp(x)
	g.exp(y)
	for i := range s {
		g.VMULPS(s[i], x, s[i])
		g.VMULPS(rs[i], y, rs[i])
		g.VADDPS(rs[i], s[i], s[i])
		g.VMOVUPS(s[i], mem(to.sum, g.bytes*i))
	}
	columns("foldAdd", func() {
		v, w := g.vec(), g.vec()
		g.VMULPS(mem(to.o, 0), x, v)
		g.VMULPS(mem(run.o, 0), y, w)
		g.VADDPS(w, v, v)
		g.VMOVUPS(v, mem(to.o, 0))
	})
	g.JMP(operand.LabelRef("foldClear"))

	g.Label("foldFirst")
	for i := range rs {
		g.VMOVUPS(rs[i], mem(to.sum, g.bytes*i))
	}
	t := g.GP32()
	g.MOVL(mem(run.max, 0), t)
	g.MOVL(t, mem(to.max, 0))
	columns("foldCopy", func() {
		v := g.vec()
		g.VMOVUPS(mem(run.o, 0), v)
		g.VMOVUPS(v, mem(to.o, 0))
	})

	g.Label("foldClear")
	for i := range rs {
		g.VMOVUPS(zero, mem(run.sum, g.bytes*i))
	}
	g.MOVL(operand.U32(none), mem(run.max, 0))
	if mayBeNone {
		g.JMP(operand.LabelRef("foldNext"))
		g.Label("foldNone")
		skipped := g.times(vdim(), 4)
		g.ADDQ(skipped, to.o)
		g.ADDQ(skipped, run.o)
		g.Label("foldNext")
	}
	for _, r := range []state{to, run} {
		g.ADDQ(operand.U8(4), r.max)
		g.ADDQ(operand.U8(64), r.sum)
	}
	g.SUBQ(operand.U8(1), rows)
	g.JNZ(operand.LabelRef("fold"))
}
