package modeltest

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
)

// family describes the converter's output for one architecture.
type family struct {
	arch   string
	pairs  bool              // rows of queries and keys are pairs of neighbours
	names  *strings.Replacer // of a block's tensors, applied before the common ones
	keys   func(g *GGUF, m *model.Config)
	shift  bool // the norms' weights include the 1
	halves bool // KVUp is split in two
}

var families = map[string]family{
	"LlamaForCausalLM":    {arch: "llama", pairs: true},
	"MistralForCausalLM":  {arch: "llama", pairs: true, keys: windowKey("llama")},
	"MixtralForCausalLM":  {arch: "llama", pairs: true},
	"Llama4ForCausalLM":   {arch: "llama4", names: llama4Names, keys: llama4Keys},
	"Ernie4_5ForCausalLM": {arch: "ernie4_5"},
	"Glm4ForCausalLM": {arch: "glm4", names: strings.NewReplacer("mlp.gate_up_proj", "ffn_up", "post_self_attn_layernorm",
		"post_attention_norm", "post_mlp_layernorm", "post_ffw_norm")},
	"Ministral3ForCausalLM": {arch: "mistral3", pairs: true, keys: mistral3Keys},
	"SmolLM3ForCausalLM":    {arch: "smollm3", pairs: true},
	"Phi3ForCausalLM": {arch: "phi3", names: strings.NewReplacer("self_attn.qkv_proj", "attn_qkv", "mlp.gate_up_proj", "ffn_up"),
		keys: phi3Keys},
	"Qwen2ForCausalLM": {arch: "qwen2"},
	"Qwen3ForCausalLM": {arch: "qwen3"},
	"Qwen3MoeForCausalLM": {arch: "qwen3moe",
		keys: func(g *GGUF, m *model.Config) { g.Set("qwen3moe.expert_feed_forward_length", m.MoE.FFN) }},
	"Qwen3_5ForCausalLM":          {arch: "qwen35", names: qwen35Names, keys: qwen35Keys("qwen35"), shift: true},
	"Qwen3_5MoeForCausalLM":       {arch: "qwen35moe", names: qwen35Names, keys: qwen35Keys("qwen35moe"), shift: true},
	"Qwen3NextForCausalLM":        {arch: "qwen3next", names: qwen35Names, keys: qwen35Keys("qwen3next"), shift: true},
	"Lfm2ForCausalLM":             {arch: "lfm2", names: lfm2Names, keys: lfm2Keys("lfm2.")},
	"Lfm2MoeForCausalLM":          {arch: "lfm2moe", names: lfm2Names, keys: lfm2Keys("lfm2moe.")},
	"GraniteMoeHybridForCausalLM": {arch: "granitehybrid", names: graniteHybridNames, keys: graniteHybridKeys, pairs: true},
	"FalconH1ForCausalLM":         {arch: "falcon-h1", names: falconNames, keys: falconKeys},
	"NemotronHForCausalLM":        {arch: "nemotron_h", names: nemotronNames, keys: nemotronKeys},
	"GraniteForCausalLM":          {arch: "granite", keys: graniteKeys("granite."), pairs: true},
	"GemmaForCausalLM":            {arch: "gemma", shift: true},
	"Gemma2ForCausalLM":           {arch: "gemma2", names: gemmaNames, keys: gemma2Keys, shift: true},
	"Gemma3ForCausalLM":           {arch: "gemma3", names: gemmaNames, keys: gemmaKeys, shift: true},
	"Gemma4ForCausalLM":           {arch: "gemma4", names: gemma4Names, keys: gemma4Keys},
	"DeepseekV2ForCausalLM":       {arch: "deepseek2", names: deepseekNames, keys: deepseekKeys, halves: true},
	"DeepseekV3ForCausalLM":       {arch: "deepseek2", names: deepseekNames, keys: deepseekKeys, halves: true},

	"GptOssForCausalLM": {arch: "gpt-oss", names: strings.NewReplacer("post_attention_layernorm", "post_attention_norm",
		"self_attn.sinks", "attn_sinks.weight", "mlp.router.", "ffn_gate_inp."), keys: gptOssKeys},
	"MiniMaxM2ForCausalLM": {arch: "minimax-m2", names: strings.NewReplacer("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"),
		keys: expertKeys("minimax-m2.")},
	"OlmoeForCausalLM":        {arch: "olmoe"},
	"GraniteMoeForCausalLM":   {arch: "granitemoe", pairs: true, keys: graniteKeys("granitemoe.")},
	"Ernie4_5_MoeForCausalLM": {arch: "ernie4_5-moe", names: sharedNames, keys: expertKeys("ernie4_5-moe.")},
	"HunYuanMoEV1ForCausalLM": {arch: "hunyuan-moe", names: sharedNames, keys: expertKeys("hunyuan-moe.")},
	"Glm4MoeForCausalLM":      {arch: "glm4moe", names: glm4MoENames, keys: expertKeys("glm4moe.")},

	"Olmo2ForCausalLM":   {arch: "olmo2", names: gemmaNames},
	"Olmo3ForCausalLM":   {arch: "olmo2", names: gemmaNames, keys: windowKey("olmo2")},
	"Exaone4ForCausalLM": {arch: "exaone4", names: gemmaNames, keys: windowKey("exaone4")},
	"SeedOssForCausalLM": {arch: "seed_oss", names: strings.NewReplacer("post_attention_layernorm", "post_attention_norm")},
	"HunYuanDenseV1ForCausalLM": {arch: "hunyuan-dense",
		names: strings.NewReplacer("self_attn.query_layernorm", "attn_q_norm", "self_attn.key_layernorm", "attn_k_norm")},
	"CohereForCausalLM":  {arch: "command-r", keys: cohereKeys("command-r.")},
	"Cohere2ForCausalLM": {arch: "cohere2", keys: cohereKeys("cohere2.")},
}

// Convert writes a checkpoint like llama.cpp's converter, with its names of metadata and tensors.
// Llama's query and key rows are reordered to pairs of neighbours. llama3 scaling becomes a tensor
// of factors, experts are stacked, and the latent's projections are split in two. typ chooses the
// type of each matrix by its GGUF name; vectors are F32. The tokenizer is left out: see Vocabulary.
func Convert(c *checkpoint.Checkpoint, typ func(name string) gguf.Type) *GGUF {
	g, m := &GGUF{}, c.Config
	f := families[m.Architecture]
	if arch := f.arch; arch == "granitehybrid" && m.MoE.Experts > 0 {
		f.names = graniteHybridExpertNames
	}
	if len(m.MoE.Dense) < m.Layers && m.MoE.Ungated {
		f.arch = "nemotron_h_moe"
	}
	arch := f.arch
	g.Set("general.architecture", arch)
	g.Set("general.name", "test")
	for _, kv := range []struct {
		key string
		n   int
	}{{"block_count", m.Layers}, {"context_length", m.MaxPositions}, {"embedding_length", m.Hidden}, {"feed_forward_length", m.FFN},
		{"attention.head_count", m.Heads}, {"attention.head_count_kv", m.KVHeads}, {"attention.key_length", m.HeadDim},
		{"attention.value_length", m.HeadDim}, {"rope.dimension_count", cmp.Or(m.Rotated, m.HeadDim)}, {"vocab_size", m.Vocab}} {
		if kv.n == m.Hidden/m.Heads && m.HeadDim == kv.n && strings.HasPrefix(kv.key, "attention.") && kv.key != "attention.head_count" &&
			kv.key != "attention.head_count_kv" {
			continue // the converter writes a head's width only if it does not follow from others
		}
		if f.halves && (strings.HasSuffix(kv.key, "_length") && strings.HasPrefix(kv.key, "attention.") || kv.key == "rope.dimension_count") {
			continue // see deepseekKeys
		}
		g.Set(arch+"."+kv.key, kv.n)
	}
	g.Set(arch+".attention.layer_norm_rms_epsilon", m.NormEps)
	g.Set(arch+".rope.freq_base", float32(m.Rope.Theta))
	if m.Rope.Type == "linear" {
		g.Set(arch+".rope.scaling.type", "linear")
		g.Set(arch+".rope.scaling.factor", float32(m.Rope.Factor))
	}
	if len(m.BOS) > 0 {
		g.Set("tokenizer.ggml.bos_token_id", uint32(m.BOS[0]))
	}
	if len(m.EOS) > 0 {
		g.Set("tokenizer.ggml.eos_token_id", uint32(m.EOS[0]))
	}
	if m.Rope.Type == "llama3" {
		g.Add("rope_freqs.weight", gguf.F32, []int{m.HeadDim / 2}, Quantize(gguf.F32, factors(m)))
	}
	if e := m.MoE; e.Experts > 0 {
		g.Set(arch+".expert_count", e.Experts)
		g.Set(arch+".expert_used_count", e.PerToken)
	}
	if f.keys != nil {
		f.keys(g, &m)
	}
	experts, stacks := expertNames(&m), map[string][]float32{}
	for _, spec := range c.Config.Tensors() {
		t, err := c.Tensor(spec.Name)
		if err != nil {
			panic(err)
		}
		name, expert := experts[spec.Name]
		if name == "" {
			name = ggufName(f, spec.Name)
		}
		width, kind := t.Cols(), gguf.F32
		if len(t.Shape) > 1 && !strings.HasSuffix(name, ".bias") {
			kind = typ(name)
		}
		all := make([]float32, t.Elements())
		for r := range t.Rows() {
			t.Row(all[r*width:(r+1)*width], r, 0, width)
		}
		if shape := t.Shape; expert && len(shape) == 2 && strings.HasSuffix(name, "_exps.weight") {
			stacks[name] = append(stacks[name], all...)
			if strings.Contains(name, "gate_up") {
				shape = []int{2 * shape[0], shape[1]}
			}
			if n := len(stacks[name]) / (shape[0] * shape[1]); n == m.MoE.Experts && len(stacks[name]) == n*shape[0]*shape[1] {
				g.Add(name, kind, append([]int{n}, shape...), Quantize(kind, stacks[name]))
			}
			continue
		}
		if f.halves && strings.Contains(name, ".attn_kv_b.") {
			addHalves(g, strings.TrimSuffix(name, "kv_b.weight"), &m, all, kind)
			continue
		}
		if arch == "falcon-h1" {
			multiply(&m, name, all, width)
		}
		if m.Delta.Kind == recurrent.GatedDelta && m.Recurrent(blockOf(name)) && addDelta(g, &m, name, t, all, kind) ||
			m.Delta.Kind != recurrent.GatedDelta && addHybrid(g, &m, name, all) {
			continue
		}
		if f.shift && strings.HasSuffix(name, "norm.weight") && !strings.Contains(name, "ssm_norm") {
			for i := range all {
				all[i]++
			}
		}
		if f.pairs && (strings.Contains(name, "attn_q.") || strings.Contains(name, "attn_k.")) {
			if len(t.Shape) == 1 {
				width = 1
			}
			all = permute(all, len(all)/width/m.HeadDim, m.HeadDim, width)
		}
		shape := t.Shape
		if m.QKNormOf == model.OfOwnHeads && (strings.HasSuffix(name, "attn_q_norm.weight") || strings.HasSuffix(name, "attn_k_norm.weight")) {
			shape = []int{len(all) / m.HeadDim, m.HeadDim}
		}
		g.Add(name, kind, shape, Quantize(kind, all))
	}
	return g
}

// permute is reshape(heads, 2, dim/2, width).swapaxes(1, 2).
func permute(v []float32, heads, dim, width int) []float32 {
	out := make([]float32, 0, len(v))
	for h := range heads {
		for i := range dim / 2 {
			for half := range 2 {
				row := h*dim + half*dim/2 + i
				out = append(out, v[row*width:(row+1)*width]...)
			}
		}
	}
	return out
}

// factors returns the converter's result for rope_scaling "llama3".
func factors(m model.Config) []float32 {
	r, out := m.Rope, make([]float32, m.HeadDim/2)
	for i := range out {
		wave := 2 * math.Pi * math.Pow(r.Theta, 2*float64(i)/float64(m.HeadDim))
		switch {
		case wave < float64(r.OriginalMax)/r.HighFreq:
			out[i] = 1
		case wave > float64(r.OriginalMax)/r.LowFreq:
			out[i] = float32(r.Factor)
		default:
			smooth := (float64(r.OriginalMax)/wave - r.LowFreq) / (r.HighFreq - r.LowFreq)
			out[i] = float32(1 / ((1-smooth)/r.Factor + smooth))
		}
	}
	return out
}

var ggufParts = strings.NewReplacer("input_layernorm", "attn_norm", "self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k",
	"self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output", "self_attn.q_norm", "attn_q_norm", "self_attn.k_norm", "attn_k_norm",
	"post_attention_layernorm", "ffn_norm", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up",
	"mlp.down_proj", "ffn_down", "model.layers.", "blk.")

func ggufName(f family, name string) string {
	switch name {
	case model.Embedding:
		return "token_embd.weight"
	case model.FinalNorm:
		return "output_norm.weight"
	case model.Head:
		return "output.weight"
	}
	if top, ok := perLayerNames[name]; ok {
		return top
	}
	if !strings.HasPrefix(name, "model.layers.") {
		panic(fmt.Sprintf("modeltest: GGUF has no name for %s", name))
	}
	if f.names != nil {
		name = f.names.Replace(name)
	}
	return ggufParts.Replace(name)
}

// expertNames maps the tensors of layers with experts to the GGUF tensors that hold them.
func expertNames(c *model.Config) map[string]string {
	names := map[string]string{}
	for i := range c.Layers {
		if !c.Sparse(i) {
			continue
		}
		n, block := c.Layer(i).Experts, fmt.Sprintf("blk.%d.ffn_", i)
		if c.Blocks != nil {
			block = fmt.Sprintf("blk.%d.ffn_", c.Blocks[i].FFN)
		}
		names[n.Router] = block + "gate_inp.weight"
		if b := n.Biases; b != nil {
			names[b.Router], names[b.Gate], names[b.Up], names[b.Down] = block+"gate_inp.bias", block+"gate_exps.bias",
				block+"up_exps.bias", block+"down_exps.bias"
		}
		for e := range c.MoE.Experts {
			gate, up, down := n.Expert(e)
			names[gate], names[up], names[down] = block+"gate_exps.weight", block+"up_exps.weight", block+"down_exps.weight"
			if c.MoE.Ungated {
				names[gate] = block + "up_exps.weight"
			}
			if c.MoE.DenseFFN { // as the converter writes Gemma 4's
				names[gate], names[up] = block+"gate_up_exps.weight", block+"gate_up_exps.weight"
			}
		}
	}
	return names
}

// blockOf returns the number of a tensor's block; -1: it is outside of them.
func blockOf(name string) int {
	number, _, _ := strings.Cut(strings.TrimPrefix(name, "blk."), ".")
	if i, err := strconv.Atoi(number); err == nil {
		return i
	}
	return -1
}
