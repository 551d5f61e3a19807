package grammar

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
)

// Vocabulary is what a grammar needs of a tokenizer: the bytes of each token, as a trie.
// It does not change, but for masks that grammars share, and may be used by many at once.
type Vocabulary struct {
	size  int
	words int // of a mask
	token [][]byte
	eos   []int32
	marks map[int32]string // control tokens that mean a mark of a thought

	all   trie
	rest  trie  // all but the plain tokens
	plain *Mask // tokens that fit into any JSON string of at least plainRunes more characters

	mu     sync.Mutex
	shared map[string]*inside
}

// plainRunes bounds the tokens that are taken as one.
const plainRunes = 16

// NewVocabulary takes the bytes of each id below size; an id without bytes (a control
// token) is never allowed but for those of eos, which end a text where a grammar lets it
// end.
func NewVocabulary(size int, token func(id int32) []byte, eos []int32) *Vocabulary {
	v := &Vocabulary{size: size, words: (size + 63) / 64, token: make([][]byte, size), eos: slices.Clone(eos), shared: map[string]*inside{}}
	v.plain = v.newMask()
	ids := make([]int32, 0, size)
	for id := range int32(size) {
		if v.token[id] = token(id); len(v.token[id]) > 0 && len(v.token[id]) <= maxTokenBytes {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int32) int { return bytes.Compare(v.token[a], v.token[b]) })
	var rest []int32
	for _, id := range ids {
		if plainToken(v.token[id]) {
			v.plain.set(id)
		} else {
			rest = append(rest, id)
		}
	}
	v.all, v.rest = newTrie(ids, v.token, 0), newTrie(rest, v.token, 0)
	return v
}

// Mark makes a control token mean a text, one of ThoughtMarks. The token may come where the
// text is a mark, and nowhere else. Call Mark before the vocabulary is used.
func (v *Vocabulary) Mark(id int32, text string) {
	if v.marks == nil {
		v.marks = map[int32]string{}
	}
	v.marks[id] = text
}

// maxTokenBytes: a longer token is never drawn under a grammar.
const maxTokenBytes = 250

func plainToken(b []byte) bool {
	n := 0
	for len(b) > 0 {
		r, w := utf8.DecodeRune(b)
		if r == utf8.RuneError && w <= 1 || r < 0x20 || r == '"' || r == '\\' {
			return false
		}
		b = b[w:]
		n++
	}
	return n <= plainRunes
}

func (v *Vocabulary) Size() int { return v.size }

// trie holds tokens in the order of their bytes, parents before children, so that a walk
// is one pass, and what cannot be is jumped over.
type trie []trieNode

type trieNode struct {
	end   uint32 // the node behind its children
	token int32  // or -1
	depth uint8
	b     byte
}

// newTrie takes tokens in order, without their first bytes.
func newTrie(ids []int32, token [][]byte, from int) trie {
	var t trie
	var path []uint32 // nodes of the last token
	var last []byte
	for _, id := range ids {
		b := token[id][from:]
		same := 0
		for same < len(b) && same < len(last) && b[same] == last[same] {
			same++
		}
		if same == len(b) && len(b) > 0 { // the same bytes again: a leaf of its own
			same--
		}
		for len(path) > same {
			t[path[len(path)-1]].end = uint32(len(t))
			path = path[:len(path)-1]
		}
		for i := same; i < len(b); i++ {
			path = append(path, uint32(len(t)))
			t = append(t, trieNode{token: -1, depth: uint8(i), b: b[i]})
		}
		if len(path) > 0 {
			t[path[len(path)-1]].token = id
		}
		last = b
	}
	for _, p := range path {
		t[p].end = uint32(len(t))
	}
	return t
}

type Mask struct {
	words []uint64
	eos   bool // ends may be drawn
}

func (v *Vocabulary) newMask() *Mask { return &Mask{words: make([]uint64, v.words)} }

func (m *Mask) set(id int32) { m.words[id>>6] |= 1 << (id & 63) }

// Has tells whether a token is allowed.
func (m *Mask) Has(id int32) bool {
	return id >= 0 && int(id>>6) < len(m.words) && m.words[id>>6]>>(id&63)&1 != 0
}

// Words are the bits of the mask, 64 ids a word; not to be changed.
func (m *Mask) Words() []uint64 { return m.words }

// Ends tells whether the text may end here.
func (m *Mask) Ends() bool { return m.eos }

func (m *Mask) join(o *Mask) {
	for i, w := range o.words {
		m.words[i] |= w
	}
}
