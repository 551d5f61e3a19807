package model

import (
	"fmt"
	"maps"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Qwen3.5 (qwen35, qwen35moe) and Qwen3-Next (qwen3next) in GGUF. The converter adds the 1 of norms,
// and writes -exp(A_log). Qwen3.5's value heads are stored in turn: head 0 of every key head, then
// head 1 of every key head, and so on. The block of multi-token prediction follows the others.
var qwen35GGUF = map[string]string{
	"post_attention_norm": "post_attention_layernorm",
	"attn_qkv":            "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z", "ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a",
	"ssm_ba": "linear_attn.in_proj_ba", "ssm_conv1d": "linear_attn.conv1d", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
	"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias",
	"ffn_gate_shexp": "mlp.shared_expert.gate_proj", "ffn_up_shexp": "mlp.shared_expert.up_proj", "ffn_down_shexp": "mlp.shared_expert.down_proj",
	"ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}

func (m *metadata) qwen35() {
	m.withoutAhead()
	m.take("full_attention_interval", "full_attention_interval")
	m.need("ssm.conv_kernel", "linear_conv_kernel_dim")
	m.need("ssm.state_size", "linear_key_head_dim")
	m.need("ssm.group_count", "linear_num_key_heads")
	m.need("ssm.time_step_rank", "linear_num_value_heads")
	heads, inner := m.count("ssm.time_step_rank", maxHeads), m.count("ssm.inner_size", maxDeltaWidth)
	if inner%heads != 0 {
		m.fail("ssm.inner_size", ErrFormat, "%d is not a multiple of the %d value heads", inner, heads)
	}
	m.set("linear_value_head_dim", m.arch+".ssm.inner_size", inner/heads)
	m.read[m.arch+".rope.dimension_sections"] = true // see plainPositions
	dim, _ := m.config["head_dim"].(int64)
	if n := m.optional("rope.dimension_count", maxHeadDim); n > 0 && dim > 0 {
		m.set("partial_rotary_factor", m.arch+".rope.dimension_count", float64(n)/float64(dim))
	}
}

func (m *metadata) qwen35moe() {
	m.qwen35()
	m.need("expert_count", "num_experts")
	m.need("expert_used_count", "num_experts_per_tok")
	m.need("expert_feed_forward_length", "moe_intermediate_size")
	m.need("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
	if m.arch != "qwen3next" {
		return
	}
	var dense []int
	for _, t := range m.tensors {
		if layer, part, ok := blockName(t.Name); ok && part == "ffn_gate.weight" {
			dense = append(dense, layer)
		}
	}
	m.set("mlp_only_layers", m.arch+".block_count", dense)
}

func finishQwen35(c *Config) { c.NormsAddOne, c.Delta.Negated = false, c.Delta.KeyHeads > 0 }

// takeDelta gives the tensors of linear layers the form that they have in a folder, and drops the
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
		if c.Config.Architecture == qwen3Next {
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

// dropBlock forgets the tensors of a block.
func (c *Checkpoint) dropBlock(layer int) {
	hub, block := fmt.Sprintf("model.layers.%d.", layer), fmt.Sprintf("blk.%d.", layer)
	maps.DeleteFunc(c.at, func(name string, _ place) bool { return strings.HasPrefix(name, hub) || strings.HasPrefix(name, block) })
}

// reshape gives a tensor of one shape another one.
func (c *Checkpoint) reshape(name string, from, to []int) {
	if p, ok := c.at[name]; ok && fmt.Sprint(p.Shape) == fmt.Sprint(from) {
		p.Shape = to
		c.at[name] = p
	}
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

// joinQKVZ makes the joint projection of Qwen3-Next, by key head, of the two that the file holds.
func (c *Checkpoint) joinQKVZ(prefix string, n *DeltaSpec) error {
	d := &c.Config.Delta
	split := DeltaSpec{QKV: linear(prefix+"in_proj_qkv", false), Z: linear(prefix+"in_proj_z", false)}
	qkv, ok := c.at[split.QKV.Weight]
	z, also := c.at[split.Z.Weight]
	if !ok || !also {
		return &Error{File: c.Dir, Tensor: n.Joint.Weight, Kind: ErrMissing, Detail: "its parts attn_qkv and attn_gate are missing"}
	}
	for _, part := range []struct {
		place
		rows int
	}{{qkv, 2*d.Keys() + d.Values()}, {z, d.Values()}} {
		if want := []int{part.rows, c.Config.Hidden}; fmt.Sprint(part.Shape) != fmt.Sprint(want) {
			return &Error{File: part.path, Tensor: part.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; its metadata wants %v", part.Shape, want)}
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
