package layer

import (
	"unsafe"

	"shoal/collective"
	"shoal/tensor"
	"shoal/topology"
)

// Start begins the collective of an exchange phase; done is called once, from
// another goroutine or at once. Unpack must follow a successful end.
func (b *Batch) Start(p Phase, g *collective.Group, done func(error)) {
	op := collective.OpID(b.NextOp())
	b.summed = topology.Range{Lo: 0, Hi: b.T}
	switch p {
	case ExchangeLatent:
		b.packGather(b.latentTiles)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeValues:
		b.packPairs(b.meanPair)
		g.AllToAll(op, b.send, b.recv, done)
	case ExchangeQKV:
		b.packPairs(b.qkvPair)
		g.AllToAll(op, b.send, b.recv, done)
	case ExchangeAttention:
		if b.Place.Mapping == topology.Reduce {
			b.packPairs(b.attentionPair)
			g.AllToAll(op, b.send, b.recv, done)
			return
		}
		b.packGather(b.attentionParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeNorm:
		b.packGather(b.normParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeLast:
		b.packGather(b.lastParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeOutRows:
		b.packPairs(b.outRowPair)
		g.AllToAll(op, b.send, b.recv, done)
	case ExchangeDownRows:
		b.packPairs(b.downRowPair)
		g.AllToAll(op, b.send, b.recv, done)
	case ExchangeOut:
		b.packGather(b.outParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeFFN:
		b.packGather(b.ffnParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeExperts:
		b.packGather(b.activationParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ExchangeDown:
		b.packGather(b.downParts)
		g.AllGather(op, b.sendF, b.recvF, done)
	case ReduceDown:
		units := tensor.Units(b.Dims.FFN)
		g.AllReduceTree(op, units, b.allNodes(units), b.partial, b.Y[:b.T*b.Dims.Hidden], done)
	case ScatterDown:
		b.scatter(op, g, 0, func(rank int) int { return b.decodeRows(rank).Len() }, done) // in the order of their owners
	case ScatterPrompt:
		b.scatter(op, g, b.decode, func(rank int) int { return b.rows[rank].Len() }, done)
	}
}

// Unpack puts what the collective brought where the next phase reads it.
func (b *Batch) Unpack(p Phase) {
	switch p {
	case ExchangeLatent:
		b.unpackGather(b.latentTiles)
	case ExchangeValues:
		b.unpackPairs(b.meanPair)
	case ExchangeQKV:
		b.unpackPairs(b.qkvPair)
	case ExchangeAttention:
		if b.Place.Mapping == topology.Reduce {
			b.unpackPairs(b.attentionPair)
			return
		}
		b.unpackGather(b.attentionParts)
	case ExchangeNorm:
		b.unpackGather(b.normParts)
	case ExchangeLast:
		b.unpackGather(b.lastParts)
	case ExchangeOutRows:
		b.unpackPairs(b.outRowPair)
	case ExchangeDownRows:
		b.unpackPairs(b.downRowPair)
	case ExchangeOut:
		b.unpackGather(b.outParts)
	case ExchangeFFN:
		b.unpackGather(b.ffnParts)
	case ExchangeExperts:
		b.unpackGather(b.activationParts)
	case ExchangeDown:
		b.unpackGather(b.downParts)
	}
}

// tile is a rectangle of an activation matrix: rows x columns.
type tile struct{ rows, cols topology.Range }

// Gather exchanges: rank r gives the same tiles to everybody.

type partsFunc func(rank int, yield func(m []float32, ld int, t tile))

func (b *Batch) attentionParts(rank int, yield func([]float32, int, tile)) {
	for i := range b.Segments {
		s := &b.Segments[i]
		h := b.heads(s, rank)
		if b.Dims.Latent.Rank > 0 { // projected head by head, whoever attended
			h = b.Place.Slices[rank].KVHeads
		}
		m, ld, cols := b.attended(h)
		yield(m, ld, tile{topology.Range{Lo: s.First, Hi: s.First + s.N}, cols})
	}
}

// attended is where the attention outputs of heads h lie, or their records.
func (b *Batch) attended(h topology.Range) (m []float32, ld int, cols topology.Range) {
	width, cols := b.Dims.attnCols(), b.attentionCols(h)
	if b.rounded.on {
		return b.rounded.mid, recordFloats(width), records(cols)
	}
	return b.Attn, width, cols
}

func (b *Batch) outParts(rank int, yield func([]float32, int, tile)) {
	h := b.Dims.Hidden
	if b.Place.Mapping == topology.Reduce {
		all := topology.Range{Lo: 0, Hi: h}
		yield(b.X, h, tile{b.decodeRows(rank), all})
		yield(b.X, h, tile{b.rows[rank], all})
		return
	}
	yield(b.Y, h, tile{topology.Range{Lo: 0, Hi: b.T}, b.Place.Slices[rank].Out})
}

func (b *Batch) ffnParts(rank int, yield func([]float32, int, tile)) {
	rows, cols := topology.Range{Lo: 0, Hi: b.T}, b.Place.Slices[rank].FFN
	if b.rounded.on {
		yield(b.rounded.mid, recordFloats(b.Dims.FFN), tile{rows, records(cols)})
		return
	}
	yield(b.Gate, b.Dims.gateWidth(), tile{rows, cols})
}

func (b *Batch) downParts(rank int, yield func([]float32, int, tile)) {
	yield(b.Y, b.Dims.Hidden, tile{topology.Range{Lo: 0, Hi: b.T}, b.Place.Slices[rank].Down})
}

func (b *Batch) packGather(parts partsFunc) {
	n := len(b.Place.Slices)
	b.recvF = grow(b.recvF, n)
	for r := range n {
		size := 0
		parts(r, func(_ []float32, _ int, t tile) { size += t.rows.Len() * t.cols.Len() })
		if r == b.Rank {
			b.sendF = growF(b.sendF, size)
			b.recvF[r] = nil
			continue
		}
		b.recvF[r] = growF(b.recvF[r], size)
	}
	at := 0
	parts(b.Rank, func(m []float32, ld int, t tile) {
		for row := t.rows.Lo; row < t.rows.Hi; row++ {
			at += copy(b.sendF[at:], m[row*ld+t.cols.Lo:row*ld+t.cols.Hi])
		}
	})
}

func (b *Batch) unpackGather(parts partsFunc) {
	for r := range b.Place.Slices {
		if r == b.Rank {
			continue
		}
		at := 0
		parts(r, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi], b.recvF[r][at:])
			}
		})
	}
}

// Pair exchanges: what goes from one rank to another differs by pair.

type pairFunc func(from, to int, yield func(m []float32, ld int, t tile))

// qkvPair: columns that `from` computed and the attention work of `to` needs.
func (b *Batch) qkvPair(from, to int, yield func([]float32, int, tile)) {
	if b.Dims.Latent.Rank > 0 {
		b.queryPair(from, to, yield)
		return
	}
	have := b.ownParts(from)
	for i := range b.Segments {
		s := &b.Segments[i]
		for p, need := range b.headParts(b.heads(s, to)) {
			yield(b.QKV, b.qkvWidth(), tile{topology.Range{Lo: s.First, Hi: s.First + s.N}, need.Intersect(have[p])})
		}
	}
}

// attentionPair: outputs of the heads of `from` for the prefill rows that `to` projects.
func (b *Batch) attentionPair(from, to int, yield func([]float32, int, tile)) {
	for i := range b.Segments {
		s := &b.Segments[i]
		if !s.Prefill {
			continue
		}
		m, ld, cols := b.attended(b.heads(s, from))
		rows := topology.Range{Lo: s.First, Hi: s.First + s.N}.Intersect(b.rows[to])
		yield(m, ld, tile{rows, cols})
	}
}

func (b *Batch) packPairs(pair pairFunc) {
	n := len(b.Place.Slices)
	b.send, b.recv = grow(b.send, n), grow(b.recv, n)
	for r := range n {
		if r == b.Rank {
			b.send[r], b.recv[r] = nil, nil
			continue
		}
		size := func(from, to int) (bytes int) {
			pair(from, to, func(_ []float32, _ int, t tile) { bytes += 4 * t.rows.Len() * t.cols.Len() })
			return bytes
		}
		b.send[r], b.recv[r] = growB(b.send[r], size(b.Rank, r)), growB(b.recv[r], size(r, b.Rank))
		at := 0
		pair(b.Rank, r, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(b.send[r][at:], floatBytes(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi]))
			}
		})
	}
}

func (b *Batch) unpackPairs(pair pairFunc) {
	for r := range b.Place.Slices {
		if r == b.Rank {
			continue
		}
		at := 0
		pair(r, b.Rank, func(m []float32, ld int, t tile) {
			for row := t.rows.Lo; row < t.rows.Hi; row++ {
				at += copy(floatBytes(m[row*ld+t.cols.Lo:row*ld+t.cols.Hi]), b.recv[r][at:])
			}
		})
	}
}

// allNodes are the tree nodes of the down projection that each rank contributes.
func (b *Batch) allNodes(units int) [][]tensor.Span {
	if len(b.nodes) != len(b.Place.Slices) {
		b.nodes = make([][]tensor.Span, len(b.Place.Slices))
		for r, s := range b.Place.Slices {
			b.nodes[r] = tensor.Subtrees(s.FFNUnits.Lo, s.FFNUnits.Hi, units)
		}
	}
	return b.nodes
}

func (b *Batch) partialBuffers(rank int) [][]float32 {
	nodes := b.allNodes(tensor.Units(b.Dims.FFN))[rank]
	b.partial = grow(b.partial, len(nodes))
	for i := range b.partial {
		b.partial[i] = growF(b.partial[i], b.T*b.Dims.Hidden)
	}
	return b.partial
}

// floatBytes views float32 values as the bytes that cross the wire: every
// supported host is little-endian, which the header's magic number checks.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}

func grow[T any](s [][]T, n int) [][]T {
	for cap(s) < n {
		s = append(s[:cap(s)], nil)
	}
	return s[:n]
}

func growF(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}

func growB(s []byte, n int) []byte {
	if cap(s) < n {
		return make([]byte, n)
	}
	return s[:n]
}
