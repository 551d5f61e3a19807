package natsbus

import "sync"

// buffers is a free list of message buffers by size class (powers of two).
type buffers struct {
	mu    sync.Mutex
	class [25][][]byte
}

const keptBytes = 8 << 20 // per size class

func (p *buffers) take(n int) []byte {
	c := 6
	for 1<<c < n {
		c++
	}
	p.mu.Lock()
	if k := len(p.class[c]); k > 0 {
		b := p.class[c][k-1]
		p.class[c] = p.class[c][:k-1]
		p.mu.Unlock()
		return b[:n]
	}
	p.mu.Unlock()
	return make([]byte, n, 1<<c)
}

// put puts a buffer into the free list. Its origin does not matter.
func (p *buffers) put(b []byte) {
	c := 6
	for c+1 < len(p.class) && 2<<c <= cap(b) {
		c++
	}
	if cap(b) < 1<<c {
		return
	}
	p.mu.Lock()
	if (len(p.class[c])+1)<<c <= max(keptBytes, 2<<c) {
		p.class[c] = append(p.class[c], b)
	}
	p.mu.Unlock()
}
