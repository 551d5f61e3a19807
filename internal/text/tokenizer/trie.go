package tokenizer

// trie finds the longest of a set of byte strings at a position.
type trie struct {
	nodes []trieNode
	start [256]bool // possible first bytes; most positions of a text stop here
}

type trieNode struct {
	id   int32 // the token that ends here, or -1
	next []trieEdge
}

type trieEdge struct {
	b  byte
	to int32
}

// add returns false if s is already in the trie.
func (t *trie) add(s string, id int32) bool {
	if len(t.nodes) == 0 {
		t.nodes = append(t.nodes, trieNode{id: -1})
	}
	t.start[s[0]] = true
	at := int32(0)
	for i := range len(s) {
		to := t.step(at, s[i])
		if to < 0 {
			to = int32(len(t.nodes))
			t.nodes = append(t.nodes, trieNode{id: -1})
			t.nodes[at].next = append(t.nodes[at].next, trieEdge{s[i], to})
		}
		at = to
	}
	if t.nodes[at].id >= 0 {
		return false
	}
	t.nodes[at].id = id
	return true
}

func (t *trie) step(at int32, b byte) int32 {
	for _, e := range t.nodes[at].next {
		if e.b == b {
			return e.to
		}
	}
	return -1
}

func (t *trie) empty() bool { return len(t.nodes) == 0 }

// longest returns the longest entry at the start of s, and its length.
func (t *trie) longest(s string) (id int32, n int) {
	id = -1
	at := int32(0)
	for i := range len(s) {
		if at = t.step(at, s[i]); at < 0 {
			break
		}
		if k := t.nodes[at].id; k >= 0 {
			id, n = k, i+1
		}
	}
	return id, n
}
