package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Limits of a config: several times the largest published model, and small enough that no product
// of them overflows.
const (
	maxHidden    = 1 << 17
	maxLayers    = 1 << 10
	maxHeads     = 1 << 12
	maxHeadDim   = 1 << 12
	maxFFN       = 1 << 20
	maxVocab     = 1 << 22
	maxPositions = 1 << 27
)

// Config describes a decoder: its architecture by Hugging Face's name, and the sizes that all
// architectures share.
type Config struct {
	Architecture string // e.g. "LlamaForCausalLM"

	Hidden       int // width of the residual stream
	Layers       int
	Heads        int // query heads
	KVHeads      int // key and value heads; divides Heads
	HeadDim      int // may differ from Hidden/Heads
	FFN          int // inner width of the feed-forward network
	Vocab        int // rows of the embedding, including ids that the tokenizer does not use
	MaxPositions int // longest sequence, in tokens

	NormEps  float32 // of RMSNorm
	Tied     bool    // the head is the embedding
	Headless bool    `json:",omitempty"` // no output head: the model makes vectors, not tokens
	QKVBias  bool    // of the query, key and value projections
	OutBias  bool    // of the attention's output projection
	MLPBias  bool    // of gate, up and down
	QKNorm   bool    // RMSNorm of queries and keys, see QKNormOf
	VNorm    bool    `json:",omitempty"` // RMSNorm without weights of every value head
	VFromK   bool    `json:",omitempty"` // in layers without a window, values are the keys before norm and rotation
	Rope     rotary.Rope
	MoE      MoE    `json:",omitzero"` // experts instead of some layers' feed-forward networks
	Latent   Latent `json:",omitzero"` // latent attention; HeadDim is then the width of queries, and KVHeads is 1

	Global     KVShape         `json:",omitzero"`  // of the layers without a window, if it differs; zero: KVHeads and HeadDim, as in all layers
	OwnKV      int             `json:",omitempty"` // the first layers, which have keys and values of their own, see KVOwner; 0: all
	WideFFN    bool            `json:",omitempty"` // the layers after OwnKV have twice the FFN width
	PerLayer   PerLayer        `json:",omitzero"`  // inputs that each layer gets besides the residual stream
	Delta      recurrent.Mixer `json:",omitzero"`  // instead of attention in some layers
	OutputGate bool            `json:",omitempty"` // attention's output is multiplied by a sigmoid gate

	SwiftKV SwiftKV `json:",omitzero"` // where later layers take their keys and values from

	// Windows is the sliding window of each layer; 0: the layer attends to everything; nil: all
	// layers do. See Window.
	Windows    []int       `json:",omitempty"`
	NonCausal  bool        `json:",omitempty"` // every token attends to the whole text, or with a window to both sides: tokens at a distance below it
	Chunked    bool        `json:",omitempty"` // windows are chunks of the text, see Window
	LocalRope  rotary.Rope `json:",omitzero"`  // of the layers with a window; zero: like Rope
	Rotated    int         `json:",omitempty"` // first elements of a head that rotate; 0: all
	Neighbours bool        `json:",omitempty"` // rotated pairs are stored as elements 2i and 2i+1, see Order
	Growth     Growth      `json:",omitzero"`  // of queries with their position
	Unrotated  []int       `json:",omitempty"` // layers without rotary positions, ascending

	Activation      tensor.Activation `json:",omitempty"` // of the FFN's gate
	NormsAddOne     bool              `json:",omitempty"` // norms multiply by 1 + weight
	ScaledEmbedding bool              `json:",omitempty"` // see EmbeddingScale
	TrainedAs       tensor.DType      `json:",omitempty"` // the type to which EmbeddingScale is rounded; 0: the stored type
	QueryScale      float64           `json:",omitempty"` // see AttentionScale
	LogitCap        float32           `json:",omitempty"` // c: logits are c tanh(logits/c); 0: none
	ScoreCap        float32           `json:",omitempty"` // the same for attention scores
	SinkScores      bool              `json:",omitempty"` // attention has sinks, see tensor.Score
	Sinks           [][]float32       `json:"-"`          // of each cache, if SinkScores; Open reads them from the weights
	Multipliers     Multipliers       `json:",omitzero"`
	QKNormOf        QKNormOf          `json:",omitempty"` // what QKNorm normalises
	UnitNorm        bool              `json:",omitempty"` // see LayerSpec.UnitNorm
	MeanNorm        bool              `json:",omitempty"` // norms of x subtract the mean first (LayerNorm)
	Parallel        bool              `json:",omitempty"` // the FFN reads what attention reads, not its result
	PostNorm        bool              `json:",omitempty"` // the residual stream continues from a norm's result, not from its input (encoders)
	NormBias        bool              `json:",omitempty"` // norms add a bias
	Inputs          Inputs            `json:",omitzero"`  // what is added to the embedding of a token

	BOS []int32 // first token of a sequence; empty: none
	EOS []int32 // tokens that end an answer: those of generation_config.json, then further ones of config.json

	Quantised *quantform.Settings `json:",omitempty"` // the form in which weights are published; nil: as plain numbers

	// DType is the weights' type according to the config; without one, Open takes that of the
	// embedding. Tensors may have other types.
	DType tensor.DType

	// Warnings name parts of the files that are not used, for the user.
	Warnings []error `json:"-"`
}

// QKNormOf is what the norms of queries and keys normalise.
type QKNormOf uint8

const (
	OfHeads        QKNormOf = iota // each head
	OfProjection                   // all heads of a token together
	OfRotatedHeads                 // each head, after rotation instead of before
	OfOwnHeads                     // each head, with weights of its own and its mean subtracted (LayerNorm)
)

// Multipliers are factors of a family; 0 counts as 1.
type Multipliers struct {
	Embedding float32 `json:",omitempty"` // of the embedding's rows
	Residual  float32 `json:",omitempty"` // of what attention and FFN add to the residual stream
	Logits    float32 `json:",omitempty"` // of the logits, before LogitCap
}

// ParseConfig parses config.json and generation_config.json (nil if there is none). dir only names
// the files in errors. It accepts the forms of transformers 4 (rope_theta, rope_scaling,
// torch_dtype) and 5 (rope_parameters, dtype). A setting that changes the arithmetic and is not
// implemented is refused, never ignored.
func ParseConfig(dir string, config, generation []byte) (Config, error) {
	f, err := parseFields(join(dir, configFile), config)
	if err != nil {
		return Config{}, err
	}
	name := f.architecture()
	if f.err != nil {
		return Config{}, f.err
	}
	given := name
	if w, ok := nested[name]; ok {
		if f, name, err = f.unwrap(w); err != nil {
			return Config{}, err
		}
	}
	arch, ok := lookup(name)
	body, both, headless := bodyOf(name)
	if !ok && headless {
		arch, ok = lookup(body)
	} else {
		headless, both = false, false
	}
	if !ok {
		return Config{}, &Error{File: f.file, Field: "architectures", Kind: ErrUnknownArch,
			Detail: fmt.Sprintf("architecture %q is not supported; known: %s", clip(given), strings.Join(Architectures(), ", "))}
	}
	c := Config{Architecture: arch.Name, Headless: headless, NonCausal: both}
	f.alias(arch.aliases)
	f.assume(arch.defaults)
	readShape(f, &c, arch.latent)
	readDType(f, &c)
	readQuantised(f, &c)
	arch.read(f, &c)
	f.readDirection(&c)
	f.checkHeads(&c)
	if f.err != nil {
		return Config{}, f.err
	}
	c.BOS = f.Tokens("bos_token_id", &c)
	c.EOS = f.Tokens("eos_token_id", &c)
	if f.err == nil && generation != nil {
		f.err = readGeneration(dir, generation, &c)
	}
	if f.err != nil {
		return Config{}, f.err
	}
	return c, nil
}

// architecture is the name in "architectures"; without one, that of "model_type".
func (f *fields) architecture() string {
	var names []string
	f.get("architectures", &names, "a list of names")
	if f.err == nil && len(names) == 0 {
		if name, ok := architectureOf[f.Text("model_type", "")]; ok {
			return name
		}
	}
	if f.err == nil && len(names) != 1 {
		f.fail("architectures", ErrFormat, "%d names, want exactly one of: %s", len(names), strings.Join(Architectures(), ", "))
	}
	if f.err != nil {
		return ""
	}
	return names[0]
}

// architectureOf maps each model_type of transformers to its decoder.
var architectureOf = map[string]string{
	"deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM", "deepseek_v32": deepseek32,
	"exaone4": "Exaone4ForCausalLM", "seed_oss": "SeedOssForCausalLM", "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
	"cohere": "CohereForCausalLM", "cohere2": "Cohere2ForCausalLM", "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM",
	"granite": "GraniteForCausalLM", "gemma": "GemmaForCausalLM", "gemma2": "Gemma2ForCausalLM",
	"gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": gemma3,
	"gpt_oss": gptOss,
	"gemma4":  "Gemma4ForConditionalGeneration", "gemma4_text": gemma4, "gemma4_unified": "Gemma4UnifiedForConditionalGeneration", "gemma4_unified_text": gemma4Unified,
	"llama": "LlamaForCausalLM", "llama_swiftkv": "LlamaSwiftKVForCausalLM",
	"mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM", "phi3": "Phi3ForCausalLM",
	"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
	"mistral3": "Mistral3ForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
	"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration", "smollm3": "SmolLM3ForCausalLM",
	"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_text": "Qwen3_5ForCausalLM", "qwen3_next": "Qwen3NextForCausalLM",
	"qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
	"minimax_m2": "MiniMaxM2ForCausalLM", "olmoe": "OlmoeForCausalLM", "granitemoe": "GraniteMoeForCausalLM", "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
	"hy_v3": "HYV3ForCausalLM", "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
	"glm4_moe": "Glm4MoeForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM",
	"glm4_moe_lite": "Glm4MoeLiteForCausalLM", "kimi_k2": "DeepseekV3ForCausalLM", "kimi_k25": "KimiK25ForConditionalGeneration",
	"llama4": "Llama4ForConditionalGeneration", "llama4_text": llama4,
	"lfm2": "Lfm2ForCausalLM", "lfm2_moe": lfm2MoE, "granitemoehybrid": graniteHybrid,
	"ernie4_5": "Ernie4_5ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM", "ministral3": "Ministral3ForCausalLM",
}

const kvHeads = "num_key_value_heads"

// readShape reads the sizes, under the names of Llama that its successors kept. The read function of
// a family with latent attention sets HeadDim.
func readShape(f *fields, c *Config, latent bool) {
	c.Hidden = f.Size("hidden_size", 0, maxHidden)
	c.Layers = f.Size("num_hidden_layers", 0, maxLayers)
	c.Heads = f.Size("num_attention_heads", 0, maxHeads)
	c.KVHeads = f.Size(kvHeads, c.Heads, maxHeads)
	c.FFN = f.Size("intermediate_size", 0, maxFFN)
	c.Vocab = f.Size("vocab_size", 0, maxVocab)
	c.MaxPositions = f.Size("max_position_embeddings", 2048, maxPositions)
	c.NormEps = float32(f.Number("rms_norm_eps", 1e-6, 1e-12, 0.1))
	if f.err != nil {
		return
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		f.fail("num_key_value_heads", ErrFormat, "%d does not divide the %d attention heads", c.KVHeads, c.Heads)
	case latent:
	case f.has("kv_lora_rank"):
		f.fail("kv_lora_rank", ErrUnsupported, "latent attention is not implemented for this family")
	case !f.has("head_dim") && c.Hidden%c.Heads != 0:
		f.fail("num_attention_heads", ErrFormat, "%d does not divide the hidden size %d, and there is no head_dim", c.Heads, c.Hidden)
	default:
		c.HeadDim = f.Size("head_dim", max(1, c.Hidden/c.Heads), maxHeadDim)
	}
	if f.err == nil && c.HeadDim%2 != 0 {
		f.fail("head_dim", ErrUnsupported, "%d is odd; rotary positions need pairs", c.HeadDim)
	}
}

// checkHeads refuses widths of heads that no cache can store.
func (f *fields) checkHeads(c *Config) {
	if f.err != nil {
		return
	}
	key := "head_dim"
	switch {
	case c.Latent.Rank > 0:
		key = "kv_lora_rank"
	case c.Global.Dim > 0:
		key = "global_head_dim"
	}
	if err := c.CacheLayout(tensor.BF16).Validate(); err != nil {
		f.fail(key, ErrUnsupported, "%v", err)
	}
	if local := c.LocalLayout(tensor.BF16); local != (tensor.KVLayout{}) {
		if err := local.Validate(); err != nil {
			f.fail("head_dim", ErrUnsupported, "%v", err)
		}
	}
}

func readDType(f *fields, c *Config) {
	key := "torch_dtype"
	if f.has("dtype") {
		key = "dtype"
	}
	if !f.has(key) {
		return
	}
	switch f.OneOf(key, "float32", "float32", "bfloat16", "float16") {
	case "float32":
		c.DType = tensor.F32
	case "bfloat16":
		c.DType = tensor.BF16
	case "float16":
		c.DType = tensor.F16
	}
}

// readGeneration puts the end tokens of generation_config.json first. There chat models name the
// end of a turn; config.json may name only the end of a document. Both end an answer.
func readGeneration(dir string, data []byte, c *Config) error {
	g, err := parseFields(join(dir, generationFile), data)
	if err != nil {
		return err
	}
	eos := g.Tokens("eos_token_id", c)
	if bos := g.Tokens("bos_token_id", c); bos != nil {
		c.BOS = bos
	}
	for _, id := range c.EOS {
		if !slices.Contains(eos, id) {
			eos = append(eos, id)
		}
	}
	c.EOS = eos
	return g.err
}
