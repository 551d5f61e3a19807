package main

import "github.com/mmcloughlin/avo/operand"

// Offsets of kernel.DeltaArgs.
const (
	deltaState = 8 * iota
	deltaKey
	deltaQuery
	deltaUpdate
	deltaDecay
	deltaOut
	deltaRows
	deltaCols
	deltaStride
)

// deltas writes the three passes over the state of the gated delta rule, see kernel.DeltaArgs. Columns are
// independent: each is one chain over the rows, so any vector width gives the same bits.
func deltas(g *gen) {
	g.delta("Predict", false, false)
	g.delta("Read", true, false)
	g.delta("Advance", true, true)
}

// delta writes one pass. With updates, the pass uses the state after the rank-1 update; with
// stores, it also writes that state.
func (g *gen) delta(name string, updates, stores bool) {
	a := g.fn("delta"+name+g.name, "DeltaArgs")
	s, out, cols, ld := g.field(a, deltaState), g.field(a, deltaOut), g.field(a, deltaCols), g.field(a, deltaStride)
	decay, u := g.vec(), g.GP64()
	t := g.field(a, deltaDecay)
	g.VBROADCASTSS(mem(t, 0), decay)
	if updates {
		g.MOVQ(mem(a, deltaUpdate), u)
	}
	block := func(label string, n int) {
		acc, update := g.vecs(n), g.vecs(n)
		for i, v := range acc {
			g.zero(v)
			if updates {
				g.VMOVUPS(mem(u, g.bytes*i), update[i])
			}
		}
		rows, k, at := g.field(a, deltaRows), g.field(a, deltaKey), g.GP64()
		g.MOVQ(s, at)
		q := k
		if updates {
			q = g.field(a, deltaQuery)
		}
		kv, qv, x := g.vec(), g.vec(), g.vec()
		g.Label(label)
		g.VBROADCASTSS(mem(k, 0), kv)
		if updates {
			g.VBROADCASTSS(mem(q, 0), qv)
		}
		for i := range acc {
			g.VMULPS(mem(at, g.bytes*i), decay, x)
			if updates {
				g.VFMADD231PS(update[i], kv, x)
				if stores {
					g.VMOVUPS(x, mem(at, g.bytes*i))
				}
				g.VFMADD231PS(x, qv, acc[i])
			} else {
				g.VFMADD231PS(x, kv, acc[i])
			}
		}
		g.ADDQ(ld, at)
		g.ADDQ(operand.U8(4), k)
		if updates {
			g.ADDQ(operand.U8(4), q)
		}
		g.SUBQ(operand.U8(1), rows)
		g.JNZ(operand.LabelRef(label))
		for i, v := range acc {
			g.VMOVUPS(v, mem(out, g.bytes*i))
		}
		by := operand.U32(uint32(g.bytes * n))
		g.ADDQ(by, s)
		g.ADDQ(by, out)
		if updates {
			g.ADDQ(by, u)
		}
		g.SUBQ(operand.U32(uint32(g.lanes()*n)), cols)
	}
	g.Label("wide")
	g.CMPQ(cols, operand.U32(uint32(4*g.lanes())))
	g.JL(operand.LabelRef("narrow"))
	block("wideRow", 4)
	g.JMP(operand.LabelRef("wide"))
	g.Label("narrow")
	g.TESTQ(cols, cols)
	g.JZ(operand.LabelRef("done"))
	block("narrowRow", 16/g.lanes())
	g.JMP(operand.LabelRef("narrow"))
	g.Label("done")
	g.ret()
}
