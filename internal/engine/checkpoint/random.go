package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/families"
	"github.com/shoal-llm/shoal/internal/engine/model/rotary"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// RandomPrefix instead of a folder names a shape with random weights: Open("random:llama-3.2-1b").
// A path with a folder opens a file of such a name, as of ollama://random:8b.
// Nothing is read or stored; a tensor's rows are generated on demand. There is no tokenizer. It is
// for measurements.
const RandomPrefix = "random:"

// shapes lists the shapes of public models, in the Llama architecture unless they name another.
var shapes = []struct {
	name string
	c    model.Config
}{
	{"bench160m", model.Config{Hidden: 1024, Layers: 12, Heads: 16, KVHeads: 8, HeadDim: 64, FFN: 2816, Vocab: 32000, Tied: true,
		MaxPositions: 131072, NormEps: 1e-5, Rope: rotary.Rope{Theta: 500000}}},
	{"deepseek-v2-lite", latentShape(27, 102400, 10944, 64)},
	{"fry", model.Config{Hidden: 384, Layers: 8, Heads: 16, KVHeads: 8, HeadDim: 32, FFN: 1024, Vocab: 4096, Tied: true,
		MaxPositions: 8192, NormEps: 1e-5, Rope: rotary.Rope{Theta: 500000}}},
	{"gemma-4-26b-a4b", gemma4Shape()},
	{"llama-3.1-8b", model.Config{Hidden: 4096, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, FFN: 14336, Vocab: 128256,
		MaxPositions: 131072, NormEps: 1e-5,
		Rope: rotary.Rope{Theta: 500000, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}}},
	{"llama-3.2-1b", model.Config{Hidden: 2048, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, FFN: 8192, Vocab: 128256, Tied: true,
		MaxPositions: 131072, NormEps: 1e-5,
		Rope: rotary.Rope{Theta: 500000, Type: "llama3", Factor: 32, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}}},
	{"qwen3-30b-a3b", model.Config{Architecture: "Qwen3MoeForCausalLM", Hidden: 2048, Layers: 48, Heads: 32,
		KVHeads: 4, HeadDim: 128, FFN: 6144, Vocab: 151936,
		QKNorm: true, MaxPositions: 40960, NormEps: 1e-6, Rope: rotary.Rope{Theta: 1e6},
		MoE: model.MoE{Experts: 128, PerToken: 8, FFN: 768, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}}},
	{"mla-1b", latentShape(6, 32000, 5632, 16)},
	{"moe-1b", model.Config{Architecture: "Qwen3MoeForCausalLM", Hidden: 1024, Layers: 8, Heads: 16,
		KVHeads: 8, HeadDim: 64, FFN: 2816, Vocab: 32000,
		QKNorm: true, MaxPositions: 40960, NormEps: 1e-6, Rope: rotary.Rope{Theta: 1e6},
		MoE: model.MoE{Experts: 64, PerToken: 8, FFN: 512, Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}}},
	{"qwen3-0.6b", model.Config{Hidden: 1024, Layers: 28, Heads: 16, KVHeads: 8, HeadDim: 128, FFN: 3072, Vocab: 151936, Tied: true,
		QKNorm: true, MaxPositions: 40960, NormEps: 1e-6, Rope: rotary.Rope{Theta: 1e6}}},
}

// described holds further shapes, as config.json.
var described = map[string]string{
	"gemma-4-e2b":     `{"architectures": ["Gemma4ForCausalLM"], "hidden_size": 1536, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "intermediate_size": 6144, "use_double_wide_mlp": true, "num_kv_shared_layers": 20, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "vocab_size": 262144, "max_position_embeddings": 131072, "sliding_window": 512, "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "final_logit_softcapping": 30.0, "dtype": "bfloat16"}`,
	"gpt-oss-20b":     `{"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128}`,
	"qwen3.5-35b-a3b": `{"architectures": ["Qwen3_5MoeForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "max_position_embeddings": 262144}`,
}

// latentShape is DeepSeek-V2-Lite (arXiv 2405.04434, appendix B) with the given layers, ids, inner
// width of the dense first layer, and experts.
func latentShape(layers, vocab, ffn, experts int) model.Config {
	return model.Config{Architecture: "DeepseekV2ForCausalLM", Hidden: 2048, Layers: layers, Heads: 16,
		KVHeads: 1, HeadDim: 192, FFN: ffn, Vocab: vocab,
		MaxPositions: 163840, NormEps: 1e-6, Latent: model.Latent{Rank: 512, Nope: 128, Rope: 64, Value: 128},
		Rope: rotary.Rope{Theta: 10000, Type: "yarn", Factor: 40, OriginalMax: 4096, Fast: 32, Slow: 1, Amplitude: 1, MScaleAll: 0.707},
		MoE: model.MoE{Experts: experts, PerToken: 6, FFN: 1408, Shared: 2 * 1408,
			Router: model.Router{Score: model.Softmax, Scale: 1}, Dense: []int{0}}}
}

// gemma4Shape is Gemma 4 26B-A4B: heads of two widths, experts and a dense FFN in each layer.
func gemma4Shape() model.Config {
	c := model.Config{Architecture: families.Gemma4, Hidden: 2816, Layers: 30, Heads: 16, KVHeads: 8,
		HeadDim: 256, FFN: 2112, Vocab: 262144, Tied: true,
		MaxPositions: 262144, NormEps: 1e-6, QKNorm: true, VNorm: true, VFromK: true, Global: model.KVShape{Heads: 2, Dim: 512},
		ScaledEmbedding: true, QueryScale: 1, LogitCap: 30,
		Activation: tensor.GELUTanh, Rope: rotary.Rope{Theta: 1e6, Type: "proportional", Factor: 1, Part: 0.25},
		LocalRope: rotary.Rope{Theta: 1e4},
		MoE: model.MoE{Experts: 128, PerToken: 8, FFN: 704, Shared: 2112, DenseFFN: true,
			Router: model.Router{Score: model.Softmax, Normalise: true, Scale: 1}}}
	for i := range c.Layers {
		window := 1024
		if i%6 == 5 {
			window = 0
		}
		c.Windows = append(c.Windows, window)
	}
	return c
}

// Shapes lists the names that Random accepts.
func Shapes() []string {
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	return append(names, slices.Sorted(maps.Keys(described))...)
}

// Random returns a checkpoint of a public model's shape with random weights, the same on every
// machine. All dense shapes have Llama's architecture; qwen3-0.6b also has norms of queries and
// keys. moe-1b and mla-1b are not public models: their experts and latents fit on a small machine.
// The error for an unknown name lists the known ones. With NAME,swiftkv=0.5, prompts leave after
// that part of the layers; with NAME,swiftkv=0.5,group=2, also each group of 2 neighbours shares a
// cache (SwiftKV).
func Random(name string) (*Checkpoint, error) {
	shape, more, _ := strings.Cut(name, ",")
	for _, s := range shapes {
		if s.name != shape {
			continue
		}
		var err error
		if s.c.SwiftKV, err = s.c.ParseSwiftKV(more); err != nil {
			return nil, fmt.Errorf("model: shape %q: %w", name, err)
		}
		if s.c.DType = tensor.BF16; s.c.Architecture == "" {
			s.c.Architecture = "LlamaForCausalLM"
		}
		return made(name, s.c), nil
	}
	if text, ok := described[shape]; ok && more == "" {
		c, err := model.ParseConfig(name, []byte(text), nil)
		if err != nil {
			return nil, err
		}
		c.DType = tensor.BF16
		return made(name, c), nil
	}
	return nil, fmt.Errorf("model: no shape %q; known are %s (a file of the name %[3]s%[1]s is ./%[3]s%[1]s, a model of Ollama "+
		"ollama://%[3]s%[1]s)", name, strings.Join(Shapes(), ", "), RandomPrefix)
}

// made returns a checkpoint of random weights.
func made(name string, config model.Config) *Checkpoint {
	c := &Checkpoint{Dir: RandomPrefix + name, Config: config, random: map[string]model.Spec{}}
	for _, spec := range c.Config.Tensors() {
		c.random[spec.Name] = spec
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "random %s %+v arithmetic %d", name, c.Config, tensor.Arithmetic))
	c.hash = hex.EncodeToString(sum[:])
	c.readSinks()
	return c
}

// randomShape returns the shape that a name for Open has.
func randomShape(dir string) (string, bool) {
	return strings.CutPrefix(dir, RandomPrefix)
}

// makeNoise returns the source of all random tensors: uniform with variance 1.
func makeNoise() []float32 {
	n := make([]float32, 1<<16+1)
	state := uint64(1)
	for i := range n {
		state = state*6364136223846793005 + 1442695040888963407
		n[i] = (float32(state>>40)/(1<<23) - 1) * 1.7320508
	}
	return n
}

// randomTensor generates a tensor. Vectors are ones, like fresh norms. Matrices have variance
// 1/columns, so that activations keep their scale.
func (c *Checkpoint) randomTensor(s model.Spec) Tensor {
	t := Tensor{Name: s.Name, DType: c.Config.DType, Shape: s.Shape}
	if len(s.Shape) == 1 {
		t.fill = func(dst []float32, _, _ int) {
			for i := range dst {
				dst[i] = 1
			}
		}
		return t
	}
	c.noiseOnce.Do(func() { c.noise = makeNoise() })
	h := fnv.New32a()
	h.Write([]byte(s.Name))
	seed, cols := int(h.Sum32()), t.Cols()
	scale := float32(1 / math.Sqrt(float64(cols)))
	t.fill = func(dst []float32, r, lo int) {
		at := (seed + r*(cols+7919) + lo) % len(c.noise)
		for len(dst) > 0 {
			n := min(len(dst), len(c.noise)-at)
			for i, v := range c.noise[at : at+n] {
				dst[i] = v * scale
			}
			dst, at = dst[n:], 0
		}
	}
	return t
}

// Random reports whether the weights are random.
func (c *Checkpoint) Random() bool { return c.random != nil }
