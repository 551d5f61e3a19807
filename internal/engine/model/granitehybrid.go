package model

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// Granite 4 hybrid (IBM): the multipliers of granite.go. Most layers have Mamba-2 (recurrent/mamba2.go) instead of
// attention, which has no rotary positions unless position_embedding_type is rope. A layer's FFN is the
// experts of granitemoe.go and a shared one, or the shared one alone. Files stack the latter:
//
//	shared_mlp.input_linear (2*ffn, hidden), gate first
func init() {
	register(architecture{
		Name:     graniteHybrid,
		defaults: map[string]string{"hidden_size": "4096", "intermediate_size": "11008", "num_hidden_layers": "32", "num_attention_heads": "32", "vocab_size": "32000"},
		read:     readGraniteHybrid,
		layer:    graniteHybridLayer,
		take:     takeGraniteHybrid,
		extra:    llamaExtra,
	})
}

const graniteHybrid = "GraniteMoeHybridForCausalLM"

func readGraniteHybrid(f *fields, c *Config) {
	readGranite(f, c)
	if f.Text("position_embedding_type", "") != "rope" {
		for i := range c.Layers {
			c.Unrotated = append(c.Unrotated, i)
		}
	}
	experts, width := f.Index("num_local_experts", 8, maxExperts), c.FFN
	c.FFN = f.Size("shared_intermediate_size", 1024, maxFFN)
	if experts > 0 {
		c.MoE = MoE{Experts: experts, PerToken: f.Size("num_experts_per_tok", 2, maxExperts), FFN: width, Shared: c.FFN, Router: Router{Score: SoftmaxOfChosen, Scale: 1}}
		checkMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
	}
	kinds := map[string]string{"mamba": linearKind, "linear_attention": linearKind, "attention": fullKind, "full_attention": fullKind}
	key := f.either("layer_types", "layers_block_type")
	list := f.layerKinds(key, c.Layers, kinds)
	f.must("mamba_proj_bias", false)
	d := &c.Delta
	*d = recurrent.Mixer{
		Kind: recurrent.Mamba2, ValueHeads: f.Size("mamba_n_heads", 128, maxHeads), KeyDim: f.Size("mamba_d_state", 256, maxHeadDim), Taps: f.Size("mamba_d_conv", 4, maxTaps),
		Groups: f.Size("mamba_n_groups", 1, maxHeads), ConvBias: f.Bool("mamba_conv_bias", true), TimeStep: f.timeStep("time_step_limit"),
	}
	inner := f.Size("mamba_expand", 2, maxHeadDim) * c.Hidden
	c.readMamba(f, "mamba_d_head", inner/d.ValueHeads, "mamba_n_heads")
	if d.ValueHeads*d.ValueDim != inner {
		f.fail("mamba_d_head", ErrFormat, "%d heads of width %d are not mamba_expand times the hidden size, %d", d.ValueHeads, d.ValueDim, inner)
	}
	c.checkMixer(f, key, func(i int) bool { return list != nil && list[i] == fullKind })
}

func graniteHybridLayer(c *Config, i int) LayerSpec {
	l := llamaLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	shared := p + "shared_mlp."
	l.Gate, l.Up, l.Down = linear(shared+"gate_proj", false), linear(shared+"up_proj", false), linear(shared+"output_linear", false)
	if c.Sparse(i) {
		e := graniteMoELayer(c, i).Experts
		e.SharedGate, e.SharedUp, e.SharedDown = l.Gate.Weight, l.Up.Weight, l.Down.Weight
		l.Experts = e
	}
	if c.Recurrent(i) {
		c.mambaLayer(&l, p+"mamba.")
	}
	return l
}

// takeGraniteHybrid gives gate and up of the shared FFN a tensor each.
func takeGraniteHybrid(c *Checkpoint) error {
	for i := range c.Config.Layers {
		p := fmt.Sprintf("model.layers.%d.shared_mlp.", i)
		both, ok := c.at[p+"input_linear.weight"]
		if !ok {
			continue // check names what is missing
		}
		width := c.Config.FFN
		if want := []int{2 * width, c.Config.Hidden}; !slices.Equal(both.Shape, want) {
			return &Error{File: both.path, Tensor: both.Name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; shared_intermediate_size %d wants %v", both.Shape, width, want)}
		}
		delete(c.at, both.Name)
		both.Shape = []int{1, 2 * width, c.Config.Hidden}
		for first, part := range []string{"gate_proj.weight", "up_proj.weight"} {
			if err := c.add(both.matrix(p+part, 0, first*width, 1, width, false)); err != nil {
				return err
			}
		}
	}
	return nil
}
