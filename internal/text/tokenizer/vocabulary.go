package tokenizer

import (
	"encoding/json"
	"fmt"

	"github.com/shoal-llm/shoal/internal/attempt"
)

// vocabulary has the tokens of a model and their ids.
type vocabulary struct {
	ids    map[string]int32
	tokens []string // by id
	known  []bool   // ids that exist; there may be gaps

	unk     int32  // the unknown token, -1: none
	special []bool // ids that literal text must never produce
}

// token returns the string of an id in the model's own vocabulary.
func (v *vocabulary) token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(v.known) || !v.known[id] {
		return "", false
	}
	return v.tokens[id], true
}

// parseVocab parses an object of token: id.
func parseVocab(n node) *vocabulary {
	var raw map[string]json.Number
	n.into(&raw, "an object of token: id")
	if len(raw) == 0 {
		panic(attempt.Failure{Err: invalid(n.path, "is empty")})
	}
	top := int32(0)
	v := &vocabulary{ids: make(map[string]int32, len(raw)), unk: -1}
	for s, num := range raw {
		id, err := num.Int64()
		if err != nil || id < 0 || id >= maxTokenID {
			panic(attempt.Failure{Err: invalid(n.path, "gives %q the id %s, ids are integers in [0, %d)", s, num, maxTokenID)})
		}
		v.ids[s] = int32(id)
		top = max(top, int32(id))
	}
	v.tokens, v.known = make([]string, top+1), make([]bool, top+1)
	for s, id := range v.ids {
		if v.known[id] {
			panic(attempt.Failure{Err: invalid(n.path, "gives the id %d to both %q and %q", id, v.tokens[id], s)})
		}
		v.tokens[id], v.known[id] = s, true
	}
	return v
}

// alias assigns the text s to an additional id, for decoding.
func (v *vocabulary) alias(id int32, s string) {
	for int(id) >= len(v.tokens) {
		v.tokens, v.known = append(v.tokens, ""), append(v.known, false)
	}
	v.tokens[id], v.known[id] = s, true
}

func (v *vocabulary) isSpecial(id int32) bool { return int(id) < len(v.special) && v.special[id] }

// banned reports whether literal text must not produce the id. The unknown token is allowed: it
// replaces an unknown character.
func (v *vocabulary) banned(id int32) bool { return v.isSpecial(id) && id != v.unk }

// model converts one word of the pre-tokenizer to ids. raw: the word is in bytes of a byte-level
// vocabulary instead of its alphabet. literal: no special token may result.
type model interface {
	encode(dst []int32, word string, raw, literal bool) []int32
}

// byteTokens returns the ids of the tokens <0x00> to <0xFF>, or -1 if there is none.
func (v *vocabulary) byteTokens(fallback bool) (ids [256]int32) {
	for b := range ids {
		ids[b] = -1
		if id, ok := v.ids[fmt.Sprintf("<0x%02X>", b)]; ok && fallback {
			ids[b] = id
		}
	}
	return ids
}
