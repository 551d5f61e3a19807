package collective

import "fmt"

// Post sends a message outside of the operations, at most once and in no order with them. No rank
// waits for it. Posts share the wire with the operations, which a large number of posts slows down.
// The payload has at most Config.ChunkBytes. Post may block for back-pressure. After an error the
// message was not sent, and the group stays usable.
func (g *Group) Post(dst int, payload []byte) error {
	if dst < 0 || dst >= g.cfg.Size || dst == g.cfg.Rank || len(payload) > g.cfg.ChunkBytes {
		return fmt.Errorf("%w: post of %d bytes to rank %d of %d: want at most %d bytes to another rank", ErrArgument,
			len(payload), dst, g.cfg.Size, g.cfg.ChunkBytes)
	}
	if err := g.Err(); err != nil {
		return err
	}
	msg := make([]byte, MessageBytes(len(payload)))
	copy(msg[HeaderBytes:], payload)
	PutMessage(msg, Header{
		Kind: KindPost, Source: uint16(g.cfg.Rank), Size: uint16(g.cfg.Size), Epoch: g.cfg.Epoch, Chunks: 1,
		Length: uint32(len(payload)), Incarnation: g.cfg.Incarnations[g.cfg.Rank],
	})
	g.mu.Lock()
	g.st.stats.MessagesSent++
	g.st.stats.BytesSent += uint64(len(msg))
	g.mu.Unlock()
	return g.t.Send(dst, msg)
}

// posted delivers a posted message. The lock is held on entry, not on exit.
func (g *Group) posted(src int, h Header, payload []byte) {
	bad := g.st.foreign(src, h)
	if bad != DropNone {
		g.st.drop(bad)
	}
	g.mu.Unlock()
	if bad == DropNone && g.cfg.OnPost != nil {
		g.cfg.OnPost(src, payload)
	}
}
