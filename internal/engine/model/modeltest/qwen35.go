package modeltest

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

var qwen35Names = strings.NewReplacer("post_attention_layernorm", "post_attention_norm", "linear_attn.in_proj_qkv.",
	"attn_qkv.", "linear_attn.in_proj_z", "attn_gate",
	"linear_attn.in_proj_ba", "ssm_ba", "linear_attn.in_proj_b", "ssm_beta", "linear_attn.in_proj_a", "ssm_alpha", "linear_attn.conv1d",
	"ssm_conv1d", "linear_attn.norm", "ssm_norm",
	"linear_attn.out_proj", "ssm_out", "linear_attn.A_log", "ssm_a", "linear_attn.dt_bias", "ssm_dt.bias",
	"mlp.shared_expert_gate", "ffn_gate_inp_shexp",
	"mlp.shared_expert.gate_proj", "ffn_gate_shexp", "mlp.shared_expert.up_proj", "ffn_up_shexp",
	"mlp.shared_expert.down_proj", "ffn_down_shexp")

// qwen35Keys returns the keys of an architecture.
func qwen35Keys(arch string) func(g *GGUF, m *model.Config) {
	return func(g *GGUF, m *model.Config) {
		d := &m.Delta
		interval := d.Full[0] + 1
		for i, layer := range d.Full {
			if layer != (i+1)*interval-1 {
				panic("modeltest: GGUF has no list of layers with attention")
			}
		}
		g.Unset(arch + ".rope.dimension_count")
		for key, n := range map[string]int{"ssm.conv_kernel": d.Taps, "ssm.state_size": d.KeyDim, "ssm.group_count": d.KeyHeads,
			"ssm.time_step_rank": d.ValueHeads,
			"ssm.inner_size":     d.ValueHeads * d.ValueDim, "full_attention_interval": interval, "rope.dimension_count": m.Rotated} {
			g.Set(arch+"."+key, n)
		}
		g.Set(arch+".rope.dimension_sections", []int32{2, 1, 1, 0})
		if m.MoE.Experts > 0 {
			g.Set(arch+".expert_feed_forward_length", m.MoE.FFN)
			g.Set(arch+".expert_shared_feed_forward_length", m.MoE.Shared)
		}
	}
}

// addDelta writes a tensor of a linear layer as the converter does. It reports whether name is one.
func addDelta(g *GGUF, m *model.Config, name string, t checkpoint.Tensor, all []float32, kind gguf.Type) bool {
	d, width := &m.Delta, t.Cols()
	keys, values := d.KeyHeads*d.KeyDim, d.ValueHeads*d.ValueDim
	// inTurn reorders groups of n numbers from `from` on: one per value head.
	inTurn := func(v []float32, from, n int) []float32 {
		out := append([]float32(nil), v[:from]...)
		for j := range d.ValueHeads / d.KeyHeads {
			for k := range d.KeyHeads {
				at := from + (k*(d.ValueHeads/d.KeyHeads)+j)*n
				out = append(out, v[at:at+n]...)
			}
		}
		return out
	}
	tiled := m.Architecture != "Qwen3NextForCausalLM"
	if !tiled {
		inTurn = func(v []float32, _, _ int) []float32 { return v }
	}
	switch _, part, _ := strings.Cut(strings.TrimPrefix(name, "blk."), "."); part {
	case "attn_qkv.weight":
		all = inTurn(all, 2*keys*width, d.ValueDim*width)
	case "ssm_conv1d.weight":
		g.Add(name, gguf.F32, []int{2*keys + values, d.Taps}, Quantize(gguf.F32, inTurn(all, 2*keys*width, d.ValueDim*width)))
		return true
	case "attn_gate.weight":
		all = inTurn(all, 0, d.ValueDim*width)
	case "ssm_beta.weight", "ssm_alpha.weight":
		all = inTurn(all, 0, width)
	case "ssm_dt.bias":
		all = inTurn(all, 0, 1)
	case "ssm_a":
		for i, v := range all {
			all[i] = -f32.Exp(v)
		}
		all = inTurn(all, 0, 1)
	case "ssm_out.weight":
		var out []float32
		for r := range t.Rows() {
			out = append(out, inTurn(all[r*width:(r+1)*width], 0, d.ValueDim)...)
		}
		all = out
	case "linear_attn.in_proj_qkvz.weight":
		block := strings.TrimSuffix(name, part)
		group := d.ValueHeads / d.KeyHeads * d.ValueDim
		var parts [4][]float32 // q, k, v, z
		for r := 0; r < t.Rows(); {
			for i, n := range []int{d.KeyDim, d.KeyDim, group, group} {
				parts[i] = append(parts[i], all[r*width:(r+n)*width]...)
				r += n
			}
		}
		qkv := append(append(parts[0], parts[1]...), parts[2]...)
		g.Add(block+"attn_qkv.weight", kind, []int{2*keys + values, width}, Quantize(kind, qkv))
		g.Add(block+"attn_gate.weight", kind, []int{values, width}, Quantize(kind, parts[3]))
		return true
	default:
		return false
	}
	g.Add(name, kind, t.Shape, Quantize(kind, all))
	return true
}
