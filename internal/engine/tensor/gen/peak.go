package main

import "github.com/mmcloughlin/avo/operand"

// peakChains must equal the constant in measure.go.
const peakChains = 12

// peaks writes the loops that measure the machine's limits: they only read memory or only use the
// multipliers.
func peaks(g *gen) {
	g.plain("readPeak"+g.name, "p *byte, n int", "func(p uintptr, n int)")
	p, n := g.GP64(), g.GP64()
	g.Load(g.Param("p"), p)
	g.Load(g.Param("n"), n)
	acc := g.vecs(4)
	for _, v := range acc {
		g.zero(v)
	}
	g.counted("loop", n, func() {
		for i := 0; i < 512; i += g.bytes {
			v := acc[i/g.bytes%4]
			if g.wide() {
				g.VPORD(mem(p, i), v, v)
			} else {
				g.VPOR(mem(p, i), v, v)
			}
		}
		g.ADDQ(operand.U32(512), p)
		g.SUBQ(operand.U32(512), n)
	})
	g.ret()

	// peakChains independent chains hide the latency of two multipliers.
	g.plain("fmaPeak"+g.name, "n int", "func(n int)")
	n = g.GP64()
	g.Load(g.Param("n"), n)
	chains, a := g.vecs(peakChains), g.vec()
	g.zero(a)
	for _, v := range chains {
		g.zero(v)
	}
	g.counted("loop", n, func() {
		for _, v := range chains {
			g.VFMADD231PS(a, a, v)
		}
		g.SUBQ(operand.U8(1), n)
	})
	g.ret()

	// The integer products of the quantized tiles, with as many independent sums.
	g.plain("dotPeak"+g.name, "n int", "func(n int)")
	n = g.GP64()
	g.Load(g.Param("n"), n)
	chains, a = g.vecs(peakChains), g.vec()
	g.zero(a)
	for _, v := range chains {
		g.zero(v)
	}
	g.counted("loop", n, func() {
		for _, v := range chains {
			g.dot4(a, a, v)
		}
		g.SUBQ(operand.U8(1), n)
	})
	g.ret()
}
