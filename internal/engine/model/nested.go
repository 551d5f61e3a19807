package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Multimodal checkpoints have their decoder's config in text_config, and its tensors next to those
// of encoders of images and sound. Only the decoder is read: text in, text out.

// wrapper describes the checkpoints of one multimodal architecture.
type wrapper struct {
	decoder string            // architecture of the decoder; "": the one that text_config.model_type names
	flat    bool              // older files have the decoder's settings outside, without text_config
	anyTie  bool              // head and embedding are tied if either config sets it; false: the outer one counts
	assumed map[string]string // settings of the decoder that files leave to the configuration class
}

// nested lists the wrappers. In Qwen's, a token has three positions, which are equal for text: see
// plainPositions.
var nested = map[string]wrapper{
	"Gemma3ForConditionalGeneration":        {decoder: gemma3},
	"Gemma4ForConditionalGeneration":        {decoder: gemma4},
	"Gemma4UnifiedForConditionalGeneration": {decoder: gemma4Unified},
	"Llama4ForConditionalGeneration":        {decoder: llama4},
	"Mistral3ForConditionalGeneration":      {},
	"KimiK25ForConditionalGeneration":       {},
	"Qwen2VLForConditionalGeneration":       {decoder: "Qwen2ForCausalLM", flat: true, anyTie: true, assumed: map[string]string{"rms_norm_eps": "1e-5", "max_window_layers": "80"}},
	"Qwen2_5_VLForConditionalGeneration":    {decoder: "Qwen2ForCausalLM", flat: true, anyTie: true, assumed: map[string]string{"rms_norm_eps": "1e-5", "max_window_layers": "80"}},
	"Qwen3_5MoeForConditionalGeneration":    {decoder: "Qwen3_5MoeForCausalLM"},
	"Qwen3_5ForConditionalGeneration":       {decoder: "Qwen3_5ForCausalLM"},
	"Qwen3VLForConditionalGeneration":       {decoder: "Qwen3ForCausalLM", assumed: map[string]string{"max_position_embeddings": "128000"}},
	"Qwen3VLMoeForConditionalGeneration":    {decoder: "Qwen3MoeForCausalLM", assumed: map[string]string{"max_position_embeddings": "128000", "norm_topk_prob": "true"}},
}

// isNested reports whether config.json is of a multimodal checkpoint.
func isNested(config []byte) bool {
	f, err := parseFields("", config)
	if err != nil {
		return false
	}
	_, ok := nested[f.architecture()]
	return ok
}

// unwrap opens the decoder's config inside that of a wrapper, and returns the decoder's
// architecture. Settings of the whole checkpoint are outside of it.
func (f *fields) unwrap(w wrapper) (in *fields, name string, err error) {
	in = f.Object("text_config")
	if in == nil && w.flat && f.err == nil {
		in = f
	}
	if f.err == nil && in == nil {
		f.fail("text_config", ErrMissing, "missing")
	}
	if f.err != nil {
		return nil, "", f.err
	}
	for _, key := range []string{"bos_token_id", "eos_token_id", "dtype", "torch_dtype", "quantization_config", "compression_config"} {
		if v, ok := f.raw[key]; ok && !in.has(key) {
			in.raw[key] = v
		}
	}
	const tie = "tie_word_embeddings"
	if f.has(tie) && !(w.anyTie && in.Bool(tie, false)) {
		in.raw[tie] = f.raw[tie]
	}
	in.assume(w.assumed)
	in.plainPositions()
	if name = w.decoder; name == "" {
		kind := in.Text("model_type", "")
		if name = architectureOf[kind]; name == "" {
			in.fail("model_type", ErrUnknownArch, "decoder %q is not supported; known: %s", clip(kind), strings.Join(slices.Sorted(maps.Keys(architectureOf)), ", "))
		}
	}
	return in, name, in.err
}

// plainPositions removes the settings of positions in three dimensions (mrope: time, height and
// width of an image, for parts of a head each). The three positions of a text's token are equal, and
// the rotation is the usual one.
func (f *fields) plainPositions() {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := f.Object(key)
		if in == nil {
			continue
		}
		delete(in.raw, "mrope_section")
		delete(in.raw, "mrope_interleaved")
		for _, kind := range []string{"type", "rope_type"} {
			if string(in.raw[kind]) == `"mrope"` {
				in.raw[kind] = json.RawMessage(`"default"`)
			}
		}
		text, err := json.Marshal(in.raw)
		if err != nil {
			f.fail(key, ErrFormat, "%v", err)
			return
		}
		f.raw[key] = text
	}
}

// assume fills in missing keys, as the family's configuration class does. There a null number of KV
// heads is that of the query heads, and a null width of heads follows from the hidden size.
func (f *fields) assume(defaults map[string]string) {
	for key, v := range defaults {
		if !f.has(key) && !(f.given(key) && (key == kvHeads || key == "head_dim")) {
			f.raw[key] = json.RawMessage(v)
		}
	}
}

// decoderName is the name that a decoder's tensor has in a checkpoint of the decoder alone.
// Wrappers spell it model.language_model.x, language_model.model.x or language_model.x.
func decoderName(name string) string {
	for _, prefix := range []string{"model.language_model.", "language_model.model."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			return "model." + rest
		}
	}
	rest, ok := strings.CutPrefix(name, "language_model.")
	if ok && !strings.HasPrefix(rest, "lm_head.") {
		rest = "model." + rest
	}
	return rest
}

// towers are the first parts of the names of a wrapper's other tensors.
var towers = []string{"visual", "vision_tower", "vision_model", "vision_embed_tokens", "multi_modal_projector", "mm_projector", "patch_merger", "audio_tower", "embed_vision", "embed_audio"}

// isTower reports whether a tensor belongs to an encoder of images or sound.
func isTower(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "model."), ".")
	return slices.Contains(towers, first)
}

// interleaved reports whether rows of gate and up alternate in a stack, gate first.
func (c *Config) interleaved() bool { return c.Architecture == gptOss }

// takeStackedExperts names the experts of layers whose files stack them, as in a checkpoint with one
// tensor per expert. Gate and up are one tensor, its rows or columns gate first:
//
//	gate_up_proj (experts, 2*ffn, hidden), down_proj (experts, hidden, ffn)   or transposed:
//	gate_up_proj (experts, hidden, 2*ffn), down_proj (experts, ffn, hidden)
func (c *Checkpoint) takeStackedExperts() error {
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		if !c.Config.Sparse(i) {
			continue
		}
		n := c.Config.Layer(i).Experts
		c.reshape(n.Bias, []int{1, m.Experts}, []int{m.Experts}) // as ERNIE has it
		gateUps, downs := n.stacks()
		both, stacked := c.at[gateUps]
		down, also := c.at[downs]
		if !stacked && !also {
			continue
		}
		shapes := fmt.Sprintf("has shape %v and %s %v", both.Shape, downs, down.Shape)
		plain := slices.Equal(both.Shape, []int{m.Experts, 2 * m.FFN, c.Config.Hidden}) && slices.Equal(down.Shape, []int{m.Experts, c.Config.Hidden, m.FFN})
		turned := slices.Equal(both.Shape, []int{m.Experts, c.Config.Hidden, 2 * m.FFN}) && slices.Equal(down.Shape, []int{m.Experts, m.FFN, c.Config.Hidden})
		if !plain && !turned {
			return &Error{File: c.Dir, Tensor: gateUps, Kind: ErrMismatch, Detail: shapes + fmt.Sprintf("; %d experts of width %d want [%d %d %d] and [%d %d %d], or both transposed",
				m.Experts, m.FFN, m.Experts, 2*m.FFN, c.Config.Hidden, m.Experts, c.Config.Hidden, m.FFN)}
		}
		up, each := m.FFN, 1 // first row of up, distance of rows
		if c.Config.interleaved() {
			up, each = 1, 2
		}
		delete(c.at, gateUps)
		delete(c.at, downs)
		for e := range m.Experts {
			names := [3]string{}
			names[0], names[1], names[2] = n.Expert(e)
			for i, part := range []struct {
				of                place
				first, each, rows int // of the matrix
			}{{both, 0, each, m.FFN}, {both, up, each, m.FFN}, {down, 0, 1, c.Config.Hidden}} {
				if err := c.add(part.of.matrix(names[i], e, part.first, part.each, part.rows, turned)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// takeStackedBiases gives the biases of gates and ups a tensor each. Their elements alternate in the
// file.
func (c *Checkpoint) takeStackedBiases() error {
	m := &c.Config.MoE
	for i := range c.Config.Layers {
		if !m.Biased || !c.Config.Sparse(i) {
			continue
		}
		n := c.Config.Layer(i).Experts
		name := n.expert + "gate_up_proj_bias"
		both, ok := c.at[name]
		if !ok {
			continue // check names what is missing
		}
		if want := []int{m.Experts, 2 * m.FFN}; !slices.Equal(both.Shape, want) {
			return &Error{File: both.path, Tensor: name, Kind: ErrMismatch, Detail: fmt.Sprintf("has shape %v; %d experts of width %d want %v", both.Shape, m.Experts, m.FFN, want)}
		}
		delete(c.at, name)
		for first, part := range []string{n.Biases.Gate, n.Biases.Up} {
			one := both
			one.Name, one.Shape, one.Data, one.parts = part, []int{m.Experts, m.FFN}, nil, []Tensor{both.Tensor}
			one.fill = func(dst []float32, r, lo int) {
				for i := range dst {
					both.readRow(dst[i:i+1], r, 2*(lo+i)+first, 2*(lo+i)+first+1)
				}
			}
			if err := c.add(one); err != nil {
				return err
			}
		}
	}
	return nil
}

// matrix is n rows, first, first+each and so on, of the e-th matrix in a stack, or of its transpose.
func (p place) matrix(name string, e, first, each, n int, turned bool) place {
	size := int64(len(p.Data) / p.Shape[0])
	rows, cols := p.Shape[1], p.Shape[2]
	from, to := int64(e)*size, int64(e+1)*size
	if turned {
		rows, cols = cols, rows
	} else if each == 1 {
		row := size / int64(rows)
		from, to = from+int64(first)*row, from+int64(first+n)*row
	}
	one := p
	one.Name, one.Shape, one.Data = name, []int{n, cols}, p.Data[from:to:to]
	if p.offset > 0 {
		one.offset = p.offset + from
	}
	if !turned && each == 1 {
		return one
	}
	stack := one.Tensor
	stack.Shape = []int{rows, cols}
	if turned {
		stack.Shape = []int{cols, rows}
	}
	one.Data, one.blocks, one.parts = nil, 0, []Tensor{stack}
	one.fill = func(dst []float32, r, lo int) {
		r = first + r*each
		if !turned {
			stack.readRow(dst, r, lo, lo+len(dst))
			return
		}
		for i := range dst {
			stack.readRow(dst[i:i+1], lo+i, r, r+1)
		}
	}
	return one
}
