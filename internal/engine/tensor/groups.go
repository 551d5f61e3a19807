package tensor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-llm/shoal/internal/sys/hugemem"
)

// Group is one matrix of MatMulGroups and the tokens that it multiplies.
type Group struct {
	Y      []float32 // y[(t-T0)*LdY+r] of the tokens [T0, T1) and the rows r in [R0, R1)
	LdY    int
	W      *Weight
	T0, T1 int
	R0, R1 int // R1 0: all rows

	// Then, set in the first of all groups, is called for each pair of groups as Product.Then is.
	// The groups must then be pairs with equal tokens and rows. Tokens are counted like T0 and T1.
	Then func(r0, r1, t0, t1 int)
}

// MatMulGroups multiplies each group's tokens by its own matrix in one parallel region: the experts
// of a layer, each with the tokens that chose it. Tokens x[t*ldx] are rounded once. The matrices
// have one type and width and own all their units; a matrix is read once for every 96 tokens. Each
// element has the same bits as in MatMul: they depend on its row and its token.
func (p *Pool) MatMulGroups(groups []Group, x []float32, ldx int) {
	if len(groups) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.matmul(x, ldx, p.setGroups(groups))
}

// MatMulGroupsQuantized is MatMulGroups with tokens that Quantize has quantized for the matrices'
// type: token t is at x[t*ld:].
func (p *Pool) MatMulGroupsQuantized(groups []Group, x []byte, ld int) {
	if len(groups) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.matmulQuantized(x, ld, p.setGroups(groups))
}

// setGroups checks groups and returns the number of tokens.
func (p *Pool) setGroups(groups []Group) (n int) {
	m := &p.mat
	if len(groups) > len(m.jobs) {
		p.settle() // a late thread may read its job
		m.jobs = slices.Grow(m.jobs, len(groups)-len(m.jobs))[:len(groups)]
	}
	m.then = groups[0].Then
	for i, g := range groups {
		if twin := groups[i&^1]; m.then != nil && (len(groups)%2 != 0 || g.T0 != twin.T0 || g.T1 != twin.T1 || g.W.Rows != twin.W.Rows) {
			panic("tensor: Group.Then requires pairs of groups with the same tokens and rows")
		}
		if first := groups[0].W; g.W.Type != first.Type || g.W.Cols != first.Cols || g.T0 < 0 || g.T1 < g.T0 {
			panic(fmt.Sprintf("tensor: MatMulGroups of %v with %d columns and %v with %d, tokens [%d,%d)", first.Type,
				first.Cols, g.W.Type, g.W.Cols, g.T0, g.T1))
		}
		m.jobs[i].set(Product{Y: g.Y, LdY: g.LdY, W: g.W, R0: g.R0, R1: cmp.Or(g.R1, g.W.Rows)}, g.T1-g.T0)
		m.jobs[i].t0 = g.T0
		n = max(n, g.T1)
	}
	m.njobs = len(groups)
	return n
}

// Bank is a number of matrices of one type and shape in one mapping. Thousands of experts would
// otherwise be thousands of mappings, each rounded up to a huge page.
type Bank struct {
	all []Weight
	mem hugemem.Part
	n   int64
}

// NewBank returns n zero matrices that own all units of their columns.
func NewBank(dt DType, n, rows, cols int) (*Bank, error) {
	if n < 1 {
		return nil, fmt.Errorf("tensor: bank of %d weights", n)
	}
	one, err := describe(dt, rows, cols, 0, Units(cols))
	if err != nil {
		return nil, err
	}
	each := one.size()
	if each > math.MaxInt/2/n {
		return nil, fmt.Errorf("tensor: %d weights of %d rows and %d columns do not fit the address space", n, rows, cols)
	}
	b := &Bank{all: make([]Weight, n), n: int64(each * n)}
	if each > 0 {
		if b.mem, err = hugemem.MapPart(each * n); err != nil {
			return nil, err
		}
	}
	for i := range b.all {
		b.all[i] = *one
		b.all[i].data = b.mem.Data[i*each : (i+1)*each : (i+1)*each]
	}
	return b, nil
}

// At returns matrix i. The bank closes it.
func (b *Bank) At(i int) *Weight { return &b.all[i] }

func (b *Bank) Len() int { return len(b.all) }

// Bytes returns the total size in memory.
func (b *Bank) Bytes() int64 { return b.n }

// Close returns the memory to the system; no matrix may be used afterwards. It may be called twice.
func (b *Bank) Close() error {
	mem := b.mem
	b.mem, b.n = hugemem.Part{}, 0
	var errs []error
	for i := range b.all {
		errs = append(errs, b.all[i].Close())
	}
	return errors.Join(append(errs, mem.Free())...)
}
