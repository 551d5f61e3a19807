package model

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Multimodal checkpoints have their decoder's config in text_config, and its tensors next to those
// of encoders of images and sound. Only the decoder is read: text in, text out.

// Wrapper describes the checkpoints of one multimodal architecture.
type Wrapper struct {
	Decoder string            // architecture of the decoder; "": the one that text_config.model_type names
	Flat    bool              // older files have the decoder's settings outside, without text_config
	AnyTie  bool              // head and embedding are tied if either config sets it; false: the outer one counts
	Assumed map[string]string // settings of the decoder that files leave to the configuration class
}

// nested has the wrappers by architecture.
var nested = map[string]Wrapper{}

// IsNested reports whether config.json is of a multimodal checkpoint.
func IsNested(config []byte) bool {
	f, err := ParseFields("", config)
	if err != nil {
		return false
	}
	_, ok := nested[f.architecture()]
	return ok
}

// unwrap opens the decoder's config inside that of a wrapper, and returns the decoder's
// architecture. Settings of the whole checkpoint are outside of it.
func (f *Fields) unwrap(w Wrapper) (in *Fields, name string, err error) {
	in = f.Object("text_config")
	if in == nil && w.Flat && f.Err == nil {
		in = f
	}
	if f.Err == nil && in == nil {
		f.Fail("text_config", ErrMissing, "missing")
	}
	if f.Err != nil {
		return nil, "", f.Err
	}
	for _, key := range []string{"bos_token_id", "eos_token_id", "dtype", "torch_dtype", "quantization_config", "compression_config"} {
		if v, ok := f.Raw[key]; ok && !in.Has(key) {
			in.Raw[key] = v
		}
	}
	const tie = "tie_word_embeddings"
	if f.Has(tie) && !(w.AnyTie && in.Bool(tie, false)) {
		in.Raw[tie] = f.Raw[tie]
	}
	in.Assume(w.Assumed)
	in.PlainPositions()
	if name = w.Decoder; name == "" {
		kind := in.Text("model_type", "")
		if name = architectureOf[kind]; name == "" {
			in.Fail("model_type", ErrUnknownArch, "decoder %q is not supported; known: %s", Clip(kind),
				strings.Join(slices.Sorted(maps.Keys(architectureOf)), ", "))
		}
	}
	return in, name, in.Err
}

// PlainPositions removes the settings of positions in three dimensions (mrope: time, height and
// width of an image, for parts of a head each). The three positions of a text's token are equal, and
// the rotation is the usual one.
func (f *Fields) PlainPositions() {
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		in := f.Object(key)
		if in == nil {
			continue
		}
		delete(in.Raw, "mrope_section")
		delete(in.Raw, "mrope_interleaved")
		for _, kind := range []string{"type", "rope_type"} {
			if string(in.Raw[kind]) == `"mrope"` {
				in.Raw[kind] = json.RawMessage(`"default"`)
			}
		}
		text, err := json.Marshal(in.Raw)
		if err != nil {
			f.Fail(key, ErrFormat, "%v", err)
			return
		}
		f.Raw[key] = text
	}
}

// Assume fills in missing keys, as the family's configuration class does. There a null number of KV
// heads is that of the query heads, and a null width of heads follows from the hidden size.
func (f *Fields) Assume(defaults map[string]string) {
	for key, v := range defaults {
		if !f.Has(key) && !(f.Given(key) && (key == kvHeads || key == "head_dim")) {
			f.Raw[key] = json.RawMessage(v)
		}
	}
}
