package grammar

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
)

// Vocabulary has the bytes of each token as a trie. It is immutable, except for masks that grammars
// share, and safe for concurrent use.
type Vocabulary struct {
	size  int
	words int // of a mask
	token [][]byte
	eos   []int32
	marks map[int32]string // control tokens that represent a mark of a thought

	all   trie
	rest  trie  // all except the plain tokens
	plain *Mask // tokens that fit into any JSON string with room for plainRunes more characters

	mu     sync.Mutex
	shared map[string]*inside
}

// plainRunes is the maximum length of a plain token in characters.
const plainRunes = 16

// NewVocabulary gets the bytes of each id below size. An id without bytes (a control token) is
// never allowed, except for those of eos, which end a text where the grammar allows its end.
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

// Mark makes a control token represent a text, one of Marks. The token is allowed only where
// the text is a mark. Call Mark before the vocabulary is used.
func (v *Vocabulary) Mark(id int32, text string) {
	if v.marks == nil {
		v.marks = map[int32]string{}
	}
	v.marks[id] = text
}

// maxTokenBytes: longer tokens are never allowed by a grammar.
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

// trie holds tokens in byte order, parents before children. A walk is one pass that skips
// impossible subtrees.
type trie []trieNode

type trieNode struct {
	end   uint32 // the node after its last descendant
	token int32  // or -1
	depth uint8
	b     byte
}

// newTrie builds a trie of tokens in order, without their first from bytes.
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
		if same == len(b) && len(b) > 0 { // duplicate bytes get a separate leaf
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
	eos   bool // end tokens are allowed
}

func (v *Vocabulary) newMask() *Mask { return &Mask{words: make([]uint64, v.words)} }

func (m *Mask) set(id int32) { m.words[id>>6] |= 1 << (id & 63) }

// Has reports whether a token is allowed.
func (m *Mask) Has(id int32) bool {
	return id >= 0 && int(id>>6) < len(m.words) && m.words[id>>6]>>(id&63)&1 != 0
}

// Words returns the bits of the mask, 64 ids per word. Do not modify them.
func (m *Mask) Words() []uint64 { return m.words }

// Ends reports whether the text may end here.
func (m *Mask) Ends() bool { return m.eos }

func (m *Mask) join(o *Mask) {
	for i, w := range o.words {
		m.words[i] |= w
	}
}
