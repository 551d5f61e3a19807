package prefix

import "github.com/shoal-llm/shoal/internal/engine/kvcache"

// Memory is the memory of blocks on one socket, in bytes. A block is counted once, for as long as the
// cache or a sequence has it. A sequence's own rows are not counted here.
type Memory struct {
	Block     int64 // of one block in layers without a window
	Window    int64 // of one block in layers with a window
	Shared    int64 // of all blocks that the cache or sequences have
	Evictable int64 // portion of Shared that evicting the whole cache would free

	rank  int
	heads int
}

// NewMemory returns the memory of a socket without blocks that reads prompts for this number of KV heads.
func NewMemory(g kvcache.Geometry, rank, heads int) Memory {
	m := Memory{rank: rank, heads: heads}
	m.Block, m.Window = kvcache.SegmentBytes(g, g.PromptHeads(heads, false))
	return m
}

func (m *Memory) pin(blocks []*Block) {
	for _, b := range blocks {
		if b.Pins[m.rank] == 0 && b.Cached {
			m.Evictable -= m.Block
		}
		b.Pins[m.rank]++
	}
}

// Unpin counts that a sequence has released blocks on this socket.
func (m *Memory) Unpin(blocks []*Block) {
	for _, b := range blocks {
		switch b.Pins[m.rank]--; {
		case b.Pins[m.rank] > 0:
		case b.Cached:
			m.Evictable += m.Block
		default:
			m.Shared -= m.Block
		}
	}
}

// gain returns the bytes that evicting a block frees on a socket.
func (t *Tree) gain(b *Block, rank int) int64 {
	m := t.sockets[rank]
	bytes := m.Window + t.ExtrasBytes(b, b.Extras, rank)
	if b.Pins[rank] == 0 {
		bytes += m.Block
	}
	return bytes
}

// free frees the bytes of an evicted block.
func (t *Tree) free(b *Block) {
	for i, m := range t.sockets {
		bytes := t.gain(b, i)
		m.Shared -= bytes
		m.Evictable -= bytes
	}
	b.Extras, b.Written = 0, 0
}
