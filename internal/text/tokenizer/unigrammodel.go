package tokenizer

import (
	"encoding/json"
	"fmt"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/unigram"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

// unigramModel is the model "Unigram".
type unigramModel struct {
	*vocabulary
	m     *unigram.Model
	bytes [256]int32 // ids of the tokens <0x00>..., -1 if absent or if byte_fallback is off
	cache *wordCache
}

// parseUnigram parses the pieces with their scores. extra has the settings of a SentencePiece file, or is nil.
func parseUnigram(o object, extra *vocabfile.Extra) *unigramModel {
	pieces := parsePieces(o.at("vocab"))
	v := &vocabulary{ids: make(map[string]int32, len(pieces)), tokens: make([]string, len(pieces)), known: make([]bool, len(pieces)), unk: -1}
	for id, p := range pieces {
		v.tokens[id], v.known[id] = p.Text, true
		if extra != nil {
			if _, again := extra.Again[int32(id)]; again {
				continue
			}
		}
		v.ids[p.Text] = int32(id) // the last one counts, like in the library
	}
	unk := o.at("unk_id")
	if unk.null() {
		panic(attempt.Failure{Err: fmt.Errorf("%w: %s: missing: a character outside the vocabulary would have no id", ErrUnsupported, unk.path)})
	}
	if v.unk = unk.id(); int(v.unk) >= len(pieces) {
		panic(attempt.Failure{Err: invalid(unk.path, "is %d, there are %d pieces", v.unk, len(pieces))})
	}
	u := &unigramModel{vocabulary: v, bytes: v.byteTokens(o.flag("byte_fallback", false)), cache: newWordCache(len(pieces))}
	opts := unigram.Options{Unk: v.unk}
	if extra != nil && extra.Types != nil {
		types := extra.Types
		opts.SentencePiece = true
		opts.Hidden = func(id int32) bool { return types[id] != vocabfile.Normal && types[id] != vocabfile.UserDefined }
		opts.Forced = func(id int32) bool { return types[id] == vocabfile.UserDefined }
	}
	u.m = unigram.New(pieces, v.ids, opts)
	return u
}

// parsePieces parses [[piece, score], ...].
func parsePieces(n node) []unigram.Piece {
	var rows []json.RawMessage
	n.into(&rows, "a list of pieces and scores")
	if len(rows) == 0 || len(rows) > maxTokenID {
		panic(attempt.Failure{Err: invalid(n.path, "has %d entries, want 1 to %d", len(rows), maxTokenID)})
	}
	pieces := make([]unigram.Piece, len(rows))
	for i, raw := range rows {
		var row []json.RawMessage
		p := &pieces[i]
		if json.Unmarshal(raw, &row) != nil || len(row) != 2 || json.Unmarshal(row[0], &p.Text) != nil ||
			json.Unmarshal(row[1], &p.Score) != nil {
			panic(attempt.Failure{Err: invalid(fmt.Sprintf("%s[%d]", n.path, i), "is not [piece, score]")})
		}
	}
	return pieces
}

func (u *unigramModel) encode(dst []int32, word string, _, literal bool) []int32 {
	banned := func(int32) bool { return false }
	if literal {
		banned = u.banned
	} else if ids, ok := u.cache.get(word); ok {
		return append(dst, ids...)
	}
	n := len(dst)
	var room [32]unigram.Part
	for _, p := range u.m.Cut(room[:0], word, banned) {
		if !p.Unknown {
			dst = append(dst, p.ID)
			continue
		}
		if ids, ok := spellBytes(dst, word[p.Lo:p.Hi], &u.bytes); ok {
			dst = ids
		} else {
			dst = append(dst, u.unk)
		}
	}
	if !literal {
		u.cache.put(word, dst[n:])
	}
	return dst
}

// spellBytes appends the byte tokens of s, if all exist.
func spellBytes(dst []int32, s string, bytes *[256]int32) ([]int32, bool) {
	n := len(dst)
	for i := range len(s) {
		id := bytes[s[i]]
		if id < 0 {
			return dst[:n], false
		}
		dst = append(dst, id)
	}
	return dst, true
}
