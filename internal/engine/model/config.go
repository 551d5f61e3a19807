package model

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Files of a Hugging Face folder that describe the model.
const (
	ConfigFile     = "config.json"
	GenerationFile = "generation_config.json"
)

// Limits of a config: several times the largest published model, and small enough that no product
// of them overflows.
const (
	MaxHidden    = 1 << 17
	MaxLayers    = 1 << 10
	MaxHeads     = 1 << 12
	MaxHeadDim   = 1 << 12
	MaxFFN       = 1 << 20
	MaxVocab     = 1 << 22
	MaxPositions = 1 << 27
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

	Global     KVShape           `json:",omitzero"`  // of the layers without a window, if it differs; zero: KVHeads and HeadDim, as in all layers
	OwnKV      int               `json:",omitempty"` // the first layers, which have keys and values of their own, see KVOwner; 0: all
	WideFFN    bool              `json:",omitempty"` // the layers after OwnKV have twice the FFN width
	PerLayer   PerLayer          `json:",omitzero"`  // inputs that each layer gets besides the residual stream
	Delta      recurrent.Mixer   `json:",omitzero"`  // instead of attention in some layers
	OutputGate bool              `json:",omitempty"` // attention's output is multiplied by a sigmoid gate
	Blocks     []recurrent.Block `json:",omitempty"` // the blocks of files that each layer combines; nil: a layer is a block

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
	QKNormOf        QKNormOf          `json:",omitempty"` // vector that QKNorm normalises
	UnitNorm        bool              `json:",omitempty"` // see LayerSpec.UnitNorm
	MeanNorm        bool              `json:",omitempty"` // norms of x subtract the mean first (LayerNorm)
	Parallel        bool              `json:",omitempty"` // the FFN reads the input of attention, not its result
	PostNorm        bool              `json:",omitempty"` // the residual stream continues from a norm's result, not from its input (encoders)
	NormBias        bool              `json:",omitempty"` // norms add a bias
	Inputs          Inputs            `json:",omitzero"`  // vectors that are added to the embedding of a token

	BOS []int32 // first token of a sequence; empty: none
	EOS []int32 // tokens that end an answer: those of generation_config.json, then further ones of config.json

	Quantized *quantform.Settings `json:",omitempty"` // the form in which weights are published; nil: as plain numbers

	// DType is the weights' type according to the config; without one, Open takes that of the
	// embedding. Tensors may have other types.
	DType tensor.DType

	// Warnings name parts of the files that are not used, for the user.
	Warnings []error `json:"-"`
}

// QKNormOf is the vector that the norms of queries and keys normalise.
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
	Residual  float32 `json:",omitempty"` // of the terms of attention and FFN in the residual stream
	State     float32 `json:",omitempty"` // of the term of a mixer with a state (Falcon-H1)
	Attention float32 `json:",omitempty"` // of the term of attention (Falcon-H1)
	FFN       float32 `json:",omitempty"` // of the term of the FFN (Falcon-H1)
	Gate      float32 `json:",omitempty"` // of the FFN's gate before its activation (Falcon-H1)
	Logits    float32 `json:",omitempty"` // of the logits, before LogitCap
}

// ParseConfig parses config.json and generation_config.json (nil if there is none). dir only names
// the files in errors. It accepts the forms of transformers 4 (rope_theta, rope_scaling,
// torch_dtype) and 5 (rope_parameters, dtype). A setting that changes the arithmetic and is not
// implemented is refused, never ignored.
func ParseConfig(dir string, config, generation []byte) (Config, error) {
	f, err := ParseFields(filepath.Join(dir, ConfigFile), config)
	if err != nil {
		return Config{}, err
	}
	name := f.architecture()
	if f.Err != nil {
		return Config{}, f.Err
	}
	given := name
	if w, ok := nested[name]; ok {
		if f, name, err = f.unwrap(w); err != nil {
			return Config{}, err
		}
	}
	arch, ok := Lookup(name)
	body, both, headless := bodyOf(name)
	if !ok && headless {
		arch, ok = Lookup(body)
	} else {
		headless, both = false, false
	}
	if !ok {
		return Config{}, &Error{File: f.file, Field: "architectures", Kind: ErrUnknownArch,
			Detail: fmt.Sprintf("architecture %q is not supported; known: %s", Clip(given), strings.Join(Architectures(), ", "))}
	}
	c := Config{Architecture: arch.Name, Headless: headless, NonCausal: both}
	f.alias(arch.Aliases)
	f.Assume(arch.Defaults)
	readShape(f, &c, arch.Latent)
	readDType(f, &c)
	readQuantized(f, &c)
	arch.Read(f, &c)
	f.readDirection(&c)
	f.checkHeads(&c)
	if f.Err != nil {
		return Config{}, f.Err
	}
	c.BOS = f.Tokens("bos_token_id", &c)
	c.EOS = f.Tokens("eos_token_id", &c)
	if f.Err == nil && generation != nil {
		f.Err = readGeneration(dir, generation, &c)
	}
	if f.Err != nil {
		return Config{}, f.Err
	}
	return c, nil
}

// architecture returns the name in "architectures"; without one, that of "model_type".
func (f *Fields) architecture() string {
	var names []string
	f.Get("architectures", &names, "a list of names")
	if f.Err == nil && len(names) == 0 {
		if name, ok := architectureOf[f.Text("model_type", "")]; ok {
			return name
		}
	}
	if f.Err == nil && len(names) != 1 {
		f.Fail("architectures", ErrFormat, "%d names, want exactly one of: %s", len(names), strings.Join(Architectures(), ", "))
	}
	if f.Err != nil {
		return ""
	}
	return names[0]
}

const kvHeads = "num_key_value_heads"

// readShape reads the sizes, under the names of Llama that its successors kept. The read function of
// a family with latent attention sets HeadDim.
func readShape(f *Fields, c *Config, latent bool) {
	c.Hidden = f.Size("hidden_size", 0, MaxHidden)
	c.Layers = f.Size("num_hidden_layers", 0, MaxLayers)
	c.Heads = f.Size("num_attention_heads", 0, MaxHeads)
	c.KVHeads = f.Size(kvHeads, c.Heads, MaxHeads)
	c.FFN = f.Size("intermediate_size", 0, MaxFFN)
	c.Vocab = f.Size("vocab_size", 0, MaxVocab)
	c.MaxPositions = f.Size("max_position_embeddings", 2048, MaxPositions)
	c.NormEps = float32(f.Number("rms_norm_eps", 1e-6, 1e-12, 0.1))
	if f.Err != nil {
		return
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		f.Fail("num_key_value_heads", ErrFormat, "%d does not divide the %d attention heads", c.KVHeads, c.Heads)
	case latent:
	case f.Has("kv_lora_rank"):
		f.Refuse("kv_lora_rank", "latent attention is not implemented for this family")
	case !f.Has("head_dim") && c.Hidden%c.Heads != 0:
		f.Fail("num_attention_heads", ErrFormat, "%d does not divide the hidden size %d, and there is no head_dim", c.Heads, c.Hidden)
	default:
		c.HeadDim = f.Size("head_dim", max(1, c.Hidden/c.Heads), MaxHeadDim)
	}
	if f.Err == nil && c.HeadDim%2 != 0 {
		f.Refuse("head_dim", "%d is odd; rotary positions need pairs", c.HeadDim)
	}
}

// checkHeads refuses widths of heads that no cache can store.
func (f *Fields) checkHeads(c *Config) {
	if f.Err != nil {
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
		f.Refuse(key, "%v", err)
	}
	if local := c.LocalLayout(tensor.BF16); local != (tensor.KVLayout{}) {
		if err := local.Validate(); err != nil {
			f.Refuse("head_dim", "%v", err)
		}
	}
}

func readDType(f *Fields, c *Config) {
	key := "torch_dtype"
	if f.Has("dtype") {
		key = "dtype"
	}
	if !f.Has(key) {
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
	g, err := ParseFields(filepath.Join(dir, GenerationFile), data)
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
	return g.Err
}
