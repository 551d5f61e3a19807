package checkpoint

import (
	"fmt"
	"maps"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
	"github.com/shoal-llm/shoal/internal/engine/model/ggufconfig"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// takeDelta converts the tensors of linear layers to the form of a Hugging Face folder. It drops the
// blocks of multi-token prediction.
func takeDelta(c *Checkpoint) error {
	if err := c.dropAhead(); err != nil {
		return err
	}
	for i := range c.Config.Layers {
		l := c.Config.Layer(i)
		if e := l.Experts; e != nil {
			c.reshape(e.SharedFactor, []int{c.Config.Hidden}, []int{1, c.Config.Hidden})
		}
		if !c.Config.Recurrent(i) {
			continue
		}
		d, n := &c.Config.Delta, l.Delta
		channels := 2*d.Keys() + d.Values()
		c.reshape(n.Conv, []int{channels, d.Taps}, []int{channels, 1, d.Taps})
		c.reshape(n.ALog, []int{d.ValueHeads, 1}, []int{d.ValueHeads})
		if c.Config.Architecture == families.Qwen3Next {
			if err := c.joinQKVZ(fmt.Sprintf("model.layers.%d.linear_attn.", i), n); err != nil {
				return err
			}
			continue
		}
		// Row r of values, of heads of a given width, after the first rows.
		values := func(first, width int) func(r int) int {
			return func(r int) int {
				if r < first {
					return r
				}
				return first + d.InTurn((r-first)/width)*width + (r-first)%width
			}
		}
		c.reorder(n.QKV.Weight, values(2*d.Keys(), d.ValueDim), nil)
		c.reorder(n.Conv, values(2*d.Keys(), d.ValueDim), nil)
		c.reorder(n.Z.Weight, values(0, d.ValueDim), nil)
		c.reorder(n.B.Weight, d.InTurn, nil)
		c.reorder(n.A.Weight, d.InTurn, nil)
		c.reorder(n.DtBias, nil, d.InTurn)
		c.reorder(n.ALog, nil, d.InTurn)
		c.reorder(n.Out.Weight, nil, values(0, d.ValueDim))
	}
	return nil
}

// dropBlock removes the tensors of a block from c.
func (c *Checkpoint) dropBlock(layer int) {
	hub, block := fmt.Sprintf("model.layers.%d.", layer), fmt.Sprintf("blk.%d.", layer)
	maps.DeleteFunc(c.at, func(name string, _ place) bool { return strings.HasPrefix(name, hub) || strings.HasPrefix(name, block) })
}

// reorder makes the rows and columns of a tensor those at other positions of the stored one; nil: the
// same. Positions that a wrong shape does not have are left to check.
func (c *Checkpoint) reorder(name string, row, column func(int) int) {
	p, ok := c.at[name]
	if !ok {
		return
	}
	stored := p.Tensor
	p.Data, p.blocks, p.parts = nil, 0, []Tensor{stored}
	p.fill = func(dst []float32, r, lo int) {
		if row != nil {
			r = row(r)
		}
		if column == nil {
			stored.readRow(dst, r, lo, lo+len(dst))
			return
		}
		for i := 0; i < len(dst); {
			at, n := column(lo+i), 1
			for i+n < len(dst) && column(lo+i+n) == at+n {
				n++
			}
			stored.readRow(dst[i:i+n], r, at, at+n)
			i += n
		}
	}
	c.at[name] = p
}

// joinQKVZ joins the two projections of the file into the projection of Qwen3-Next, by key head.
func (c *Checkpoint) joinQKVZ(prefix string, n *model.DeltaSpec) error {
	d := &c.Config.Delta
	split := model.DeltaSpec{QKV: model.Projection(prefix+"in_proj_qkv", false), Z: model.Projection(prefix+"in_proj_z", false)}
	qkv, ok := c.at[split.QKV.Weight]
	z, also := c.at[split.Z.Weight]
	if !ok || !also {
		return &model.Error{File: c.Dir, Tensor: n.Joint.Weight, Kind: model.ErrMissing, Detail: "its parts attn_qkv and attn_gate are missing"}
	}
	for _, part := range []struct {
		place
		rows int
	}{{qkv, 2*d.Keys() + d.Values()}, {z, d.Values()}} {
		if want := []int{part.rows, c.Config.Hidden}; fmt.Sprint(part.Shape) != fmt.Sprint(want) {
			return &model.Error{File: part.path, Tensor: part.Name, Kind: model.ErrMismatch,
				Detail: fmt.Sprintf("has shape %v; its metadata requires %v", part.Shape, want)}
		}
	}
	delete(c.at, split.QKV.Weight)
	delete(c.at, split.Z.Weight)
	parts := []Tensor{qkv.Tensor, z.Tensor}
	p := qkv
	p.Name, p.Shape = n.Joint.Weight, []int{2*d.Keys() + 2*d.Values(), c.Config.Hidden}
	p.Data, p.blocks, p.parts = nil, 0, parts
	if qkv.DType != z.DType {
		p.DType = tensor.Q8_0
	}
	p.fill = func(dst []float32, r, lo int) {
		from, at := split.InRow(d, r)
		part := 0
		if from.Weight == split.Z.Weight {
			part = 1
		}
		parts[part].readRow(dst, at, lo, lo+len(dst))
	}
	return c.add(p)
}

// dropAhead removes the blocks that predict further tokens.
func (c *Checkpoint) dropAhead() error {
	for name := range c.at {
		if layer, part, ok := ggufconfig.BlockName(name); ok && layer >= c.Config.Layers && strings.HasPrefix(part, "nextn.") {
			c.dropBlock(layer)
		}
	}
	return nil
}

// takeJoint converts the tensors of Mamba2 or ShortConv to the form of a Hugging Face folder.
func takeJoint(c *Checkpoint) error {
	d := &c.Config.Delta
	for i := range c.Config.Layers {
		if n := c.Config.Layer(i).Delta; n != nil {
			c.reshape(n.Conv, []int{d.StoredChannels(), d.Taps}, []int{d.StoredChannels(), 1, d.Taps})
			c.reshape(n.ALog, []int{d.ValueHeads, 1}, []int{d.ValueHeads})
			c.reshape(n.D, []int{d.ValueHeads, 1}, []int{d.ValueHeads})
			c.reshape(n.Norm, []int{d.Groups, d.Values() / max(1, d.Groups)}, []int{d.Values()})
		}
	}
	return c.rename("token_embd_norm.weight", model.FinalNorm)
}
