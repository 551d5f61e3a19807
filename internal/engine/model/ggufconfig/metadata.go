package ggufconfig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/quantform"
)

// Read reads the config from metadata. It writes an equivalent config.json and parses it with
// ParseConfig, so that both formats have the same limits and refusals. Errors name the metadata
// key.
func Read(f *gguf.File, tensors []gguf.Tensor) (model.Config, error) {
	m := &metadata{f: f, tensors: tensors, config: map[string]any{}, from: map[string]string{}, read: map[string]bool{}}
	c, err := attempt.At(m.parse)
	if _, ours := errors.AsType[*model.Error](err); err != nil && !ours {
		err = WrapError(f.Path, err)
	}
	for _, err := range append(c.Warnings, err) {
		if e, ok := errors.AsType[*model.Error](err); ok {
			e.File = f.Path
			if key, ok := m.from[e.Field]; ok {
				e.Field = key
			}
		}
	}
	return c, err
}

type metadata struct {
	f        *gguf.File
	tensors  []gguf.Tensor     // of all parts
	arch     string            // "llama"
	config   map[string]any    // config.json
	from     map[string]string // the key from which each of its fields came
	read     map[string]bool   // handled keys below arch
	headless bool              // the file states how vectors are made
}

func (m *metadata) parse() model.Config {
	var c model.Config
	arch := attempt.Must(m.f.Text("general.architecture", ""))
	family, ok := familiesGGUF[arch]
	if !ok {
		panic(attempt.Failure{Err: &model.Error{Field: "general.architecture", Kind: model.ErrUnknownArch,
			Detail: fmt.Sprintf("architecture %q is not supported; known: %s", model.Clip(arch), knownGGUF())}})
	}
	m.arch = arch
	m.set("architectures", "general.architecture", []string{family.hub})
	for _, take := range []func(*metadata){(*metadata).sizes, (*metadata).rope, family.read, (*metadata).tokens,
		(*metadata).pooling, (*metadata).refuse} {
		take(m)
	}
	text, err := json.Marshal(m.config)
	if err != nil {
		panic(attempt.Failure{Err: &model.Error{Kind: model.ErrFormat, Detail: err.Error()}}) // a NaN
	}
	c = attempt.Must(model.ParseConfig("", text, nil))
	c.QKVBias = c.QKVBias || m.has("blk.0.attn_q.bias")
	c.OutBias, c.MLPBias = m.has("blk.0.attn_output.bias"), m.has("blk.0.ffn_gate.bias")
	c.Tied = !m.has("output.weight")
	c.Headless = c.Headless || m.headless
	if !m.has("token_types.weight") {
		c.Inputs.Types = 0
	}
	if family.finish != nil {
		family.finish(&c)
	}
	m.consistent(&c)
	if m.expertsOfMXFP4() {
		c.Hold(quantform.GGUF())
	}
	return c
}

// expertsOfMXFP4 reports whether the file has experts, all in MXFP4.
func (m *metadata) expertsOfMXFP4() (all bool) {
	for _, t := range m.tensors {
		if strings.HasSuffix(t.Name, "_exps.weight") {
			if all = t.Type == gguf.MXFP4; !all {
				return false
			}
		}
	}
	return all
}

func (m *metadata) has(tensor string) bool {
	return slices.ContainsFunc(m.tensors, func(t gguf.Tensor) bool { return t.Name == tensor })
}

func (m *metadata) set(field, key string, v any) { m.config[field], m.from[field] = v, key }

// take copies a number to a field of config.json, if it is present.
func (m *metadata) take(key, field string) {
	key = m.arch + "." + key
	m.read[key] = true
	v, ok := m.f.Value(key)
	if !ok {
		return
	}
	if n, ok := v.Int(); ok {
		m.set(field, key, n)
		return
	}
	n, ok := v.Number()
	if !ok {
		kind := model.ErrFormat
		if v.Kind == gguf.Array {
			kind = model.ErrUnsupported // differs by layer
		}
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: kind,
			Detail: fmt.Sprintf("%v (%v) is not one number for all layers", v, v.Kind)}})
	}
	if n != n || n > 1e300 || n < -1e300 {
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrOutOfRange, Detail: fmt.Sprintf("%v", n)}})
	}
	m.set(field, key, n)
}

func (m *metadata) sizes() {
	for _, p := range [][2]string{
		{"embedding_length", "hidden_size"}, {"block_count", "num_hidden_layers"}, {"feed_forward_length", "intermediate_size"},
		{"attention.head_count", "num_attention_heads"}, {"attention.head_count_kv", "num_key_value_heads"},
		{"attention.key_length", "head_dim"}, {"context_length", "max_position_embeddings"},
		{"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
	} {
		if !slices.Contains(listsGGUF[m.arch], p[0]) {
			m.take(p[0], p[1])
		}
		if _, ok := m.config[p[1]]; !ok {
			m.from[p[1]] = m.arch + "." + p[0] // names the key if it is missing
		}
	}
	eps := "attention.layer_norm_rms_epsilon"
	if _, ok := m.f.Value(m.arch + "." + layerNormEps); ok {
		eps = layerNormEps
	}
	for _, key := range []string{eps, "context_length"} {
		if _, ok := m.f.Value(m.arch + "." + key); !ok {
			panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + key, Kind: model.ErrMissing, Detail: "missing"}})
		}
	}
	if _, ok := m.config["head_dim"]; !ok { // llama.cpp uses hidden/heads in every family
		h, _ := m.config["hidden_size"].(int64)
		n, _ := m.config["num_attention_heads"].(int64)
		if n > 0 && h > 0 && h%n == 0 {
			m.set("head_dim", m.arch+".embedding_length", h/n)
		}
	}
	for _, t := range m.tensors {
		if t.Name == "token_embd.weight" {
			m.set("vocab_size", "token_embd.weight", t.Shape[0])
			return
		}
	}
	panic(attempt.Failure{Err: &model.Error{Tensor: "token_embd.weight", Kind: model.ErrMissing, Detail: "missing"}})
}

func (m *metadata) rope() {
	m.take("rope.freq_base", "rope_theta")
	key, factor, def := m.arch+".rope.scaling.type", "rope.scaling.factor", "none"
	if _, ok := m.f.Value(m.arch + "." + factor); ok {
		def = "linear"
	}
	kind := attempt.Must(m.f.Text(key, def))
	if _, ok := m.f.Value(m.arch + ".rope.scale_linear"); ok { // an older name
		factor, kind = "rope.scale_linear", "linear"
	}
	m.read[key], m.read[m.arch+"."+factor] = true, true
	if kind == "none" {
		return
	}
	yarn := kind == "yarn" && slices.Contains([]string{"deepseek2", "gpt-oss", "mistral3"}, m.arch)
	if kind != "linear" && !yarn {
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrUnsupported,
			Detail: fmt.Sprintf("%q is not supported; known: none, linear, yarn of deepseek2, gpt-oss and mistral3 (and rope_freqs.weight for "+
				"Llama 3)", model.Clip(kind))}})
	}
	v, _ := m.f.Value(m.arch + "." + factor)
	n, ok := v.Number()
	if !ok || !(n >= 1 && n <= 1e6) {
		panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + factor, Kind: model.ErrOutOfRange,
			Detail: fmt.Sprintf("%v; want 1..1e6", v)}})
	}
	if yarn {
		m.yarn(key, n)
		return
	}
	if n != 1 {
		m.set("rope_scaling", key, map[string]any{"rope_type": "linear", "factor": n})
	}
}

// number reads an optional setting.
func (m *metadata) number(name string, def float64) float64 {
	key := m.arch + "." + name
	m.read[key] = true
	v, ok := m.f.Value(key)
	if !ok {
		return def
	}
	n, ok := v.Number()
	if !ok || !(n >= -1e300 && n <= 1e300) {
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrFormat, Detail: fmt.Sprintf("%v (%v) is not a number", v, v.Kind)}})
	}
	return n
}

// window reads the sliding window; 0: none.
func (m *metadata) window() int64 {
	key := m.arch + ".attention.sliding_window"
	m.read[key] = true
	n := attempt.Must(m.f.Int(key, 0, 0, model.MaxPositions))
	if n > 0 {
		m.set("sliding_window", key, n)
	}
	return n
}

// endings are control tokens that end an answer in the supported families, independent of the metadata, as
// in generation_config.json of their folders.
var endings = []string{"<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>", "<|end|>", "<|eot|>",
	"<|eom|>", "<end_of_turn>", "<turn|>", "<eos>"}

// harmony lists the endings of gpt-oss, where <|end|> ends a message but not the answer.
var harmony = []string{"<|return|>", "<|call|>", "<|endoftext|>"}

// tokens reads the tokens that begin and end a text.
func (m *metadata) tokens() {
	const prefix = "tokenizer.ggml."
	var eos []int64
	for _, name := range []string{"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"} {
		const none = 1<<32 - 1 // -1 as converters wrote it
		id := attempt.Must(m.f.Int(prefix+name, none, 0, none))
		switch {
		case id == none:
		case name == "bos_token_id":
			m.set(name, prefix+name, id)
		case !slices.Contains(eos, id):
			eos = append(eos, id)
		}
	}
	tokens := attempt.Must(m.f.Texts(prefix + "tokens"))
	kinds := attempt.Must(m.f.Ints(prefix + "token_type"))
	const control = 3
	endings := endings
	if m.arch == "gpt-oss" {
		endings = harmony
	}
	for id, kind := range kinds[:min(len(kinds), len(tokens))] {
		if kind == control && slices.Contains(endings, tokens[id]) && !slices.Contains(eos, int64(id)) {
			eos = append(eos, int64(id))
		}
	}
	if eos != nil {
		m.set("eos_token_id", prefix+"eos_token_id", eos)
	}
}

// refuse checks every other setting of the architecture: an unknown one may change the arithmetic.
func (m *metadata) refuse() {
	// see consistent
	for _, key := range []string{"vocab_size", "attention.value_length", "rope.dimension_count",
		"attention.value_length_swa", "rope.dimension_count_swa"} {
		m.read[m.arch+"."+key] = true
	}
	for _, key := range []string{"tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"} { // informational
		m.read[m.arch+"."+key] = true
	}
	neutral := map[string]float64{"expert_count": 0, "expert_used_count": 0, "expert_shared_count": 0, "expert_weights_scale": 1,
		"expert_gating_func": 1, "expert_group_count": 1, "nextn_predict_layers": 0, "expert_group_used_count": 1, "rope.scaling.factor": 1,
		"rope.scaling.attn_factor": 1, "logit_scale": 1, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0}
	for _, key := range m.f.Keys() {
		name, ok := strings.CutPrefix(key, m.arch+".")
		if !ok || m.read[key] {
			continue
		}
		v, _ := m.f.Value(key)
		n, number := v.Number()
		if want, ok := neutral[name]; ok && number && (n == want || n == 0) {
			continue
		}
		flag, isFlag := v.Bool()
		if isFlag && name == "use_parallel_residual" && !flag {
			continue
		}
		panic(attempt.Failure{Err: &model.Error{Field: key, Kind: model.ErrUnsupported, Detail: fmt.Sprintf("is %v, which is not supported", v)}})
	}
}

// consistent checks values that metadata contains twice.
func (m *metadata) consistent(c *model.Config) {
	twice := map[string]int{"vocab_size": c.Vocab, "attention.value_length": c.GlobalKV().Dim,
		"rope.dimension_count":       cmp.Or(c.Rotated, c.GlobalKV().Dim),
		"attention.value_length_swa": c.HeadDim, "rope.dimension_count_swa": c.HeadDim}
	if c.Latent.Rank > 0 {
		twice = map[string]int{"vocab_size": c.Vocab} // see deepseek.go
	}
	for key, want := range twice {
		n := attempt.Must(m.f.Int(m.arch+"."+key, int64(want), 0, 1<<40))
		if n != int64(want) {
			panic(attempt.Failure{Err: &model.Error{Field: m.arch + "." + key, Kind: model.ErrUnsupported,
				Detail: fmt.Sprintf("%d; only %d, as elsewhere in the file, is supported", n, want)}})
		}
	}
}

// WrapError converts an error of package gguf to an error of this package.
func WrapError(path string, err error) error {
	e := &model.Error{File: path, Kind: model.ErrFormat, Detail: Detail(err)}
	if g, ok := errors.AsType[*gguf.Error](err); ok {
		if g.Path != "" {
			e.File = g.Path
		}
		e.Tensor, e.Field = g.Tensor, g.Key
	}
	switch {
	case errors.Is(err, gguf.ErrUnsupported):
		e.Kind = model.ErrUnsupported
	case errors.Is(err, gguf.ErrNotFound), errors.Is(err, gguf.ErrPart):
		e.Kind = model.ErrMissing
	}
	return e
}

func Detail(err error) string {
	if g, ok := errors.AsType[*gguf.Error](err); ok {
		return g.Detail
	}
	return err.Error()
}
