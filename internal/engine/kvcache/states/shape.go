// Package states holds the recurrent states of a sequence. Layers with the gated delta rule, Mamba-2 or
// a short convolution have them instead of keys and values (docs/decisions/cache-layout.md).
//
// A [Set] is the states of one sequence on one socket, one [State] for each KV head of each recurrent
// layer. Sockets divide the states as they divide KV heads.
package states

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Shape is the shape of the layers that have a recurrent state: that of a causal convolution, and a matrix
// of each value head. The zero value means that a model has none.
type Shape struct {
	Layers     int
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads; value head h reads key head h/(ValueHeads/KeyHeads)
	KeyDim     int // 0: the convolution alone has a state
	ValueDim   int
	Taps       int // tokens in the window of the convolution, the newest included
}

// Group returns the number of value heads of a key head.
func (r Shape) Group() int { return r.ValueHeads / r.KeyHeads }

// Channels returns the number of inputs of the convolution for one key head: q, k, and v of its group.
func (r Shape) Channels() int { return 2*r.KeyDim + r.Group()*r.ValueDim }

// HeadsOf returns the key heads that a socket with KV heads h of n has.
func (r Shape) HeadsOf(h tensor.Span, n int) tensor.Span {
	return tensor.Span{Lo: h.Lo * r.KeyHeads / n, Hi: h.Hi * r.KeyHeads / n}
}

// headFloats returns the size of one key head's state: S of its group, and the last inputs of the
// convolution.
func (r Shape) headFloats() int {
	return r.Group()*r.KeyDim*r.ValueDim + (r.Taps-1)*r.Channels()
}

// recordFloats returns the size of one key head's record of a token, see State.
func (r Shape) recordFloats() int {
	if r.KeyDim == 0 {
		return r.Channels()
	}
	return r.Channels() + r.KeyDim + r.Group()*(r.ValueDim+1)
}

// Cut is the shape of states that are divided as KV heads are.
type Cut struct {
	Shape
	KVHeads int // of a layer of the model
}

// maxKeyHeads returns the largest number of key heads of a KV head.
func (c Cut) maxKeyHeads() int { return (c.KeyHeads + c.KVHeads - 1) / c.KVHeads }

// BlockBytes returns the size of the arena block of one KV head of a layer.
func (c Cut) BlockBytes() int { return wholeLines(4 * c.maxKeyHeads() * c.headFloats()) }

// recordBlock returns the size of the arena block of one token's records, of all layers and a number of KV
// heads.
func (c Cut) recordBlock(heads int) int {
	return wholeLines(4 * c.Layers * heads * c.maxKeyHeads() * c.recordFloats())
}

func wholeLines(bytes int) int {
	return (bytes + memory.BlockAlign - 1) / memory.BlockAlign * memory.BlockAlign
}

// Bytes returns the size of a sequence's states on a socket with this number of KV heads. It does not depend on
// the number of tokens.
func (c Cut) Bytes(heads int) int64 {
	if c.Layers == 0 {
		return 0
	}
	return int64(c.Layers) * int64(heads) * int64(c.BlockBytes())
}

// RecordBytes returns the size of the records of a step of staged tokens on the owner.
func (c Cut) RecordBytes(staged int) int64 {
	if c.Layers == 0 {
		return 0
	}
	return int64(max(staged, 1)) * int64(c.recordBlock(c.KVHeads))
}

// RowBytes returns the size of the states of a KV head of one layer on the wire.
func (c Cut) RowBytes(head int) int {
	return 4 * c.HeadsOf(tensor.Span{Lo: head, Hi: head + 1}, c.KVHeads).Len() * c.headFloats()
}

// RecordRowBytes returns the size of a token's records of all layers on the wire.
func (c Cut) RecordRowBytes() int {
	if c.Layers == 0 {
		return 0
	}
	return 4 * c.Layers * c.KeyHeads * c.recordFloats()
}
