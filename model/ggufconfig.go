package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/gguf"
)

// configGGUF reads the config from metadata. It writes down what a config.json
// would say and has ParseConfig read that, so that both formats have the same
// bounds and refusals; errors name the metadata key.
func configGGUF(f *gguf.File, tensors []gguf.Tensor) (Config, error) {
	m := &metadata{f: f, tensors: tensors, config: map[string]any{}, from: map[string]string{}, read: map[string]bool{}}
	c, err := m.parse()
	if e, ok := errors.AsType[*Error](err); ok {
		e.File = f.Path
		if key, ok := m.from[e.Field]; ok {
			e.Field = key
		}
	}
	return c, err
}

type metadata struct {
	f       *gguf.File
	tensors []gguf.Tensor     // of all parts
	arch    string            // "llama"
	config  map[string]any    // config.json
	from    map[string]string // its fields: the key that each came from
	read    map[string]bool   // keys below arch that have been understood
}

func (m *metadata) parse() (Config, error) {
	var c Config
	arch, err := m.f.Text("general.architecture", "")
	if err != nil {
		return c, fromGGUF(m.f.Path, err)
	}
	family, ok := familiesGGUF[arch]
	if !ok {
		return c, &Error{Field: "general.architecture", Kind: ErrUnknownArch, Detail: fmt.Sprintf("architecture %q is not supported; known: %s", clip(arch), knownGGUF())}
	}
	m.arch = arch
	m.set("architectures", "general.architecture", []string{family.hub})
	for _, take := range []func(*metadata) error{(*metadata).sizes, (*metadata).rope, family.read, (*metadata).tokens, (*metadata).refuse} {
		if err := take(m); err != nil {
			return c, err
		}
	}
	text, err := json.Marshal(m.config)
	if err != nil {
		return c, &Error{Kind: ErrFormat, Detail: err.Error()} // a NaN
	}
	if c, err = ParseConfig("", text, nil); err != nil {
		return c, err
	}
	has := func(name string) bool {
		return slices.ContainsFunc(m.tensors, func(t gguf.Tensor) bool { return t.Name == name })
	}
	c.QKVBias = c.QKVBias || has("blk.0.attn_q.bias")
	c.OutBias, c.MLPBias = has("blk.0.attn_output.bias"), has("blk.0.ffn_gate.bias")
	c.Tied = !has("output.weight")
	if family.finish != nil {
		family.finish(&c)
	}
	return c, m.consistent(&c)
}

func (m *metadata) set(field, key string, v any) { m.config[field], m.from[field] = v, key }

// take moves a number to a field of config.json, if it is there.
func (m *metadata) take(key, field string) error {
	key = m.arch + "." + key
	m.read[key] = true
	v, ok := m.f.Value(key)
	if !ok {
		return nil
	}
	if n, ok := v.Whole(); ok {
		m.set(field, key, n)
		return nil
	}
	n, ok := v.Number()
	if !ok {
		kind := ErrFormat
		if v.Kind == gguf.Array {
			kind = ErrUnsupported // differs by layer
		}
		return &Error{Field: key, Kind: kind, Detail: fmt.Sprintf("%v (%v) is not one number for all layers", v, v.Kind)}
	}
	if n != n || n > 1e300 || n < -1e300 {
		return &Error{Field: key, Kind: ErrOutOfRange, Detail: fmt.Sprintf("%v", n)}
	}
	m.set(field, key, n)
	return nil
}

func (m *metadata) sizes() error {
	for _, p := range [][2]string{
		{"embedding_length", "hidden_size"}, {"block_count", "num_hidden_layers"}, {"feed_forward_length", "intermediate_size"},
		{"attention.head_count", "num_attention_heads"}, {"attention.head_count_kv", "num_key_value_heads"},
		{"attention.key_length", "head_dim"}, {"context_length", "max_position_embeddings"},
		{"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
	} {
		if err := m.take(p[0], p[1]); err != nil {
			return err
		}
		if _, ok := m.config[p[1]]; !ok {
			m.from[p[1]] = m.arch + "." + p[0] // for the complaint that it is missing
		}
	}
	for _, key := range []string{"attention.layer_norm_rms_epsilon", "context_length"} {
		if _, ok := m.f.Value(m.arch + "." + key); !ok {
			return &Error{Field: m.arch + "." + key, Kind: ErrMissing, Detail: "missing"}
		}
	}
	if _, ok := m.config["head_dim"]; !ok { // llama.cpp takes hidden/heads, whatever the family
		h, _ := m.config["hidden_size"].(int64)
		n, _ := m.config["num_attention_heads"].(int64)
		if n > 0 && h > 0 && h%n == 0 {
			m.set("head_dim", m.arch+".embedding_length", h/n)
		}
	}
	for _, t := range m.tensors {
		if t.Name == "token_embd.weight" {
			m.set("vocab_size", "token_embd.weight", t.Shape[0])
			return nil
		}
	}
	return &Error{Tensor: "token_embd.weight", Kind: ErrMissing, Detail: "missing"}
}

func (m *metadata) rope() error {
	if err := m.take("rope.freq_base", "rope_theta"); err != nil {
		return err
	}
	key, factor, def := m.arch+".rope.scaling.type", "rope.scaling.factor", "none"
	if _, ok := m.f.Value(m.arch + "." + factor); ok {
		def = "linear"
	}
	kind, err := m.f.Text(key, def)
	if err != nil {
		return fromGGUF(m.f.Path, err)
	}
	if _, ok := m.f.Value(m.arch + ".rope.scale_linear"); ok { // its name before there were others
		factor, kind = "rope.scale_linear", "linear"
	}
	m.read[key], m.read[m.arch+"."+factor] = true, true
	if kind == "none" {
		return nil
	}
	yarn := kind == "yarn" && m.arch == "deepseek2"
	if kind != "linear" && !yarn {
		return &Error{Field: key, Kind: ErrUnsupported, Detail: fmt.Sprintf("%q is not supported; known: none, linear, yarn of deepseek2 (and rope_freqs.weight for Llama 3)", clip(kind))}
	}
	v, _ := m.f.Value(m.arch + "." + factor)
	n, ok := v.Number()
	if !ok || !(n >= 1 && n <= 1e6) {
		return &Error{Field: m.arch + "." + factor, Kind: ErrOutOfRange, Detail: fmt.Sprintf("%v; want 1..1e6", v)}
	}
	if yarn {
		return m.yarn(key, n)
	}
	if n != 1 {
		m.set("rope_scaling", key, map[string]any{"rope_type": "linear", "factor": n})
	}
	return nil
}

// number is a setting that need not be there.
func (m *metadata) number(name string, def float64) (float64, error) {
	key := m.arch + "." + name
	m.read[key] = true
	v, ok := m.f.Value(key)
	if !ok {
		return def, nil
	}
	n, ok := v.Number()
	if !ok || !(n >= -1e300 && n <= 1e300) {
		return 0, &Error{Field: key, Kind: ErrFormat, Detail: fmt.Sprintf("%v (%v) is not a number", v, v.Kind)}
	}
	return n, nil
}

// window takes the sliding window, 0 when there is none.
func (m *metadata) window() (int64, error) {
	key := m.arch + ".attention.sliding_window"
	m.read[key] = true
	n, err := m.f.Whole(key, 0, 0, maxPositions)
	if err != nil || n == 0 {
		return 0, wrapGGUF(m.f, err)
	}
	m.set("sliding_window", key, n)
	return n, nil
}

func wrapGGUF(f *gguf.File, err error) error {
	if err == nil {
		return nil
	}
	return fromGGUF(f.Path, err)
}

// endings are control tokens that end an answer in the families read here,
// whatever the metadata calls them: as generation_config.json of their folders
// has it.
var endings = []string{"<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<eos>"}

// tokens reads which tokens begin and end a text.
func (m *metadata) tokens() error {
	const prefix = "tokenizer.ggml."
	var eos []int64
	for _, name := range []string{"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"} {
		const none = 1<<32 - 1 // -1 as converters wrote it
		id, err := m.f.Whole(prefix+name, none, 0, none)
		switch {
		case err != nil:
			return fromGGUF(m.f.Path, err)
		case id == none:
		case name == "bos_token_id":
			m.set(name, prefix+name, id)
		case !slices.Contains(eos, id):
			eos = append(eos, id)
		}
	}
	tokens, err := m.f.Texts(prefix + "tokens")
	if err != nil {
		return fromGGUF(m.f.Path, err)
	}
	kinds, err := m.f.Wholes(prefix + "token_type")
	if err != nil {
		return fromGGUF(m.f.Path, err)
	}
	const control = 3
	for id, kind := range kinds[:min(len(kinds), len(tokens))] {
		if kind == control && slices.Contains(endings, tokens[id]) && !slices.Contains(eos, int64(id)) {
			eos = append(eos, int64(id))
		}
	}
	if eos != nil {
		m.set("eos_token_id", prefix+"eos_token_id", eos)
	}
	return nil
}

// refuse looks at every other setting of the architecture: one that is not
// known may change the arithmetic.
func (m *metadata) refuse() error {
	for _, key := range []string{"vocab_size", "attention.value_length", "rope.dimension_count"} { // see consistent
		m.read[m.arch+"."+key] = true
	}
	for _, key := range []string{"tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned"} { // say where the model comes from
		m.read[m.arch+"."+key] = true
	}
	neutral := map[string]float64{"expert_count": 0, "expert_used_count": 0, "expert_shared_count": 0, "expert_weights_scale": 1, "expert_gating_func": 1, "expert_group_count": 1, "nextn_predict_layers": 0, "expert_group_used_count": 1, "rope.scaling.factor": 1, "rope.scaling.attn_factor": 1, "logit_scale": 1, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0}
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
		flag, isFlag := v.Flag()
		if isFlag && (name == "attention.causal" && flag || name == "use_parallel_residual" && !flag) {
			continue
		}
		return &Error{Field: key, Kind: ErrUnsupported, Detail: fmt.Sprintf("is %v; nothing here computes that", v)}
	}
	return nil
}

// consistent checks what metadata says twice.
func (m *metadata) consistent(c *Config) error {
	twice := map[string]int{"vocab_size": c.Vocab, "attention.value_length": c.HeadDim, "rope.dimension_count": c.HeadDim}
	if c.Latent.Rank > 0 {
		twice = map[string]int{"vocab_size": c.Vocab} // see ggufdeepseek.go
	}
	for key, want := range twice {
		n, err := m.f.Whole(m.arch+"."+key, int64(want), 0, 1<<40)
		if err != nil {
			return fromGGUF(m.f.Path, err)
		}
		if n != int64(want) {
			return &Error{Field: m.arch + "." + key, Kind: ErrUnsupported, Detail: fmt.Sprintf("%d; only %d, as elsewhere in the file, is computed", n, want)}
		}
	}
	return nil
}
