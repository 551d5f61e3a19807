package batcher

// The ledger books the bytes of a block once, for as long as the prefix cache or a sequence has it.
// The bytes of a sequence's own rows are booked separately.

// blocksOn returns the number of shared blocks that a request holds on a socket.
func (r *request) blocksOn(rank int) int {
	if r.phase == prefill || r.owner == rank {
		return len(r.prefix.blocks)
	}
	return 0
}

// handBlocksOver books the end of prefill: the shared blocks are released on all sockets except the
// owner, and on the owner too unless its cache includes them.
func (l *ledger) handBlocksOver(r *request) {
	shares := r.Policy.Shares(l.g, r.read)
	for _, b := range r.prefix.blocks {
		for i := range l.sockets {
			if i != r.owner || !shares {
				l.unpin(b, i)
				l.sockets[i].freed += l.sockets[i].block
			}
		}
	}
	if !shares {
		r.prefix.blocks = nil
	}
}

// releaseBlocks books that a request has released its shared blocks.
func (l *ledger) releaseBlocks(r *request) {
	for i := range l.sockets {
		if r.blocksOn(i) > 0 {
			for _, b := range r.prefix.blocks {
				l.unpin(b, i)
			}
		}
	}
	r.prefix.blocks = nil
}

// share adds a request as a user of a block on every socket.
func (l *ledger) share(r *request, b *textBlock) {
	for i := range l.sockets {
		l.pin(b, i)
	}
	r.prefix.blocks = append(r.prefix.blocks, b)
}

// takeOver frees the bytes of the request's own blocks that the cache has taken over.
func (l *ledger) takeOver(r *request, blocks int) {
	for i := range l.sockets {
		bytes := int64(blocks) * l.sockets[i].block
		r.booked[i] -= bytes
		l.sockets[i].reserved -= bytes
	}
}

func (l *ledger) pin(b *textBlock, rank int) {
	if b.pins[rank] == 0 && b.cached {
		l.sockets[rank].evictable -= l.sockets[rank].block
	}
	b.pins[rank]++
}

func (l *ledger) unpin(b *textBlock, rank int) {
	a := &l.sockets[rank]
	if b.pins[rank]--; b.pins[rank] > 0 {
		return
	}
	if b.cached {
		a.evictable += a.block
	} else {
		a.shared -= a.block
	}
}

// cache books a new block.
func (l *ledger) cache(b *textBlock) {
	for i := range l.sockets {
		a := &l.sockets[i]
		a.shared += a.block + a.windowed
		a.evictable += a.block + a.windowed
	}
}

// freeBlock frees the bytes of an evicted block.
func (l *ledger) freeBlock(b *textBlock) {
	for i := range l.sockets {
		bytes := l.gain(b, i)
		l.sockets[i].shared -= bytes
		l.sockets[i].evictable -= bytes
	}
	b.extras, b.written = 0, 0
}

// gain returns the bytes that evicting a block frees on a socket.
func (l *ledger) gain(b *textBlock, rank int) int64 {
	bytes := l.sockets[rank].windowed + l.extrasBytes(b, b.extras, rank)
	if b.pins[rank] == 0 {
		bytes += l.sockets[rank].block
	}
	return bytes
}

// sharedBytes returns the bytes of shared blocks that a request holds on its owner, beyond r.booked.
func (l *ledger) sharedBytes(r *request) int64 {
	return int64(len(r.prefix.blocks)) * l.sockets[r.owner].block
}
