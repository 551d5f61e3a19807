// Package parrot writes tiny Llama checkpoints that answer every prompt with a fixed text.
// End-to-end tests of parsers, stop strings and grammars use them.
package parrot

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/shoal-llm/shoal/internal/engine/model/modeltest"
)

// Script is the text of a checkpoint and its division into tokens.
type Script struct {
	// Text is generated from its start; End follows unless Loop is set. Each token of the text
	// occurs once, so every token determines the next.
	Text string
	// Template is the chat template. Empty: the package's Template.
	Template string
	// Special lists additional special tokens. Each may occur once in Text.
	Special []string
	// Bytes lets tokens end inside a UTF-8 character.
	Bytes bool
	// Loop restarts the text instead of ending it.
	Loop bool
}

// Begin and End are the special tokens of every parrot. They delimit the turns of the template.
const (
	Begin = "<|im_start|>"
	End   = "<|im_end|>"
)

// Template renders tools as Qwen's does and opens the assistant's turn.
const Template = "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}" +
	"Calls look like <tool_call>...</tool_call><|im_end|>\n{% endif %}" +
	"{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}<|im_end|>\n{% endfor %}" +
	"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

const width = 64 // of a head, and of the FFN

// Write creates dir and a checkpoint in it. The model has one layer, whose attention and FFN are
// zero. The embedding of token i is the unit vector i, and lm_head maps it to the token that
// follows i in the script. Without merges, prompts are encoded byte by byte. Script tokens have
// two bytes or more. So the last token of any prompt leads to the start of the script.
func Write(dir string, s Script) error {
	v, line, err := s.vocabulary()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	size := len(v.ids)
	hidden := (size + 63) / 64 * 64
	next := make([]int, size)
	for i := range next {
		next[i] = line[0]
	}
	for i, id := range line[:len(line)-1] {
		next[id] = line[i+1]
	}
	next[line[len(line)-1]] = v.ids[End]
	if s.Loop {
		next[line[len(line)-1]] = line[0]
	}
	template := s.Template
	if template == "" {
		template = Template
	}
	for name, value := range map[string]any{
		"config.json": map[string]any{"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama",
			"vocab_size": size, "hidden_size": hidden,
			"intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
			"head_dim": width, "hidden_act": "silu",
			"max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
			"bos_token_id": v.ids[Begin], "eos_token_id": v.ids[End], "torch_dtype": "float32"},
		"generation_config.json": map[string]any{"eos_token_id": v.ids[End]},
		"tokenizer.json":         v.file(),
		"tokenizer_config.json": map[string]any{"tokenizer_class": "PreTrainedTokenizerFast",
			"eos_token": End, "clean_up_tokenization_spaces": false,
			"model_max_length": 8192, "chat_template": template},
	} {
		text, err := json.MarshalIndent(value, "", " ")
		if err != nil {
			return fmt.Errorf("parrot: %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "model.safetensors"), weights(next, hidden), 0o644)
}

// weights builds the safetensors file. next[i] is the token after token i.
func weights(next []int, hidden int) []byte {
	header, data := map[string]any{"__metadata__": map[string]string{"format": "pt"}}, []byte{}
	add := func(name string, shape []int, value func(row, column int) float32) {
		start := len(data)
		rows, columns := 1, shape[len(shape)-1]
		if len(shape) == 2 {
			rows = shape[0]
		}
		for r := range rows {
			for c := range columns {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value(r, c)))
			}
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{start, len(data)}}
	}
	one := func(int, int) float32 { return 1 }
	zero := func(int, int) float32 { return 0 }
	hot := func(yes bool, v float32) float32 {
		if yes {
			return v
		}
		return 0
	}
	add("model.embed_tokens.weight", []int{len(next), hidden}, func(r, c int) float32 { return hot(r == c, 1) })
	add("lm_head.weight", []int{len(next), hidden}, func(r, c int) float32 { return hot(c < len(next) && next[c] == r, 2) })
	for _, name := range []string{"model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"} {
		add(name+".weight", []int{hidden}, one)
	}
	for _, name := range []string{"self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"} {
		add("model.layers.0."+name+"_proj.weight", []int{width, hidden}, zero)
	}
	for _, name := range []string{"self_attn.o", "mlp.down"} {
		add("model.layers.0."+name+"_proj.weight", []int{hidden, width}, zero)
	}
	return modeltest.File(header, data)
}

// vocabulary holds 256 bytes, then the tokens of the script, then the special tokens.
type vocabulary struct {
	ids     map[string]int // by a token's text
	special []string
}

// vocabulary cuts the script into tokens. line holds their ids in order.
func (s Script) vocabulary() (v *vocabulary, line []int, err error) {
	v = &vocabulary{ids: map[string]int{}, special: append([]string{Begin, End}, s.Special...)}
	for b := range 256 {
		v.ids[string([]byte{byte(b)})] = b
	}
	var script []string
	for rest := s.Text; rest != ""; {
		at, token := len(rest), ""
		for _, t := range v.special {
			if i := strings.Index(rest, t); i >= 0 && i < at {
				at, token = i, t
			}
		}
		pieces, err := v.cut(rest[:at], s.Bytes)
		if err != nil {
			return nil, nil, err
		}
		script = append(script, pieces...)
		if rest = rest[at+len(token):]; token != "" {
			script = append(script, token)
		}
	}
	for _, t := range v.special {
		if _, twice := v.ids[t]; twice {
			return nil, nil, fmt.Errorf("parrot: the special token %q is given twice or is a piece of the text", t)
		}
		v.ids[t] = len(v.ids)
	}
	seen := map[string]bool{}
	for _, t := range script {
		if seen[t] {
			return nil, nil, fmt.Errorf("parrot: the text holds the special token %q twice", t)
		}
		seen[t] = true
		line = append(line, v.ids[t])
	}
	if line == nil {
		return nil, nil, fmt.Errorf("parrot: the text is empty")
	}
	return v, line, nil
}

// cut cuts a text into tokens of two bytes or more, each new to the vocabulary.
func (v *vocabulary) cut(text string, bytes bool) (pieces []string, err error) {
	for text != "" {
		n, ok := 0, false
		for n < len(text) && !ok {
			if bytes {
				n++
			} else {
				_, size := utf8.DecodeRuneInString(text[n:])
				n += size
			}
			_, used := v.ids[text[:n]]
			ok = n >= 2 && !used && len(text)-n != 1
		}
		if !ok {
			return nil, fmt.Errorf("parrot: cannot cut %q into tokens that are new: change the text a little", text)
		}
		v.ids[text[:n]] = len(v.ids)
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return pieces, nil
}

// file builds tokenizer.json: byte-level BPE without merges.
func (v *vocabulary) file() any {
	special := map[string]bool{}
	added := []any{}
	for _, t := range v.special {
		special[t] = true
		added = append(added, map[string]any{"id": v.ids[t], "content": t, "single_word": false, "lstrip": false,
			"rstrip": false, "normalized": false, "special": true})
	}
	var letters [256]string
	extra := rune(256)
	for b := range letters {
		switch {
		case b >= '!' && b <= '~', b >= 161 && b <= 172, b >= 174:
			letters[b] = string(rune(b))
		default:
			letters[b] = string(extra)
			extra++
		}
	}
	vocab := map[string]int{}
	for t, id := range v.ids {
		if special[t] {
			continue
		}
		var spelled strings.Builder
		for i := range len(t) {
			spelled.WriteString(letters[t[i]])
		}
		vocab[spelled.String()] = id
	}
	byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	return map[string]any{"version": "1.0", "added_tokens": added, "normalizer": nil, "pre_tokenizer": byteLevel,
		"post_processor": nil, "decoder": byteLevel,
		"model": map[string]any{"type": "BPE", "unk_token": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": vocab, "merges": []string{}}}
}
