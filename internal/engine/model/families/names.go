package families

import "github.com/shoal-llm/shoal/internal/engine/model"

func init() { model.RegisterNames(types, wrappers) }

// types has the architecture of each model_type of transformers.
var types = map[string]string{
	"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "deepseek_v32": DeepseekV32,
	"exaone4": "Exaone4ForCausalLM", "seed_oss": "SeedOssForCausalLM", "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
	"cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM",
	"granite": "GraniteForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
	"gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": Gemma3,
	"gpt_oss": GptOss,
	"gemma4":  "Gemma4ForConditionalGeneration", "gemma4_text": Gemma4, "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
	"gemma4_unified_text": Gemma4Unified,
	"llama":               "LlamaForCausalLM", "llama_swiftkv": "LlamaSwiftKVForCausalLM",
	"mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM", "phi3": "Phi3ForCausalLM",
	"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
	"mistral3": "Mistral3ForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration",
	"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
	"qwen3_vl":   "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration", "smollm3": "SmolLM3ForCausalLM",
	"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_next": "Qwen3NextForCausalLM",
	"qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
	"minimax_m2": "MiniMaxM2ForCausalLM", "olmoe": "OlmoeForCausalLM", "granitemoe": "GraniteMoeForCausalLM",
	"ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
	"hy_v3":        "HYV3ForCausalLM", "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
	"glm4_moe": "Glm4MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
	"glm_moe_dsa": "GlmMoeDsaForCausalLM", "glm4_moe_lite": "Glm4MoeLiteForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM",
	"kimi_k25": "KimiK25ForConditionalGeneration",
	"llama4":   "Llama4ForConditionalGeneration", "llama4_text": Llama4,
	"lfm2": "Lfm2ForCausalLM", "lfm2_moe": LFM2MoE, "granitemoehybrid": GraniteHybrid, "falcon_h1": FalconH1, "nemotron_h": NemotronH,
	"ernie4_5": "Ernie4_5ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM", "ministral3": "Ministral3ForCausalLM",
}

// wrappers lists the multimodal architectures. In Qwen's, a token has three positions, which are equal for text: see
// PlainPositions.
var wrappers = map[string]model.Wrapper{
	"Gemma3ForConditionalGeneration":        {Decoder: Gemma3},
	"Gemma4ForConditionalGeneration":        {Decoder: Gemma4},
	"Gemma4UnifiedForConditionalGeneration": {Decoder: Gemma4Unified},
	"Llama4ForConditionalGeneration":        {Decoder: Llama4},
	"Mistral3ForConditionalGeneration":      {},
	"KimiK25ForConditionalGeneration":       {},
	"Qwen2VLForConditionalGeneration": {Decoder: "Qwen2ForCausalLM", Flat: true, AnyTie: true,
		Assumed: map[string]string{"rms_norm_eps": "1e-5", "max_window_layers": "80"}},
	"Qwen2_5_VLForConditionalGeneration": {Decoder: "Qwen2ForCausalLM", Flat: true, AnyTie: true,
		Assumed: map[string]string{"rms_norm_eps": "1e-5", "max_window_layers": "80"}},
	"Qwen3_5MoeForConditionalGeneration": {Decoder: "Qwen3_5MoeForCausalLM"},
	"Qwen3_5ForConditionalGeneration":    {Decoder: "Qwen3_5ForCausalLM"},
	"Qwen3VLForConditionalGeneration":    {Decoder: "Qwen3ForCausalLM", Assumed: map[string]string{"max_position_embeddings": "128000"}},
	"Qwen3VLMoeForConditionalGeneration": {Decoder: "Qwen3MoeForCausalLM",
		Assumed: map[string]string{"max_position_embeddings": "128000", "norm_topk_prob": "true"}},
}
