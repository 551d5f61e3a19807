package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is an instruction set: the same kernels with another vector width.
type isa struct {
	name, file string
	bytes      int // of a vector
}

var (
	avx512 = isa{"AVX512", "avx512", 64}
	avx2   = isa{"AVX2", "avx2", 32}
)

// gen writes one file for one instruction set.
type gen struct {
	*build.Context
	isa
	file   string
	consts map[string]operand.Mem
}

func (g *gen) wide() bool { return g.bytes == 64 }

// lanes returns the number of float32 in a vector.
func (g *gen) lanes() int { return g.bytes / 4 }

// vec returns a new vector register.
func (g *gen) vec() reg.VecVirtual {
	if g.wide() {
		return g.ZMM()
	}
	return g.YMM()
}

func (g *gen) vecs(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = g.vec()
	}
	return v
}

// fn starts a kernel whose only parameter is a pointer to its arguments, and returns that pointer.
func (g *gen) fn(name, args string) reg.GPVirtual {
	stubs = append(stubs, stub{name, "a *" + args})
	g.Function(name)
	g.SignatureExpr("func(a uintptr)")
	g.Attributes(attr.NOSPLIT)
	a := g.GP64()
	g.Load(g.Param("a"), a)
	return a
}

// plain starts a kernel with scalar and pointer parameters. goParams is its Go declaration, expr
// the same with pointers as uintptr.
func (g *gen) plain(name, goParams, expr string) {
	stubs = append(stubs, stub{name, goParams})
	g.Function(name)
	g.SignatureExpr(expr)
	g.Attributes(attr.NOSPLIT)
}

func (g *gen) ret() {
	g.VZEROUPPER()
	g.RET()
}

func mem(base reg.Register, disp int) operand.Mem { return operand.Mem{Base: base, Disp: disp} }

// field loads a 64-bit field of the arguments.
func (g *gen) field(a reg.Register, offset int) reg.GPVirtual {
	r := g.GP64()
	g.MOVQ(mem(a, offset), r)
	return r
}

// rows addresses rows at a run-time stride: base + i*stride for i of 0..5.
type rows struct {
	base, stride, third reg.Register // third = base + 3*stride
}

func (g *gen) rows(base, stride reg.Register, n int) rows {
	r := rows{base: base, stride: stride}
	if n > 3 {
		t := g.GP64()
		g.LEAQ(operand.Mem{Base: base, Index: stride, Scale: 2}, t)
		g.ADDQ(stride, t)
		r.third = t
	}
	return r
}

func (r rows) at(i, disp int) operand.Mem {
	base := r.base
	if i >= 3 {
		base, i = r.third, i-3
	}
	m := operand.Mem{Base: base, Disp: disp}
	if i > 0 {
		m.Index, m.Scale = r.stride, uint8(i)
	}
	return m
}

func (g *gen) advance(r rows, by operand.Op) {
	g.ADDQ(by, r.base)
	if r.third != nil {
		g.ADDQ(by, r.third)
	}
}

// panels addresses up to four panels: base + i*stride.
type panels struct{ base, stride, triple reg.Register }

func (g *gen) panels(base, stride reg.Register, n int) panels {
	p := panels{base: base, stride: stride}
	if n > 3 {
		t := g.GP64()
		g.LEAQ(operand.Mem{Base: stride, Index: stride, Scale: 2}, t)
		p.triple = t
	}
	return p
}

func (p panels) at(i, disp int) operand.Mem {
	m := operand.Mem{Base: p.base, Disp: disp}
	switch i {
	case 1, 2:
		m.Index, m.Scale = p.stride, uint8(i)
	case 3:
		m.Index, m.Scale = p.triple, 1
	}
	return m
}

func (g *gen) zero(v reg.Register) {
	if g.wide() {
		g.VPXORD(v, v, v)
	} else {
		g.VXORPS(v, v, v)
	}
}

// konst returns a constant in memory: one lane, which instructions of AVX-512 broadcast, or a whole
// vector of AVX2. The linker aligns data to at most 32 bytes, so constants of 64 bytes crossed two
// cache lines in every second build, which doubled the time of an exponential.
func (g *gen) konst(name string, bits uint32) operand.Mem {
	if g.consts == nil {
		g.consts = map[string]operand.Mem{}
	}
	if m, ok := g.consts[name]; ok {
		return m
	}
	m := g.table(name)
	n := g.lanes()
	if g.wide() {
		n = 1
	}
	for i := range n {
		g.AddDatum(4*i, operand.U32(bits))
	}
	g.consts[name] = m
	return m
}

// load puts a constant in all lanes.
func (g *gen) load(konst operand.Mem, v reg.VecVirtual) {
	if g.wide() {
		g.VBROADCASTSS(konst, v)
	} else {
		g.VMOVUPS(konst, v)
	}
}

type instruction func(...operand.Op)

// by returns the form of an instruction whose first operand is a constant.
func (g *gen) by(vector, broadcast instruction) instruction {
	if g.wide() {
		return broadcast
	}
	return vector
}

func (g *gen) mulBy() instruction { return g.by(g.VMULPS, g.VMULPS_BCST) }

func (g *gen) addBy() instruction { return g.by(g.VADDPS, g.VADDPS_BCST) }

func (g *gen) table(name string) operand.Mem {
	m := g.StaticGlobal(fmt.Sprintf("%s_%s", name, g.file))
	g.DataAttributes(attr.RODATA | attr.NOPTR)
	return m
}

// counted emits a loop that runs while n, which the body decrements, is above 0; n may be 0 at the
// start.
func (g *gen) counted(label string, n reg.Register, body func()) {
	g.TESTQ(n, n)
	g.JZ(operand.LabelRef(label + "_done"))
	g.Label(label)
	body()
	g.JNZ(operand.LabelRef(label))
	g.Label(label + "_done")
}
