package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets of kernel.ValuesArgs.
const (
	valV = 8 * iota
	valLdv
	valP
	valO
	valLdo
	valSlots
	valPf = 64
)

var valueTypes = []string{"F32", "BF16", "Int8"}

func valuesName(is isa, dt string, cols, r int) string {
	return fmt.Sprintf("values%s%dx%d%s", dt, cols, r, is.name)
}

// values writes o[r] += p[r][j] * v[j] over the slots j, for 1 to 6 rows of outputs that share each
// load of a value.
func values(g *gen) {
	for _, dt := range valueTypes {
		for _, nv := range []int{1, 2, 4, 8} {
			for r := 1; r <= 6; r++ {
				if g.wide() && (nv < 8 || r <= 2) || r*nv+nv+1 <= 16 && nv < 8 {
					g.values(dt, nv, r)
				}
			}
		}
	}
}

func (g *gen) values(dt string, nv, r int) {
	a := g.fn(valuesName(g.isa, dt, nv*g.lanes(), r), "ValuesArgs")
	v, ldv := g.field(a, valV), g.field(a, valLdv)
	p := g.field(a, valP)
	o := g.rows(g.field(a, valO), g.field(a, valLdo), r)
	slots, pf := g.field(a, valSlots), g.field(a, valPf)
	acc := g.vecs(r * nv)
	for i := range acc {
		g.VMOVUPS(o.at(i/nv, i%nv*g.bytes), acc[i])
	}
	g.Label("loop")
	if nv > r { // hold the fewer: the rows' probabilities, or the values
		b := g.vecs(r)
		for t := range b {
			g.VBROADCASTSS(mem(p, t*256), b[t])
		}
		for i := range nv {
			w := g.vec()
			g.natural(dt, mem(v, 0), i, w)
			for t := range b {
				g.VFMADD231PS(w, b[t], acc[t*nv+i])
			}
		}
	} else {
		ws := g.vecs(nv)
		for i, w := range ws {
			g.natural(dt, mem(v, 0), i, w)
		}
		for t := range r {
			b := g.vec()
			g.VBROADCASTSS(mem(p, t*256), b)
			for i, w := range ws {
				g.VFMADD231PS(w, b, acc[t*nv+i])
			}
		}
	}
	for line := 0; line < nv*g.natureBytes(dt); line += 64 {
		g.prefetch(mem(pf, line))
	}
	g.ADDQ(ldv, v)
	g.ADDQ(ldv, pf)
	g.ADDQ(operand.U8(4), p)
	g.SUBQ(operand.U8(1), slots)
	g.JNZ(operand.LabelRef("loop"))
	for i := range acc {
		g.VMOVUPS(acc[i], o.at(i/nv, i%nv*g.bytes))
	}
	g.ret()
}

// natureBytes returns the size of one vector for natural.
func (g *gen) natureBytes(dt string) int {
	switch dt {
	case "F32":
		return g.bytes
	case "Int8":
		return g.bytes / 4
	}
	return g.bytes / 2
}

// natural loads vector i of a row of values as float32.
func (g *gen) natural(dt string, at operand.Mem, i int, v reg.VecVirtual) {
	switch dt {
	case "F32":
		g.VMOVUPS(at.Offset(i*g.bytes), v)
	case "BF16":
		g.VPMOVZXWD(at.Offset(i*g.bytes/2), v)
		g.VPSLLD(operand.U8(16), v, v)
	case "Int8":
		g.VPMOVSXBD(at.Offset(i*g.bytes/4), v)
		g.VCVTDQ2PS(v, v)
	}
}
