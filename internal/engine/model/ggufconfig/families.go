package ggufconfig

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
)

// Family describes how llama.cpp's converter writes one family.
type Family struct {
	hub    string              // the architecture in config.json; read may choose a relative
	read   func(*metadata)     // reads settings beyond sizes and rotation
	finish func(*model.Config) // adjusts the config after config.json was parsed; nil: nothing
	names  map[string]string   // parts of a block whose names differ from partsGGUF
	Paired bool                // rows of queries and keys were reordered to pairs of neighbours, as llama.cpp rotates them
}

var familiesGGUF = map[string]Family{
	"llama":      {hub: "LlamaForCausalLM", read: (*metadata).llama, Paired: true}, // Mistral's and Mixtral's too
	"qwen2":      {hub: "Qwen2ForCausalLM", read: (*metadata).qwenWindow},
	"qwen3":      {hub: "Qwen3ForCausalLM", read: (*metadata).qwenWindow},
	"qwen2vl":    {hub: "Qwen2ForCausalLM", read: (*metadata).qwenVL}, // Qwen2.5-VL too; the encoder of images has its own file
	"qwen3vl":    {hub: "Qwen3ForCausalLM", read: (*metadata).qwenVL},
	"qwen3vlmoe": {hub: "Qwen3MoeForCausalLM", read: (*metadata).qwen3moe},
	"qwen3moe":   {hub: "Qwen3MoeForCausalLM", read: (*metadata).qwen3moe},
	"gemma":      {hub: "GemmaForCausalLM", read: func(*metadata) {}, finish: finishGemma},
	"gemma2":     {hub: "Gemma2ForCausalLM", read: (*metadata).gemma2, finish: finishGemma, names: gemmaGGUF},
	"gemma3":     {hub: "Gemma3ForCausalLM", read: (*metadata).gemma3, finish: finishGemma, names: gemmaGGUF},
	"gemma4":     {hub: families.Gemma4, read: (*metadata).gemma4, finish: finishGemma, names: gemma4GGUF},
	"granite":    {hub: "GraniteForCausalLM", read: (*metadata).granite, Paired: true},
	// Phi-4 too
	"phi3": {hub: "Phi3ForCausalLM", read: (*metadata).phi3,
		names: map[string]string{"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}},
	"ernie4_5":  {hub: "Ernie4_5ForCausalLM", read: (*metadata).plain},
	"glm4":      {hub: "Glm4ForCausalLM", read: (*metadata).glm4, names: glm4GGUF},
	"mistral3":  {hub: "Ministral3ForCausalLM", read: (*metadata).mistral3, Paired: true},
	"qwen35":    {hub: "Qwen3_5ForCausalLM", read: (*metadata).qwen35, finish: finishQwen35, names: qwen35GGUF},
	"qwen35moe": {hub: "Qwen3_5MoeForCausalLM", read: (*metadata).qwen35moe, finish: finishQwen35, names: qwen35GGUF},
	"qwen3next": {hub: families.Qwen3Next, read: (*metadata).qwen35moe, finish: finishQwen35, names: qwen35GGUF},
	"gpt-oss":   {hub: families.GptOss, read: (*metadata).gptOss, names: gptOssGGUF},
	"llama4":    {hub: families.Llama4, read: (*metadata).llama4, names: llama4GGUF},
	"lfm2":      {hub: "Lfm2ForCausalLM", read: (*metadata).lfm2, names: lfm2GGUF},
	"lfm2moe":   {hub: families.LFM2MoE, read: (*metadata).lfm2moe, names: lfm2GGUF},
	"granitehybrid": {hub: families.GraniteHybrid, read: (*metadata).graniteHybrid, finish: finishMamba,
		names: graniteHybridGGUF, Paired: true},
	"falcon-h1":      {hub: families.FalconH1, read: (*metadata).falconH1, finish: finishMamba, names: falconH1GGUF},
	"nemotron_h":     {hub: families.NemotronH, read: (*metadata).nemotronH, finish: finishMamba, names: nemotronHGGUF},
	"nemotron_h_moe": {hub: families.NemotronH, read: (*metadata).nemotronH, finish: finishMamba, names: nemotronHGGUF},
	"smollm3":        {hub: "SmolLM3ForCausalLM", read: (*metadata).smollm3, Paired: true},
	"deepseek2":      {hub: "DeepseekV2ForCausalLM", read: (*metadata).deepseek, names: deepseekGGUF}, // V3 and R1 too

	"minimax-m2": {hub: "MiniMaxM2ForCausalLM", read: (*metadata).minimaxM2,
		names: map[string]string{"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"}},
	"olmoe":      {hub: "OlmoeForCausalLM", read: (*metadata).experts},
	"granitemoe": {hub: "GraniteMoeForCausalLM", read: (*metadata).graniteMoE, Paired: true},
	"ernie4_5-moe": {hub: "Ernie4_5_MoeForCausalLM", read: (*metadata).ernie45MoE,
		names: sharedGGUF("mlp.shared_experts", "mlp.moe_statics.e_score_correction_bias", nil)},
	"hunyuan-moe": {hub: "HunYuanMoEV1ForCausalLM", read: (*metadata).hunyuanMoE, // the base of the rotation includes alpha
		names: sharedGGUF("mlp.shared_mlp", "",
			map[string]string{"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"})},
	"glm4moe": {hub: "Glm4MoeForCausalLM", read: (*metadata).glm4moe,
		names: sharedGGUF("mlp.shared_experts", "mlp.gate.e_score_correction_bias",
			map[string]string{"post_attention_norm": "post_attention_layernorm"})},

	"bert":        {hub: "BertModel", read: (*metadata).bert, finish: finishBert, names: bertGGUF}, // XLM-RoBERTa and DistilBERT too
	"nomic-bert":  {hub: "NomicBertModel", read: (*metadata).nomicBert, names: bertGGUF},
	"modern-bert": {hub: "ModernBertModel", read: (*metadata).modernBert, names: modernBertGGUF},

	"gemma-embedding": {hub: families.Gemma3, read: (*metadata).gemmaEmbedding, finish: finishGemma, names: gemmaGGUF},

	"olmo2":   {hub: "Olmo2ForCausalLM", read: (*metadata).olmo, names: gemmaGGUF},
	"exaone4": {hub: "Exaone4ForCausalLM", read: (*metadata).exaone4, names: gemmaGGUF},
	"seed_oss": {hub: "SeedOssForCausalLM", read: func(*metadata) {},
		names: map[string]string{"post_attention_norm": "post_attention_layernorm"}},
	// the base of the rotation includes alpha
	"hunyuan-dense": {hub: "HunYuanDenseV1ForCausalLM", read: func(*metadata) {},
		names: map[string]string{"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}},
	"command-r": {hub: "CohereForCausalLM", read: (*metadata).cohere},
	"cohere2":   {hub: "Cohere2ForCausalLM", read: (*metadata).cohere},
}

// FamilyOf returns the family of an architecture in llama.cpp's names.
func FamilyOf(arch string) Family { return familiesGGUF[arch] }

func knownGGUF() string {
	return strings.Join(slices.Sorted(maps.Keys(familiesGGUF)), ", ")
}

// partsGGUF maps a block's tensors to their Hugging Face names.
var partsGGUF = map[string]string{
	"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
	"attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
	"ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}

// HubName returns the Hugging Face name of a GGUF tensor. Unknown names stay unchanged, for check to
// refuse.
func (f Family) HubName(name string) string {
	switch name {
	case "token_embd.weight":
		return model.Embedding
	case "output_norm.weight":
		return model.FinalNorm
	case "output.weight":
		return model.Head
	case "per_layer_token_embd.weight":
		return model.PerLayerTable
	case "per_layer_model_proj.weight":
		return model.PerLayerProject
	case "per_layer_proj_norm.weight":
		return model.PerLayerNorm
	}
	if own := inputsGGUF[name]; own != "" {
		return own
	}
	rest, inside := strings.CutPrefix(name, "blk.")
	layer, part, ok := strings.Cut(rest, ".")
	kind := filepath.Ext(part)
	hub, whole := f.names[part]
	if !whole {
		part = strings.TrimSuffix(part, kind)
		if hub = f.names[part]; hub == "" {
			hub = partsGGUF[part]
		}
		hub += kind
	}
	if !inside || !ok || !whole && (hub == kind || kind != ".weight" && kind != ".bias") {
		return name
	}
	return "model.layers." + layer + "." + hub
}

// llama reads Llama, Mistral (with a window) and Mixtral (with experts).
func (m *metadata) llama() {
	if m.window() > 0 {
		m.set("architectures", "general.architecture", []string{"MistralForCausalLM"})
	}
	if m.mixture() {
		m.set("architectures", "general.architecture", []string{"MixtralForCausalLM"})
	}
}

// phi3 reads the window, which applies to all layers.
func (m *metadata) phi3() {
	m.window()
	m.partial()
	m.longRope()
}

// plain is for families without settings beyond sizes and rotation.
func (m *metadata) plain() {}

var glm4GGUF = map[string]string{"ffn_up": "mlp.gate_up_proj", "post_attention_norm": "post_self_attn_layernorm",
	"post_ffw_norm": "post_mlp_layernorm"}

// glm4 sets no attention_bias: a projection has a bias if the file has its tensor.
func (m *metadata) glm4() {
	m.set("attention_bias", "general.architecture", false)
	m.partial()
}

// partial reads the number of elements of a head that rotate.
func (m *metadata) partial() {
	key := m.arch + ".rope.dimension_count"
	dim, _ := m.config["head_dim"].(int64)
	n := attempt.Must(m.f.Int(key, dim, 0, model.MaxHeadDim))
	if n < dim {
		m.set(model.PartialKey, key, (float64(n)+0.5)/float64(dim)) // rounded down when it is read
	} else {
		m.set(model.PartialKey, key, 1)
	}
}

// mistral3 reads a file with YaRN as Ministral 3, and others as Mistral.
func (m *metadata) mistral3() {
	windowed := m.window() > 0
	beta := m.number("attention.temperature_scale", 0)
	if scaling, ok := m.config["rope_scaling"].(map[string]any); ok && scaling["rope_type"] == "yarn" {
		scaling[model.GrowthKey] = beta
		return
	}
	if beta != 0 {
		key := m.arch + ".attention.temperature_scale"
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrUnsupported,
			Detail: fmt.Sprintf("%g without rope.scaling.type yarn, whose original context it needs", beta)}})
	}
	m.set("architectures", "general.architecture", []string{"MistralForCausalLM"})
	if !windowed {
		m.set("sliding_window", m.arch+".attention.sliding_window", nil)
	}
}

// smollm3 sets every fourth layer to no rotation, as llama.cpp does for all files.
func (m *metadata) smollm3() { m.set("no_rope_layer_interval", "general.architecture", 4) }

// qwenVL ignores the keys for positions of images, which do not affect text.
func (m *metadata) qwenVL() {
	for _, key := range []string{"rope.dimension_sections", "n_deepstack_layers"} {
		m.read[m.arch+"."+key] = true
	}
	m.qwenWindow()
}

// qwenWindow reads the window of a Qwen model, which applies to all layers.
func (m *metadata) qwenWindow() {
	if m.window() > 0 {
		key := m.arch + ".attention.sliding_window"
		m.set("use_sliding_window", key, true)
		m.set("max_window_layers", key, 0)
	}
}
