package sim

import (
	"encoding/binary"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// The toy model. It has one layer of hashes with the cuts of a real layer: rows are sums over
// units, of which each rank has some. Keys are per KV head; each rank has some of them during
// prefill, and the owner has all afterwards.
const (
	units  = 16
	heads  = 2
	vocab  = 97
	eos    = 0
	window = 200 // context limit
)

var geometry = kvcache.Geometry{Layers: 1, KVHeads: heads, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}

var shape = topology.Shape{Hidden: 64, Heads: heads, KVHeads: heads, HeadDim: 32, FFN: units * 32, Vocab: 96,
	FFNUnits: units, FFNUnitStart: func(u int) int { return 32 * u }}

// mix is one round of a 64-bit hash.
func mix(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x ^= x >> 31
	x *= 0xbf58476d1ce4e5b9
	return x ^ x>>29
}

// part is the contribution of units [lo, hi) to the row of a token; all units together give its
// activation.
func part(token int32, pos, lo, hi int) uint64 {
	var sum uint64
	seed := mix(uint64(token)+1, uint64(pos)+1)
	for u := lo; u < hi; u++ {
		sum += mix(seed, uint64(u)+1)
	}
	return sum
}

// key is the key that one KV head caches of an activation.
func key(x uint64, head int) uint64 { return mix(x, uint64(head)+77) }

// cell is one slot of one head: the key and true position of a token.
type cell struct {
	pos int32 // -1: empty
	key uint64
}

// remove removes an output token.
func (h *history) remove(token int32) { *h -= history(mix(uint64(token)+9, 4)) }

// attend reads slots in slot order.
func attend(slots []cell) uint64 {
	h := uint64(len(slots))
	for _, c := range slots {
		if c.pos >= 0 {
			h = (h ^ c.key + uint64(c.pos)) * 0x100000001b3
		}
	}
	return mix(h, 5)
}

// history is the input of sampling penalties: how often each token occurred, as prompt or output,
// in any order.
type history uint64

func (h *history) add(token int32, output bool) {
	kind := uint64(3)
	if output {
		kind = 4
	}
	*h += history(mix(uint64(token)+9, kind))
}

// draw is the token at a position, from the heads' attention in head order.
func draw(out []uint64, seed uint64, pos int, h history) int32 {
	x := mix(seed, uint64(pos))
	for _, o := range out {
		x = mix(x, o)
	}
	return int32(mix(x, uint64(h)) % vocab)
}

// score is the log-probability of a prompt token after a row.
func score(out []uint64, token int32) float32 {
	x := uint64(token)
	for _, o := range out {
		x = mix(x, o)
	}
	return -float32(x % 4096)
}

// truth is the result of a request without faults.
type truth struct {
	tokens []int32
	reason string
	scores []float32 // of prompt positions 1, 2, ...
}

// undisturbed computes it with loops: no cluster, no batch, no chunks, no epochs.
func undisturbed(spec *batcher.Spec) truth {
	var t truth
	var seen history
	prompt := len(spec.Prompt)
	caches := make([][]cell, heads)
	outs := make([]uint64, heads)
	for pos, token := range spec.Prompt {
		x := part(token, pos, 0, units)
		for h := range caches {
			caches[h] = append(caches[h], cell{int32(pos), key(x, h)})
		}
		seen.add(token, false)
		if spec.PromptLogprobs >= 0 && pos+1 < prompt {
			for h := range caches {
				outs[h] = attend(caches[h])
			}
			t.scores = append(t.scores, score(outs, spec.Prompt[pos+1]))
		}
	}
	t.reason = batcher.ReasonLength
	if spec.MaxTokens == 0 {
		return t
	}
	for h := range caches {
		outs[h] = attend(caches[h])
	}
	for pos := prompt; ; pos++ {
		token := draw(outs, spec.Sampling.Seed, pos, seen)
		t.tokens = append(t.tokens, token)
		if token == eos && !spec.IgnoreEOS {
			t.reason = batcher.ReasonStop
			return t
		}
		if len(t.tokens) == spec.MaxTokens {
			return t
		}
		seen.add(token, true)
		x := part(token, pos, 0, units)
		for h := range caches {
			if pos == prompt {
				caches[h] = keep(spec.Policy, h, caches[h])
			}
			caches[h] = put(spec.Policy, caches[h], prompt, cell{int32(pos), key(x, h)})
			outs[h] = attend(caches[h])
		}
	}
}

// keep is the end of prefill for one head. It returns the prompt's cells that the policy keeps.
func keep(p *kvcache.Policy, head int, prompt []cell) []cell {
	kept := p.Keep(&kvcache.Statistics{Head: head, Prompt: len(prompt)}).Positions
	out := make([]cell, len(kept), len(kept)+1)
	for slot, pos := range kept {
		out[slot] = cell{pos: -1}
		if pos >= 0 {
			out[slot] = prompt[pos]
		}
	}
	return out
}

// put writes the next token to the slot that the policy assigns.
func put(p *kvcache.Policy, slots []cell, prompt int, c cell) []cell {
	slot := p.Slot(&kvcache.Head{Prompt: prompt}, int(c.pos))
	for slot >= len(slots) {
		slots = append(slots, cell{pos: -1})
	}
	slots[slot] = c
	return slots
}

// Cells and sums are sent as bytes.
const cellBytes = 12

func appendCell(b []byte, c cell) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(c.pos))
	return binary.LittleEndian.AppendUint64(b, c.key)
}

func cellAt(b []byte, i int) cell {
	b = b[i*cellBytes:]
	return cell{int32(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[4:])}
}

func sumAt(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
