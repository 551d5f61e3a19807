// Package compare measures builds of Shoal in turn on a simulated network: decode and prompts at several
// delays and rates, and the time that steps wait for the network.
package compare

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Shape is the size of a model in the Llama architecture.
type Shape struct {
	Hidden, Layers, Heads, KVHeads, HeadDim, FFN, Vocab int
	Tied                                                bool
}

// Shapes has the sizes of public models, and smaller ones with the same proportions.
var Shapes = map[string]Shape{
	"160m": {1024, 12, 16, 8, 64, 2816, 32000, true},
	"1b":   {2048, 16, 32, 8, 64, 8192, 128256, true},
	"8b":   {4096, 32, 32, 8, 128, 14336, 128256, false},
	"tiny": {256, 4, 8, 4, 32, 1024, 4096, true},
}

// ShapeOf returns a shape by name: NAME, or NAME:LAYERS for a model with another number of layers.
func ShapeOf(text string) (Shape, error) {
	name, layers, fewer := strings.Cut(text, ":")
	s, ok := Shapes[name]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(Shapes)), ", ")
		return s, fmt.Errorf("compare: no shape %q: want one of %s, or NAME:LAYERS", name, known)
	}
	if fewer {
		n, err := strconv.Atoi(layers)
		if err != nil || n < 1 || n > maxLayers {
			return s, fmt.Errorf("compare: shape %q: want 1 to %d layers", text, maxLayers)
		}
		s.Layers = n
	}
	return s, nil
}

const maxLayers = 128

type tensorSpec struct {
	name  string
	shape []int
}

// tensors lists the tensors of a checkpoint in the order of the file.
func (s Shape) tensors() []tensorSpec {
	out := []tensorSpec{{"model.embed_tokens.weight", []int{s.Vocab, s.Hidden}}, {"model.norm.weight", []int{s.Hidden}}}
	if !s.Tied {
		out = append(out, tensorSpec{"lm_head.weight", []int{s.Vocab, s.Hidden}})
	}
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for i := range s.Layers {
		for _, t := range []tensorSpec{{"input_layernorm", []int{s.Hidden}}, {"post_attention_layernorm", []int{s.Hidden}},
			{"self_attn.q_proj", []int{q, s.Hidden}}, {"self_attn.k_proj", []int{kv, s.Hidden}}, {"self_attn.v_proj", []int{kv, s.Hidden}},
			{"self_attn.o_proj", []int{s.Hidden, q}},
			{"mlp.gate_proj", []int{s.FFN, s.Hidden}}, {"mlp.up_proj", []int{s.FFN, s.Hidden}}, {"mlp.down_proj", []int{s.Hidden, s.FFN}}} {
			out = append(out, tensorSpec{fmt.Sprintf("model.layers.%d.%s.weight", i, t.name), t.shape})
		}
	}
	return out
}

// Write makes a checkpoint with random weights in bf16 in a new folder. A block of noise is repeated: the
// time of a step does not depend on the values.
func (s Shape) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	config := map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "vocab_size": s.Vocab,
		"hidden_size": s.Hidden, "intermediate_size": s.FFN,
		"num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads,
		"head_dim": s.HeadDim, "hidden_act": "silu",
		"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": s.Tied, "bos_token_id": 0,
		"eos_token_id": 1, "torch_dtype": "bfloat16"}
	for name, v := range map[string]any{"config.json": config, "tokenizer.json": tokenizer(s.Vocab)} {
		text, err := json.Marshal(v)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			return fmt.Errorf("compare: %w", err)
		}
	}
	return s.writeWeights(filepath.Join(dir, "model.safetensors"))
}

func (s Shape) writeWeights(path string) (err error) {
	type entry struct {
		Type    string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	header, end := map[string]entry{}, int64(0)
	for _, t := range s.tensors() {
		n := int64(2)
		for _, d := range t.shape {
			n *= int64(d)
		}
		header[t.name] = entry{"BF16", t.shape, [2]int64{end, end + n}}
		end += n
	}
	text, err := json.Marshal(header)
	if err != nil {
		return err
	}
	text = append(text, strings.Repeat(" ", (8-len(text)%8)%8)...)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) // Flush reports the first error
	_, _ = w.Write(text)
	noise := noiseBlock()
	ones := slices.Repeat([]byte{0x80, 0x3f}, s.Hidden)
	for _, t := range s.tensors() {
		if len(t.shape) == 1 {
			_, _ = w.Write(ones)
			continue
		}
		for left := 2 * t.shape[0] * t.shape[1]; left > 0; left -= len(noise) {
			_, _ = w.Write(noise[:min(left, len(noise))])
		}
	}
	return w.Flush()
}

// noiseBlock returns bf16 values between 1/64 and 1/32 with random signs. Its length is odd in
// units of rows, so that rows differ.
func noiseBlock() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 2*(1<<22+17))
	for i := 0; i < len(b); i += 2 {
		x := r.Uint32()
		binary.LittleEndian.PutUint16(b[i:], uint16(x&0x8000)|121<<7|uint16(x&0x7f))
	}
	return b
}

// wordLength is the number of letters of every token that the measurements count.
const wordLength = 5

// tokenizer returns a byte-level BPE without merges: two control tokens, the 256 bytes, and words of
// wordLength letters.
func tokenizer(vocab int) map[string]any {
	ids := map[string]int{"<s>": 0, "</s>": 1}
	next := 256
	for b := range 256 {
		c := rune(b)
		if b < 33 || b > 126 && b < 161 || b == 173 { // as in GPT-2, bytes that do not print have other characters
			c = rune(next)
			next++
		}
		ids[string(c)] = len(ids)
	}
	for i := len(ids); i < vocab; i++ {
		word := make([]byte, wordLength)
		for k, n := 0, i; k < wordLength; k, n = k+1, n/26 {
			word[k] = 'a' + byte(n%26)
		}
		ids[string(word)] = i
	}
	special := func(id int, text string) map[string]any {
		return map[string]any{"id": id, "content": text, "special": true, "single_word": false,
			"lstrip": false, "rstrip": false, "normalized": false}
	}
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return map[string]any{"version": "1.0", "added_tokens": []any{special(0, "<s>"), special(1, "</s>")},
		"normalizer": nil, "post_processor": nil,
		"pre_tokenizer": level, "decoder": level, "model": map[string]any{"type": "BPE", "vocab": ids, "merges": []any{}}}
}
