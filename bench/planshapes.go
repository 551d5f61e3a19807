package bench

import (
	"fmt"
	"slices"
	"strings"

	"shoal/model"
)

// planShapes are public models by name: what their config.json says of their sizes.
var planShapes = map[string]string{
	"llama-3.1-8b": `{"architectures":["LlamaForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
		"intermediate_size":14336,"vocab_size":128256,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"llama-3.1-70b": `{"architectures":["LlamaForCausalLM"],"hidden_size":8192,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,
		"intermediate_size":28672,"vocab_size":128256,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"qwen2.5-7b": `{"architectures":["Qwen2ForCausalLM"],"hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,
		"intermediate_size":18944,"vocab_size":152064,"max_position_embeddings":131072,"dtype":"bfloat16"}`,
	"mistral-7b-v0.1": `{"architectures":["MistralForCausalLM"],"hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,
		"intermediate_size":14336,"vocab_size":32000,"max_position_embeddings":32768,"sliding_window":4096,"dtype":"bfloat16"}`,
	"gemma-3-27b": `{"architectures":["Gemma3ForCausalLM"],"hidden_size":5376,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,
		"intermediate_size":21504,"vocab_size":262208,"max_position_embeddings":131072,"sliding_window":1024,"query_pre_attn_scalar":168,"dtype":"bfloat16"}`,
}

const deepSeekR1 = "deepseek-r1"

// PlanShapes are the names that PlanShape knows, sorted.
func PlanShapes() []string {
	names := []string{deepSeekR1}
	for name := range planShapes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// PlanShape is a public model by name.
func PlanShape(name string) (PlanModel, error) {
	if name == deepSeekR1 {
		return DeepSeekR1(), nil
	}
	text, ok := planShapes[name]
	if !ok {
		return PlanModel{}, fmt.Errorf("bench: no model is called %q; give a folder with a config.json, or one of: %s", name, strings.Join(PlanShapes(), ", "))
	}
	c, err := model.ParseConfig(name, []byte(text), nil)
	if err != nil {
		return PlanModel{}, err
	}
	return PlanModelOf(name, &c), nil
}
