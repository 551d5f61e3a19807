package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// spreadTokens is from how many tokens on the prefetches of a tile (AVX-512) lie argPfGap
// bytes apart, and those of a round argPfStep behind those of the one before. With many
// passes over the weights before them, a short gap asks for each line about once. Long
// ones ask for as many lines in every round of every pass, which keeps the line buffers
// of an Intel core busy that its own misses need (Emerald Rapids, Q8_0: 4, 6, 8 and 16
// tokens 1.08, 1.2, 1.14 and 1.28 times as fast with short ones); AMD's drop what they have no buffer for, and fetch
// more when asked again (Zen 4: 16 tokens 1.08 times as fast with long ones).
const spreadTokens = 3

// spread is the prefetches of one round of a tile.
type spread struct {
	args reg.Register
	gap  reg.Register
	at   rows
	n    int // of this round
}

func (g *gen) spread(a reg.Register) *spread { return &spread{args: a, gap: g.field(a, argPfGap)} }

func (s *spread) begin(g *gen) {
	s.at, s.n = g.rows(g.field(s.args, argPf), s.gap, 6), 0
}

// prefetch emits the next m.
func (s *spread) prefetch(g *gen, m int) {
	for range m {
		if s.n > 0 && s.n%6 == 0 {
			by := g.GP64()
			g.LEAQ(operand.Mem{Base: s.gap, Index: s.gap, Scale: 2}, by)
			g.LEAQ(operand.Mem{Base: s.at.base, Index: by, Scale: 2}, s.at.base)
			g.LEAQ(operand.Mem{Base: s.at.third, Index: by, Scale: 2}, s.at.third)
		}
		g.prefetch(s.at.at(s.n%6, 0))
		s.n++
	}
}

func (s *spread) end(g *gen) {
	step := g.field(s.args, argPfStep)
	g.ADDQ(step, mem(s.args, argPf))
}
