package families

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/model/tinyconfig"
	"github.com/shoal-llm/shoal/internal/engine/tensor/f32"
)

// parseTiny returns the config of the tiny model with other settings; nil removes one.
func parseTiny(t *testing.T, architecture string, change map[string]any) (model.Config, error) {
	t.Helper()
	text, err := tinyconfig.Of(architecture)
	if err != nil {
		t.Fatal(err)
	}
	var settings map[string]any
	if err := json.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	maps.Copy(settings, change)
	if text, err = json.Marshal(settings); err != nil {
		t.Fatal(err)
	}
	return model.ParseConfig("d", text, nil)
}

// TestSideBySideSettings: the effect of each setting on the config, in the forms of published files.
func TestSideBySideSettings(t *testing.T) {
	for i, x := range []struct {
		architecture string
		change
		ok func(c *model.Config) bool
	}{
		{FalconH1, change{"num_hidden_layers": 3}, func(c *model.Config) bool {
			return c.Layers == 6 && slices.Equal(c.Delta.Full, []int{1, 3, 5}) && c.Recurrent(4) &&
				c.CacheOf(5) == 2 && c.Delta.NoNorm && c.Layer(4).Gate.Weight == "" && c.Layer(5).SameNorm
		}},
		{FalconH1, change{"key_multiplier": 2, "attention_out_multiplier": 3, "ssm_out_multiplier": 0.25,
			"lm_head_multiplier": 4, "embedding_multiplier": 5, "ssm_in_multiplier": 2}, func(c *model.Config) bool {
			f := c.Delta.Factors
			return c.AttentionScale() == f32.Exp(0)*0.5*0.5*2/float32(2.828427) && c.Multipliers == model.Multipliers{Embedding: 5,
				Logits: 4, State: 0.25, Attention: 1.5, Gate: 0.7, FFN: 2} && f == recurrent.Factors{Z: 0, X: 4, B: 2, C: 2, Dt: 6}
		}},
		{FalconH1, change{"mamba_rms_norm": true, "mamba_norm_before_gate": false, "mamba_d_head": "auto",
			"mamba_d_ssm": nil, "mamba_expand": 3}, func(c *model.Config) bool {
			return !c.Delta.NoNorm && c.Delta.ValueDim == 24 && c.Layer(0).Delta.Norm == "model.layers.0.mamba.norm.weight"
		}},
		{NemotronH, nil, func(c *model.Config) bool {
			return c.Layers == 3 && slices.Equal(c.Blocks, []recurrent.Block{{Mix: 0, FFN: -1}, {Mix: 1, FFN: 2}, {Mix: 3, FFN: 4}}) &&
				slices.Equal(c.MoE.Dense, []int{0, 1}) && c.Sparse(2) && !c.Recurrent(2) &&
				c.Layer(1).Gate.Weight == "model.layers.2.mixer.up_proj.weight" &&
				c.Layer(2).FFNNorm == "model.layers.4.norm.weight" && len(c.Unrotated) == 3
		}},
		{NemotronH, change{"layers_block_type": []string{"mamba", "mlp", "attention"}, "attention_head_dim": 16, "head_dim": nil},
			func(c *model.Config) bool {
				return c.Layers == 2 && c.MoE.Experts == 0 && c.HeadDim == 16 && c.Layer(1).Experts == nil && c.Layer(1).Gate.Weight == ""
			}},
		{NemotronH, change{"layer_types": []string{"full_attention", "moe", "linear_attention"},
			"n_group": 3, "topk_group": 2, "n_routed_experts": 6}, func(c *model.Config) bool {
			return slices.Equal(c.Delta.Full, []int{0}) && c.MoE.Router.Groups == 3 && c.MoE.Ungated &&
				c.MoE.Shared == 16 && c.Layer(0).Experts.Router == "model.layers.1.mixer.gate.weight"
		}},
		{NemotronH, change{"mamba_n_groups": 4, "n_groups": nil, "layer_norm_epsilon": 1e-3},
			func(c *model.Config) bool { return c.Delta.Groups == 4 && c.NormEps == 1e-3 }},
	} {
		if c, err := parseTiny(t, x.architecture, x.change); err != nil || !x.ok(&c) {
			t.Errorf("case %d, %s %v: %+v, %v", i, x.architecture, x.change, c, err)
		}
	}
}

// TestSideBySideRefused: settings that are not implemented, or that contradict each other, fail by their names.
func TestSideBySideRefused(t *testing.T) {
	for architecture, changes := range map[string][]change{
		FalconH1: {{"mamba_rms_norm": true}, {"mamba_proj_bias": true}, {"projectors_bias": true},
			{"mamba_use_mlp": false}, {"ssm_multipliers": []float64{1, 2}}, {"mlp_multipliers": []float64{0, 1}},
			{"mamba_d_head": 5}, {"mamba_n_heads": 7}, {"mamba_n_groups": 3}, {"attention_bias": true},
			{"key_multiplier": -1}, {"num_hidden_layers": 1000}, {"hidden_act": "gelu"}},
		NemotronH: {{"hybrid_override_pattern": "-M*"}, {"hybrid_override_pattern": "M--*"}, {"hybrid_override_pattern": "MX*"},
			{"hybrid_override_pattern": ""}, {"hybrid_override_pattern": "M-M-"}, {"layers_block_type": []string{"mamba", "other"}},
			{"moe_latent_size": 16}, {"mlp_hidden_act": "silu"}, {"use_bias": true}, {"attention_bias": true},
			{"mamba_num_heads": 5}, {"num_experts_per_tok": 9}, {"sliding_window": 4}, {"time_step_limit": []int{2, 1}}},
	} {
		for _, x := range changes {
			_, err := parseTiny(t, architecture, x)
			var e *model.Error
			field := ""
			for field = range x {
			}
			if !errors.As(err, &e) || !strings.Contains(err.Error(), field) && !strings.Contains(err.Error(), "mamba_") {
				t.Errorf("%s %v: %v", architecture, x, err)
			}
		}
	}
}

// TestSideBySideHostile: any value of any setting is refused, or gives a config whose tensors can be listed.
func TestSideBySideHostile(t *testing.T) {
	for _, architecture := range []string{FalconH1, NemotronH} {
		text, err := tinyconfig.Of(architecture)
		if err != nil {
			t.Fatal(err)
		}
		var settings map[string]any
		if err := json.Unmarshal(text, &settings); err != nil {
			t.Fatal(err)
		}
		for key := range settings {
			for _, v := range []any{nil, 0, -1, 1, 3, 7, 1 << 13, 1e9, 1e300, 0.5, "", "x", "M*",
				strings.Repeat("M*", 2000), true, []any{}, []any{"x"}, []any{"mamba", "attention"}, map[string]any{}} {
				if c, err := parseTiny(t, architecture, change{key: v}); err == nil && len(c.Tensors()) == 0 {
					t.Errorf("%s %s %v: no tensors", architecture, key, v)
				}
			}
		}
	}
}
