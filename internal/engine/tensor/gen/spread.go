package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// spreadTokens is the number of tokens from which the prefetches of a tile (AVX-512) are argPfGap
// bytes apart, and those of a round argPfStep after those of the previous one. With many passes
// over the weights, a short gap requests each line about once. A long gap requests as many lines in
// every round of every pass, which occupies the line buffers that an Intel core needs for its own
// misses (Emerald Rapids, Q8_0: 4, 6, 8 and 16 tokens are 1.08, 1.2, 1.14 and 1.28 times as fast
// with short gaps). AMD's cores drop requests without a buffer, and fetch more when asked again
// (Zen 4: 16 tokens are 1.08 times as fast with long gaps).
const spreadTokens = 3

// spread holds the prefetches of one round of a tile.
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

// prefetch emits the next m prefetches.
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
