package checkpoint

import (
	"slices"
	"strings"
)

// decoderName converts a wrapper's name of a decoder tensor to the name without the wrapper.
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
var towers = []string{"visual", "vision_tower", "vision_model", "vision_embed_tokens", "multi_modal_projector", "mm_projector",
	"patch_merger", "audio_tower", "embed_vision", "embed_audio"}

// isTower reports whether a tensor belongs to an encoder of images or sound.
func isTower(name string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(name, "model."), ".")
	return slices.Contains(towers, first)
}
