package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// wordCache caches the ids of recent words. Words repeat, and a hit costs a tenth of the merges. It
// is direct mapped and lock-free: a new word replaces the one in its slot. It holds at most
// maxCacheSlots words of cacheWord bytes, about 10 MB.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord] // length is a power of two
}

const (
	minCacheSlots = 1 << 10
	maxCacheSlots = 1 << 15
	cacheWord     = 48 // longer words rarely repeat
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
