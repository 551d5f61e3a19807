package model

import (
	"encoding/json"
	"strings"
)

// Multimodal checkpoints have their decoder's config in text_config, and its tensors next to those
// of the vision tower. Only the decoder is read: text in, text out.

// nested maps the architecture of such a checkpoint to that of its decoder.
var nested = map[string]string{"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}

// isNested reports whether config.json is of that kind.
func isNested(config []byte) bool {
	f, err := parseFields("", config)
	if err != nil {
		return false
	}
	_, ok := nested[f.architecture()]
	return ok
}

// decoder opens text_config. Settings of the whole checkpoint are outside of it.
func (f *fields) decoder() (*fields, error) {
	in := f.Object("text_config")
	if f.err == nil && in == nil {
		f.fail("text_config", ErrMissing, "missing")
	}
	if f.err != nil {
		return nil, f.err
	}
	for _, key := range []string{"bos_token_id", "eos_token_id", "dtype", "torch_dtype", "quantization_config", "compression_config", "tie_word_embeddings"} {
		if v, ok := f.raw[key]; ok && !in.has(key) {
			in.raw[key] = v
		}
	}
	return in, nil
}

// assume fills in missing keys, as the family's configuration class does.
func (f *fields) assume(defaults map[string]string) {
	for key, v := range defaults {
		if !f.has(key) {
			f.raw[key] = json.RawMessage(v)
		}
	}
}

// decoderName is the name of a tensor in a checkpoint of the decoder alone, from the spelling of
// transformers up to 4.51 (language_model.model.x) or of later versions (model.language_model.x).
// false: the tensor is not the decoder's.
func decoderName(name string) (string, bool) {
	for _, eye := range []string{"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."} {
		if strings.HasPrefix(name, eye) {
			return "", false
		}
	}
	if rest, ok := strings.CutPrefix(name, "model.language_model."); ok {
		return "model." + rest, true
	}
	return strings.TrimPrefix(name, "language_model."), true
}
