package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/shoal-llm/shoal/internal/attempt"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/alphabet"
)

// bpe is the model: byte pair encoding with ranked merges (Sennrich et al.,
// arXiv:1508.07909).
type bpe struct {
	*vocabulary

	merges map[uint64]int32 // left<<32 | right -> rank
	result []int32          // token produced by the merge, by rank
	level  []int32          // by rank: merges of one level are equal, and the leftmost comes first; nil: no two are

	fuseUnk      bool
	bytes        [256]int32 // ids of the tokens <0x00>..., -1 if absent or if byte_fallback is off
	prefix       string     // continuing_subword_prefix
	suffix       string     // end_of_word_suffix
	ignoreMerges bool
	whole        map[string]int32 // words that are one token, without merges: symbols of SentencePiece

	// Tables of a byte-level vocabulary, used when words are given as bytes.
	byteID   [256]int32       // token of a single byte, -1: none
	rawVocab map[string]int32 // whole words as bytes, for ignore_merges

	cache *wordCache
}

func pair(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

func parseBPE(o object) *bpe {
	m := &bpe{vocabulary: parseVocab(o.at("vocab"))}
	m.parseOptions(o)
	m.parseMerges(o.at("merges"))
	m.shortcuts()
	m.cache = newWordCache(len(m.ids))
	return m
}

func (m *bpe) parseOptions(o object) {
	if n := o.at("dropout"); !n.null() {
		var p float64
		n.into(&p, "a number")
		if p != 0 {
			panic(attempt.Failure{Err: fmt.Errorf("%w: %s: dropout %v: ids would be random", ErrUnsupported, n.path, p)})
		}
	}
	m.fuseUnk = o.flag("fuse_unk", false)
	m.ignoreMerges = o.flag("ignore_merges", false)
	m.prefix = o.text("continuing_subword_prefix", "")
	m.suffix = o.text("end_of_word_suffix", "")
	m.bytes = m.byteTokens(o.flag("byte_fallback", false))
	unk := o.text("unk_token", "")
	if unk != "" {
		id, ok := m.ids[unk]
		if !ok {
			panic(attempt.Failure{Err: invalid(join(o.path, "unk_token"), "%q is not in model.vocab", unk)})
		}
		m.unk = id
	}
}

// parseMerges accepts both forms, "a b" and ["a", "b"]. The position in the list is the rank.
func (m *bpe) parseMerges(n node) {
	var rows []json.RawMessage
	n.into(&rows, "a list of merges")
	if len(rows) > maxMerges {
		panic(attempt.Failure{Err: invalid(n.path, "has %d entries, the limit is %d", len(rows), maxMerges)})
	}
	m.merges = make(map[uint64]int32, len(rows))
	m.result = make([]int32, 0, len(rows))
	for i, row := range rows {
		at := func() string { return fmt.Sprintf("%s[%d]", n.path, i) }
		var ab []string
		if len(row) > 0 && row[0] == '"' {
			var s string
			if err := json.Unmarshal(row, &s); err != nil {
				panic(attempt.Failure{Err: invalid(at(), "%v", err)})
			}
			if strings.HasPrefix(s, "#version") {
				continue
			}
			ab = strings.Split(s, " ")
		} else if err := json.Unmarshal(row, &ab); err != nil {
			panic(attempt.Failure{Err: invalid(at(), `is neither "a b" nor ["a", "b"]: %v`, err)})
		}
		if len(ab) != 2 {
			panic(attempt.Failure{Err: invalid(at(), "has %d parts, want 2", len(ab))})
		}
		m.addMerge(at, ab[0], ab[1])
	}
}

func (m *bpe) addMerge(at func() string, a, b string) {
	left, ok := m.ids[a]
	if !ok {
		panic(attempt.Failure{Err: invalid(at(), "%q is not in model.vocab", a)})
	}
	right, ok := m.ids[b]
	if !ok {
		panic(attempt.Failure{Err: invalid(at(), "%q is not in model.vocab", b)})
	}
	if len(b) < len(m.prefix) {
		panic(attempt.Failure{Err: invalid(at(), "%q is shorter than the continuing_subword_prefix", b)})
	}
	id, ok := m.ids[a+b[len(m.prefix):]]
	if !ok {
		panic(attempt.Failure{Err: invalid(at(), "makes %q, which is not in model.vocab", a+b[len(m.prefix):])})
	}
	m.merges[pair(left, right)] = int32(len(m.result))
	m.result = append(m.result, id)
}

// shortcuts builds the byte-level tables. They are used if the pre-tokenizer is byte-level.
func (m *bpe) shortcuts() {
	for b := range m.byteID {
		m.byteID[b] = -1
		if id, ok := m.ids[alphabet.Text[b]]; ok {
			m.byteID[b] = id
		}
	}
	if !m.ignoreMerges {
		return
	}
	m.rawVocab = make(map[string]int32, len(m.ids))
	for s, id := range m.ids {
		if raw, ok := alphabet.Bytes(nil, s); ok {
			m.rawVocab[string(raw)] = id
		}
	}
}

// takesBytes reports whether words may be given as bytes instead of in the byte alphabet.
func (m *bpe) takesBytes() bool {
	if m.prefix != "" || m.suffix != "" {
		return false
	}
	for _, id := range m.bytes {
		if id >= 0 {
			return false
		}
	}
	return true
}
