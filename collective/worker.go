package collective

// worker sends payloads, and does for start what must not hold up the caller:
// replaying messages that came early, and reductions that were only waiting for
// the start. A goroutine of its own, because a transport may block a sender
// until the receivers have caught up. While somebody polls it leaves the work to that one.
func (g *Group) worker() {
	defer close(g.ended)
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.closed {
		if !g.held && g.more() {
			g.piece()
			continue
		}
		g.work.Wait()
	}
}

// turns does all work that there is, but for what the worker has in hand. The lock is held on
// entry and exit.
func (g *Group) turns() {
	for !g.closed && g.more() {
		if !g.together() {
			g.piece()
		}
	}
}

// together has the crew send a chunk to each of several ranks; false: there are not so many. The
// lock is held on entry and exit.
func (g *Group) together() bool {
	n := min(len(g.st.jobs.all()), g.cfg.Size-1)
	if g.cfg.Crew == nil || n < 2 {
		return false
	}
	g.turned = true
	for range n {
		j, _ := g.st.nextJob()
		g.lent = append(g.lent, j)
	}
	for len(g.messages) < n {
		g.messages = append(g.messages, nil)
	}
	g.mu.Unlock()
	g.cfg.Crew(n, g.sendLent)
	g.mu.Lock()
	clear(g.lent)
	g.lent, g.turned = g.lent[:0], false
	return true
}

// more says that there is work for who asks; the lock is held.
func (g *Group) more() bool { return !g.turned && g.busy() }

// piece does one piece of work; the lock is held on entry and exit.
func (g *Group) piece() {
	g.turned = true
	g.turn()
	g.mu.Lock()
	g.turned = false
}

// busy says that there is work; the lock is held.
func (g *Group) busy() bool {
	return !g.st.jobs.empty() || !g.st.replays.empty() || !g.st.combines.empty()
}

// turn does one piece of work; the lock is held on entry, not on exit. Sends go
// first: others wait for them.
func (g *Group) turn() {
	if j, ok := g.st.nextJob(); ok {
		g.mu.Unlock()
		g.sendChunk(j, &g.message)
		return
	}
	if m, ok := g.st.replays.pop(); ok {
		g.take(int(m.h.Source), m.h, m.payload, m.msg)
	}
	g.combineAll()
	g.leave()
}

// sendChunk copies one chunk into a message, gives the operation back, so that it
// can fail while the transport holds this rank up, and sends. An operation is done
// when its messages are on their way and not before: who has nothing to wait for
// would compute on the processor that they need, and all others wait for them.
func (g *Group) sendChunk(j job, message *[]byte) {
	s := j.op.phases[j.phase].sends[j.send]
	lo, hi := chunkRange(s.size, g.cfg.ChunkBytes, j.chunk)
	n := MessageBytes(hi-lo, !g.cfg.NoChecksum)
	if cap(*message) < n {
		*message = make([]byte, n)
	}
	msg := (*message)[:n]
	j.op.gather(s, msg[HeaderBytes:HeaderBytes+hi-lo], lo)
	PutMessage(msg, Header{
		Kind: j.op.phases[j.phase].kind, DType: j.op.phases[j.phase].dtype,
		Source: uint16(g.cfg.Rank), Size: uint16(g.cfg.Size), Epoch: g.cfg.Epoch,
		Op: j.op.id, Chunk: uint16(j.chunk), Chunks: uint16(chunkCount(s.size, g.cfg.ChunkBytes)),
		Length: uint32(hi - lo), Incarnation: g.cfg.Incarnations[g.cfg.Rank],
	}, !g.cfg.NoChecksum)
	id, kind := j.op.id, j.op.phases[j.phase].kind

	g.mu.Lock()
	last := g.st.encoded(j)
	g.st.stats.MessagesSent++
	g.st.stats.BytesSent += uint64(n)
	g.leave()

	var err error
	if s.dst == broadcastAddress {
		err = g.t.Broadcast(msg)
	} else {
		err = g.t.Send(s.dst, msg)
	}
	if err != nil {
		g.Fail(&OpError{Op: id, Kind: kind, Err: ErrTransport, Detail: "send", Cause: err})
		return
	}
	if last {
		g.mu.Lock()
		g.st.sent(id)
		g.leave()
	}
}
