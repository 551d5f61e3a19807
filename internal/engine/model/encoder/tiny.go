package encoder

import "maps"

// tiny returns the settings that tiny encoders share, together with own.
func tiny(own map[string]any) map[string]any {
	c := map[string]any{"num_key_value_heads": 2, "head_dim": 16, "hidden_act": "gelu", "bos_token_id": nil, "eos_token_id": nil}
	maps.Copy(c, own)
	return c
}
