package collective

// worker sends payloads. It also replays messages that came early and computes reductions that were
// complete at the start of their operation, so that start does not block. It has its own goroutine
// because a transport may block a sender until the receivers have caught up. While a goroutine polls,
// that goroutine does the work instead.
func (g *Group) worker() {
	defer close(g.ended)
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.closed {
		if !g.polled && g.canWork() {
			g.workOne()
			continue
		}
		g.work.Wait()
	}
}

// drain does all pending work except the current item of the worker. The lock is held on entry and exit.
func (g *Group) drain() {
	for !g.closed && g.canWork() {
		if !g.sendParallel() {
			g.workOne()
		}
	}
}

// sendParallel sends one chunk each to several ranks on the threads of Config.Parallel. It returns false if
// fewer than two chunks are pending. The lock is held on entry and exit.
func (g *Group) sendParallel() bool {
	n := min(len(g.st.jobs.all()), g.cfg.Size-1)
	if g.cfg.Parallel == nil || n < 2 {
		return false
	}
	g.working = true
	for range n {
		j, _ := g.st.nextJob()
		g.batch = append(g.batch, j)
	}
	for len(g.messages) < n {
		g.messages = append(g.messages, nil)
	}
	g.mu.Unlock()
	g.cfg.Parallel(n, g.sendBatched)
	g.mu.Lock()
	clear(g.batch)
	g.batch, g.working = g.batch[:0], false
	return true
}

// canWork reports whether there is work that this goroutine may start. The lock is held.
func (g *Group) canWork() bool { return !g.working && g.busy() }

// workOne does one unit of work. The lock is held on entry and exit.
func (g *Group) workOne() {
	g.working = true
	g.workUnlocking()
	g.mu.Lock()
	g.working = false
}

// busy reports whether there is work. The lock is held.
func (g *Group) busy() bool {
	return !g.st.jobs.empty() || !g.st.replays.empty() || !g.st.combines.empty()
}

// workUnlocking does one unit of work. The lock is held on entry, not on exit. Sends go first, because other
// ranks wait for them.
func (g *Group) workUnlocking() {
	if j, ok := g.st.nextJob(); ok {
		g.mu.Unlock()
		g.sendChunk(j, &g.message)
		return
	}
	if m, ok := g.st.replays.pop(); ok {
		g.handle(int(m.h.Source), m.h, m.payload, m.msg)
	}
	g.combineAll()
	g.unlock()
}

// sendChunk copies one chunk into a message and then sends it. It releases the operation before the
// send, so that the operation can fail while the transport blocks. An operation completes only
// after its messages are on their way. Otherwise a rank with nothing to wait for would start
// computing on the CPU that must send them, while all others wait.
func (g *Group) sendChunk(j job, message *[]byte) {
	s := j.op.phases[j.phase].sends[j.send]
	lo, hi := chunkRange(s.size, g.cfg.ChunkBytes, j.chunk)
	n := MessageBytes(hi - lo)
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
	})
	id, kind := j.op.id, j.op.phases[j.phase].kind

	g.mu.Lock()
	last := g.st.encoded(j)
	g.st.stats.MessagesSent++
	g.st.stats.BytesSent += uint64(n)
	g.unlock()

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
		g.unlock()
	}
}
