package speculate

import "math/bits"

// ring holds the newest tokens of a text and finds earlier places with the same last tokens: hash
// chains over short and long n-grams, as in compressors of the LZ77 family. Adding a token and
// finding the newest place take constant time. The places on a chain include the longest match of a
// suffix, which a suffix tree would find.
type ring struct {
	most   int     // capacity limit in tokens; a power of two
	tokens []int32 // of position p at p&mask
	n      uint64  // tokens so far, which is the next position
	chains [len(grams)]chain
}

// grams are the lengths of the n-grams. The long one comes first, since few places share it.
var grams = [2]int{Long, 2}

type chain struct {
	head []uint32 // by hash: the newest position after such an n-gram, low 32 bits
	back []uint32 // of position p at p&mask: distance to the previous one; 0: none
}

const leastRing = 256

func newRing(most int) *ring { return &ring{most: most} }

// room returns the size of a ring for a number of tokens.
func room(tokens, most int) int {
	return min(most, max(leastRing, 1<<bits.Len(uint(max(1, tokens)-1))))
}

// ringBytes returns the memory of a ring of that size.
func ringBytes(size int) int64 { return int64(size) * int64(4+8*len(grams)) }

func (r *ring) bytes() int64 { return ringBytes(len(r.tokens)) }

func (r *ring) mask() uint64 { return uint64(len(r.tokens) - 1) }

// oldest returns the first position that is still held.
func (r *ring) oldest() uint64 { return r.n - min(r.n, uint64(len(r.tokens))) }

func (r *ring) at(pos uint64) int32 { return r.tokens[pos&r.mask()] }

// grow makes room for a number of tokens, at most r.most, and reinserts the present ones.
func (r *ring) grow(tokens int) {
	want := room(tokens, r.most)
	if want <= len(r.tokens) {
		return
	}
	was, from := *r, r.oldest()
	r.tokens, r.n = make([]int32, want), from
	for i := range r.chains {
		r.chains[i] = chain{head: make([]uint32, want), back: make([]uint32, want)}
	}
	for pos := from; pos < was.n; pos++ {
		r.put(was.at(pos))
	}
}

func (r *ring) put(token int32) {
	if r.n >= uint64(len(r.tokens)) && len(r.tokens) < r.most {
		r.grow(2 * len(r.tokens))
	}
	r.tokens[r.n&r.mask()] = token
	r.n++
	for i, gram := range grams {
		if c := &r.chains[i]; r.n-r.oldest() >= uint64(gram) {
			h := r.hash(i, r.n, r)
			d := uint32(r.n) - c.head[h]
			if c.head[h] == 0 || uint64(d) >= uint64(len(r.tokens)) {
				d = 0
			}
			c.back[r.n&r.mask()], c.head[h] = d, uint32(r.n)
		}
	}
}

// hash returns the hash of the n-gram of from that ends before pos, in r's chain i.
func (r *ring) hash(i int, pos uint64, from *ring) uint64 {
	h := uint64(grams[i])
	for p := pos - uint64(grams[i]); p < pos; p++ {
		h = mix(h, uint64(uint32(from.at(p))))
	}
	return h & uint64(len(r.chains[i].head)-1)
}

// mix is one round of a 64-bit hash.
func mix(a, b uint64) uint64 {
	x := (a ^ b) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// places calls found for positions whose n-gram of chain i equals that at the end of text, newest
// first, until it returns false or visits places were visited. matched is the number of equal
// tokens before, at most longest.
func (r *ring) places(i int, text *ring, visits int, found func(pos uint64, matched int) bool) {
	gram := uint64(grams[i])
	if text.n-text.oldest() < gram || len(r.tokens) == 0 {
		return
	}
	c := &r.chains[i]
	low := c.head[r.hash(i, text.n, text)]
	if low == 0 {
		return
	}
	d := uint64(uint32(r.n) - low)
	for ; visits > 0; visits-- {
		if d >= uint64(len(r.tokens)) || d > r.n {
			return
		}
		pos := r.n - d
		if pos < r.oldest()+gram {
			return
		}
		if d > 0 { // at the end nothing follows
			if m := r.matched(pos, text); m >= int(gram) && !found(pos, m) {
				return
			}
		}
		back := c.back[pos&r.mask()]
		if back == 0 {
			return
		}
		d += uint64(back)
	}
}

// longest bounds the length of a match.
const longest = 64

// matched returns the number of tokens before pos that equal those at the end of text.
func (r *ring) matched(pos uint64, text *ring) int {
	most := min(longest, pos-r.oldest(), text.n-text.oldest())
	for m := range most {
		if r.at(pos-1-m) != text.at(text.n-1-m) {
			return int(m)
		}
	}
	return int(most)
}
