package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A quantized token is a row of quantized blocks of 32.
const (
	quantBlockBytes = 40 // 32 int8, the scale, and the start value of the integer sums
	quantBlockScale = 32
	quantBlockStart = 36
)

// quantType is a quantized weight. 16 rows of a block are loads vectors of 64 bytes, with 4
// adjacent columns of each row. Q4_0 has columns 4g.. in the low and 16+4g.. in the high halves of
// the bytes of load g.
type quantType struct {
	name   string
	loads  int
	scales int // bytes of 16 scales, and of 16 zero points after them
}

var quantTypes = []quantType{{"Q8_0", 8, 32}, {"Q4_0", 4, 32}, {"IQ4_NL", 4, 32}, {"Int4", 4, 48}}

// sameKernels maps types to the type whose kernels they use. IQ4_NL and MXFP4 have tables.
var sameKernels = map[string]string{"MXFP4": "IQ4_NL"}

func (q quantType) table() bool { return q.name == "IQ4_NL" }

// zeros reports whether every row has a zero point.
func (q quantType) zeros() bool { return q.scales > 32 }

// code loads a table of 16 bytes into every lane of 128 bits: plus 128 if VPDPBUSD needs unsigned
// weights.
func (g *gen) code(a reg.Register) reg.VecVirtual {
	v, at := g.vec(), g.field(a, argTable)
	if g.wide() {
		g.VBROADCASTI32X4(mem(at, 16), v)
	} else {
		g.VBROADCASTI128(mem(at, 0), v)
	}
	return v
}

// quants writes the tiles of quantized weights: per block an exact integer sum per
// row and token, then one fused multiply-add by the product of the two scales.
func quants(g *gen) {
	for _, q := range quantTypes {
		for c := 1; c <= 6; c++ {
			if !g.wide() {
				if c <= 4 { // five and six in one pass are no faster than two passes of three
					g.narrow(q, c)
				}
				continue
			}
			for _, m := range []int{1, 2, 4} {
				if m == 2 || c == 1 || m == 4 && c == 2 { // a single panel is the rest of a matrix
					g.quant(q, m, c, false)
				}
			}
			if c == 1 {
				g.quant(q, 4, c, true)
			}
		}
	}
	if !g.wide() {
		g.quantize()
	}
}

// risingName returns the kernel for CPUs whose prefetchers follow a rising stream: one token, and one
// group of four panels after the other.
func risingName(is isa, dt string, m, c int) string {
	return fmt.Sprintf("tile%s%dx%dRising%s", dt, m, c, is.name)
}

func (g *gen) quant(q quantType, m, c int, rising bool) {
	name := tileName(g.isa, q.name, m, c)
	if rising {
		name = risingName(g.isa, q.name, m, c)
	}
	a := g.fn(name, "TileArgs")
	nv := m // a panel's 16 rows are one vector
	w := g.panels(g.field(a, argW), g.field(a, argPanel), m)
	scales := g.field(a, argScales) // 16 float16 per panel, adjacent
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
		g.load(g.konst("nibble", 0x0f0f0f0f), bits.mask)
	}
	if q.table() {
		bits.code = g.code(a)
	}
	// One token has registers for two sums per panel. So the high halves of the bytes are
	// multiplied in place, 16 times too large, and one shift per block replaces one per load.
	apart := c == 1 && q.loads == 4 && !q.table()
	if apart {
		bits.high = g.vec()
		g.load(g.konst("highNibble", 0xf0f0f0f0), bits.high)
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
	if q.zeros() {
		g.zeroPoints(q, scales, x, nv, sums)
	}
	for i, s := range sums {
		if q.zeros() {
			break
		}
		if i%nv > 0 { // the same for all panels; a copy is free, a load is not
			g.VMOVDQA32(sums[i-1], s)
		} else {
			g.VPBROADCASTD(x.at(i/nv, quantBlockStart), s)
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
		g.VCVTPH2PS(mem(scales, i*q.scales), v)
	}
	for t := range c {
		xs := g.vec()
		g.VBROADCASTSS(x.at(t, quantBlockScale), xs)
		for i, v := range ws {
			sum, s := sums[t*nv+i], g.vec()
			g.VMULPS(v, xs, s)
			g.VCVTDQ2PS(sum, sum)
			g.VFMADD231PS(sum, s, acc[t*nv+i])
		}
	}
	g.ADDQ(mem(a, argAdvance), w.base)
	g.ADDQ(mem(a, argAdvance), scales)
	g.advance(x, operand.U8(quantBlockBytes))
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

// zeroPoints starts the sums at minus the zero points times the sum of the token's int8, which is its
// start value divided by -128.
func (g *gen) zeroPoints(q quantType, scales reg.Register, x rows, nv int, sums []reg.VecVirtual) {
	zeros := g.vecs(nv)
	for i, z := range zeros {
		g.VPMOVZXBD(mem(scales, i*q.scales+32), z)
	}
	for t := range len(sums) / nv {
		s := g.vec()
		g.VPBROADCASTD(x.at(t, quantBlockStart), s)
		g.VPSRAD(operand.U8(7), s, s) // fits in 16 bits
		for i, z := range zeros {
			g.VPMADDWD(z, s, sums[t*nv+i])
		}
	}
}

// nibbles are the constants that unpack 4-bit weights.
type nibbles struct{ mask, high, code reg.VecVirtual }

// byLoad multiplies a block of all panels load by load: each broadcast of a token serves all
// panels.
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

// inOrder does the same in the memory order of the weights, for few tokens: memory is then the
// bottleneck, and the CPU's prefetcher follows one rising stream (a third of the speed, on Zen 4,
// when four panels alternate).
//
// Without a prefetch address, one line of each panel of 4-bit weights is prefetched into L2 four
// blocks ahead. More lines, or any into L1, hide the misses that train the CPU's own prefetcher
// (Zen 4).
func (g *gen) inOrder(q quantType, m, c int, w panels, x rows, pf panels, bits nibbles, sums, highs []reg.VecVirtual) {
	const blocksAhead = 4
	block := m * (q.loads*64 + q.scales)
	half := q.loads / c // as many broadcasts as there are registers
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
				case q.loads == 8: // not ahead, but still worth a tenth
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
