package families

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// Granite 4 hybrid (IBM): the multipliers of granite.go. Most layers have Mamba-2 (recurrent/mamba2.go) instead of
// attention, which has no rotary positions unless position_embedding_type is rope. A layer's FFN is the
// experts of granitemoe.go and a shared one, or the shared one alone. Files stack the latter:
//
//	shared_mlp.input_linear (2*ffn, hidden), gate first
func init() {
	model.Register(model.Family{
		Name: GraniteHybrid,
		Defaults: map[string]string{"hidden_size": "4096", "intermediate_size": "11008", "num_hidden_layers": "32",
			"num_attention_heads": "32", "vocab_size": "32000"},
		Read:  readGraniteHybrid,
		Layer: graniteHybridLayer,
	})
}

const GraniteHybrid = "GraniteMoeHybridForCausalLM"

func readGraniteHybrid(f *model.Fields, c *model.Config) {
	readGranite(f, c)
	if f.Text("position_embedding_type", "") != "rope" {
		for i := range c.Layers {
			c.Unrotated = append(c.Unrotated, i)
		}
	}
	experts, width := f.Index("num_local_experts", 8, model.MaxExperts), c.FFN
	c.FFN = f.Size("shared_intermediate_size", 1024, model.MaxFFN)
	if experts > 0 {
		c.MoE = model.MoE{Experts: experts, PerToken: f.Size("num_experts_per_tok", 2, model.MaxExperts), FFN: width, Shared: c.FFN,
			Router: model.Router{Score: model.SoftmaxOfChosen, Scale: 1}}
		model.CheckMoE(f, c, "num_local_experts", "num_experts_per_tok", "", "")
	}
	kinds := map[string]string{"mamba": linearKind, "linear_attention": linearKind, "attention": fullKind, "full_attention": fullKind}
	key := f.Either("layer_types", "layers_block_type")
	list := layerKinds(f, key, c.Layers, kinds)
	f.MustBe("mamba_proj_bias", false)
	d := &c.Delta
	*d = recurrent.Mixer{
		Kind: recurrent.Mamba2, ValueHeads: f.Size("mamba_n_heads", 128, model.MaxHeads), KeyDim: f.Size("mamba_d_state", 256, model.MaxHeadDim),
		Taps:   f.Size("mamba_d_conv", 4, model.MaxTaps),
		Groups: f.Size("mamba_n_groups", 1, model.MaxHeads), ConvBias: f.Bool("mamba_conv_bias", true), TimeStep: timeStep(f, "time_step_limit"),
	}
	inner := f.Size("mamba_expand", 2, model.MaxHeadDim) * c.Hidden
	readMamba(c, f, "mamba_d_head", inner/d.ValueHeads, "mamba_n_heads")
	if d.ValueHeads*d.ValueDim != inner {
		f.Fail("mamba_d_head", model.ErrFormat, "%d heads of width %d are not mamba_expand times the hidden size, %d",
			d.ValueHeads, d.ValueDim, inner)
	}
	checkMixer(c, f, key, func(i int) bool { return list != nil && list[i] == fullKind })
}

func graniteHybridLayer(c *model.Config, i int) model.LayerSpec {
	l := model.DecoderLayer(c, i)
	p := fmt.Sprintf("model.layers.%d.", i)
	shared := p + "shared_mlp."
	l.Gate, l.Up, l.Down = model.Projection(shared+"gate_proj", false), model.Projection(shared+"up_proj", false),
		model.Projection(shared+"output_linear", false)
	if c.Sparse(i) {
		e := graniteMoELayer(c, i).Experts
		e.SharedGate, e.SharedUp, e.SharedDown = l.Gate.Weight, l.Up.Weight, l.Down.Weight
		l.Experts = e
	}
	if c.Recurrent(i) {
		mambaLayer(c, &l, p+"mamba.")
	}
	return l
}
