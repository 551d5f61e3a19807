package model

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf/dequant"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// MXFP4 (OCP Microscaling Formats 1.0): 32 neighbours in a row are floats of 4 bits with a common
// power of two. As bf16 every value is exact. A gpt-oss folder has two tensors for each stack of
// experts, X_blocks (experts, rows, columns/32, 16) with the lower half of a byte first, and X_scales
// (experts, rows, columns/32). GGUF has a scale before the 16 bytes, whose lower halves are the
// first 16 elements.
const (
	mxWidth = 32 // elements of a block
)

// mxPart is the role of a tensor of bytes in a matrix of MXFP4.
type mxPart uint8

const (
	mxCodes mxPart = iota + 1
	mxScales
)

// notFinite counts the elements that are NaN, and reports whether any is not zero.
func (p mxPart) notFinite(data []byte) (bad int64, any bool) {
	for _, b := range data {
		switch {
		case p == mxScales && b == dequant.FP4NaN:
			bad += mxWidth
		case p == mxCodes && b&0x77 != 0:
			any = true
		}
	}
	return bad, any
}

// readMXFP4 accepts the method of gpt-oss. The list of modules that are not converted is not needed:
// the tensors show it.
func readMXFP4(f *fields, c *Config, method string) bool {
	if method != "mxfp4" || c.Architecture != gptOss {
		return false
	}
	c.MXFP4 = true
	return true
}

// takeMXFP4 names the experts whose stacks are blocks of MXFP4, as takeStackedExperts does.
func (c *Checkpoint) takeMXFP4() error {
	if !c.Config.MXFP4 {
		return nil
	}
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		n := c.Config.Layer(i).Experts
		for _, stack := range []struct {
			name       string
			rows, cols int
			parts      []mxRows
		}{
			{n.expert + "gate_up_proj", 2 * m.FFN, c.Config.Hidden, []mxRows{{0, 0, 2, m.FFN}, {1, 1, 2, m.FFN}}},
			{n.expert + "down_proj", c.Config.Hidden, m.FFN, []mxRows{{2, 0, 1, c.Config.Hidden}}},
		} {
			codes, ok := c.at[stack.name+"_blocks"]
			scales, also := c.at[stack.name+"_scales"]
			if !ok && !also {
				continue // not converted, or missing
			}
			if stack.cols%mxWidth != 0 {
				return &Error{File: c.Dir, Tensor: stack.name, Kind: ErrUnsupported, Detail: fmt.Sprintf("rows of %d elements are not whole blocks of %d", stack.cols, mxWidth)}
			}
			blocks := stack.cols / mxWidth
			for _, part := range []struct {
				place
				found bool
				name  string
				want  []int
			}{{codes, ok, "_blocks", []int{m.Experts, stack.rows, blocks, mxWidth / 2}}, {scales, also, "_scales", []int{m.Experts, stack.rows, blocks}}} {
				e := &Error{File: c.Dir, Tensor: stack.name + part.name, Kind: ErrMismatch}
				switch {
				case !part.found:
					e.Kind, e.Detail = ErrMissing, "missing; blocks and scales of MXFP4 belong together"
					return e
				case part.stored != "U8" || !slices.Equal(part.Shape, part.want):
					e.Detail = fmt.Sprintf("is %s of shape %v; MXFP4 wants U8 %v", part.stored, part.Shape, part.want)
					return e
				}
				delete(c.at, stack.name+part.name)
			}
			for e := range m.Experts {
				var names [3]string
				names[0], names[1], names[2] = n.Expert(e)
				own := []Tensor{codes.slice(e, mxCodes), scales.slice(e, mxScales)}
				for _, r := range stack.parts {
					if err := c.add(r.matrix(codes, names[r.which], own, blocks)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// slice is the e-th of the equal parts of a stack of bytes.
func (p place) slice(e int, role mxPart) Tensor {
	one, size := p.Tensor, len(p.Data)/p.Shape[0]
	one.Shape, one.Data, one.mx = p.Shape[1:], p.Data[e*size:(e+1)*size:(e+1)*size], role
	return one
}

// mxRows are rows of a stack's matrix: first, first+each and so on.
type mxRows struct{ which, first, each, rows int }

// matrix is these rows of the blocks of one expert. of is the stack.
func (r mxRows) matrix(of place, name string, parts []Tensor, blocks int) place {
	p := place{path: of.path, offset: of.offset, stored: of.stored, weight: true}
	p.Name, p.DType, p.Shape, p.home, p.parts = name, tensor.BF16, []int{r.rows, blocks * mxWidth}, of.home, parts
	codes, scales := parts[0].Data, parts[1].Data
	p.fill = func(dst []float32, row, lo int) {
		dequant.FP4Row(dst, codes, scales, (r.first+row*r.each)*blocks, lo)
	}
	return p
}
