package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// wordCache remembers the ids of recent words: text repeats its words, and a
// hit costs a tenth of the merges. Direct mapped and lock-free: a new word
// replaces whatever shares its slot. At most maxCacheSlots words of cacheWord
// bytes, so about 10 MB.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord] // a power of two of them
}

const (
	minCacheSlots = 1 << 10
	maxCacheSlots = 1 << 15
	cacheWord     = 48 // longer words seldom come back
)

type cachedWord struct {
	word string
	ids  []int32
}

func newWordCache(vocab int) *wordCache {
	n := minCacheSlots
	for n < vocab && n < maxCacheSlots {
		n *= 2
	}
	return &wordCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedWord], n)}
}

func (c *wordCache) slot(word string) *atomic.Pointer[cachedWord] {
	return &c.slots[maphash.String(c.seed, word)&uint64(len(c.slots)-1)]
}

func (c *wordCache) get(word string) ([]int32, bool) {
	if len(word) > cacheWord {
		return nil, false
	}
	w := c.slot(word).Load()
	if w == nil || w.word != word {
		return nil, false
	}
	return w.ids, true
}

func (c *wordCache) put(word string, ids []int32) {
	if len(word) > cacheWord {
		return
	}
	c.slot(word).Store(&cachedWord{strings.Clone(word), append([]int32(nil), ids...)})
}
