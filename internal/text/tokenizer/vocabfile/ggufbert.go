package vocabfile

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/categories"
)

const spaceMark = "\u2581"

// bert converts WordPiece. Converters write "▁word" for the token "word" and "piece" for the token
// "##piece". The file has no flag for lower case: the model is lower-cased if no token has an
// upper-case letter.
func (v *ggufVocab) bert(f *gguf.File) map[string]any {
	vocab, lower := map[string]int{}, true
	for id, s := range v.tokens {
		if _, again := v.again[int32(id)]; again {
			continue
		}
		plain, whole := strings.CutPrefix(s, spaceMark)
		switch k := v.kind(id); {
		case k == Control || k == Unknown || !whole && strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]"):
		case whole:
			s, lower = plain, lower && categories.Lower(plain) == plain
		default:
			s, lower = "##"+s, lower && categories.Lower(s) == s
		}
		if old, ok := vocab[s]; ok {
			panic(attempt.Failure{Err: Invalid(GGUFPrefix+"tokens", "the tokens %d and %d both mean %q", old, id, s)})
		}
		vocab[s] = id
		v.tokens[id] = s
	}
	special := func(def string, keys ...string) named {
		for _, key := range keys {
			if id := v.id(f, key); id >= 0 {
				return named{v.tokens[id], id}
			}
		}
		id, ok := vocab[def]
		if !ok {
			panic(attempt.Failure{Err: Invalid(GGUFPrefix+keys[0], "is missing, and no token is %q", def)})
		}
		return named{def, id}
	}
	cls := special("[CLS]", "cls_token_id", "bos_token_id")
	sep := special("[SEP]", "seperator_token_id", "eos_token_id") //nolint:misspell // as GGUF spells it
	return map[string]any{
		"normalizer":     map[string]any{"type": "BertNormalizer", "lowercase": lower},
		"pre_tokenizer":  map[string]any{"type": "BertPreTokenizer"},
		"model":          map[string]any{"type": "WordPiece", "vocab": vocab, "unk_token": special("[UNK]", "unknown_token_id").token},
		"post_processor": bertTemplates(cls, sep),
		"decoder":        map[string]any{"type": "WordPiece", "prefix": "##", "cleanup": true},
	}
}
