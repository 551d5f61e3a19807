// Package booking counts the bytes of an admission on a socket, for each way to read a prompt: in chunks,
// layer by layer, and layer by layer with the residual stream in files. It chooses the socket that owns
// the sequence.
package booking

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Values of Prefill.Mode. They do not change the output.
const (
	Auto   = "auto"   // layer by layer if a prompt does not fit in chunks at the moment
	Layers = "layers" // layer by layer, if the model and the policy allow it
	Chunks = "chunks" // never layer by layer
)

// Demand determines the bytes of an admission.
type Demand struct {
	Policy *kvcache.Policy
	Read   int           // tokens that prefill reads
	Tokens int           // then in the cache of the owner; 0: the cache ends with the prefill
	Shared int           // blocks of the prefix cache at the beginning
	Shape  layered.Shape // zero: chunks read the prompt
	// Arrives means that the owner takes the cache of a prompt that others have read.
	Arrives bool
	// Cut means that no cache is handed over: every socket keeps the rows of its heads.
	Cut bool
	// Least is the fewest tokens that prefill may read, of a sequence that may be rebuilt after any token; 0: Read.
	Least int
}

// Bytes returns the peak on a socket that computes cut of the KV heads or units. A shared block has the given
// size.
func (d Demand) Bytes(g kvcache.Geometry, cut int, owner bool, block int64) int64 {
	if d.Least > 0 && len(g.Windows) > 0 {
		return d.mostBytes(g, cut, owner, block)
	}
	if d.Arrives {
		if !owner {
			return 0
		}
		return kvcache.ResidentBytes(g, d.Read, d.Tokens, d.Policy)
	}
	heads := g.PromptHeads(cut, owner)
	if d.Shape.Group > 0 {
		bytes := d.Shape.CacheBytes(g, heads, cut, d.Read, d.Shared, d.Policy) + d.Shape.ResidualBytes(d.Read-d.Shared*tensor.BlockSlots)
		if owner {
			bytes = max(bytes+kvcache.ResidentBytes(g, d.Read, d.Read, d.Policy), kvcache.ResidentBytes(g, d.Read, d.Tokens, d.Policy))
		}
		return bytes
	}
	if d.Cut {
		return kvcache.PrefillBytes(g, heads, max(d.Read, d.Tokens), d.Policy) - int64(d.Shared)*block
	}
	statistics := kvcache.StatisticsBytes(g, cut, d.Read, d.Policy)
	bytes := kvcache.PrefillBytes(g, heads, d.Read, d.Policy) + statistics
	if owner && d.Tokens > 0 {
		bytes = max(kvcache.HandoverBytes(g, heads, d.Read, d.Policy)+statistics, kvcache.ResidentBytes(g, d.Read, d.Tokens, d.Policy))
	}
	return bytes - int64(d.Shared)*block
}

// mostBytes returns the largest peak of a sequence that is rebuilt. With sliding windows, less prefill may need more:
// a window begins in another block, and a cache that grows after prefill has one block more.
func (d Demand) mostBytes(g kvcache.Geometry, cut int, owner bool, block int64) (most int64) {
	least := max(d.Least, d.Read-tensor.BlockSlots+1) // windows begin at all places in a block
	for d.Least = 0; d.Read >= least; d.Read-- {
		if d.Cut {
			d.Tokens = d.Read
		}
		most = max(most, d.Bytes(g, cut, owner, block))
	}
	return most
}

// Prefill is how a cluster reads prompts.
type Prefill struct {
	Mode    string // Auto, Layers or Chunks
	Hidden  int    // width of the residual stream; 0: the model cannot read layer by layer
	NoFiles bool   // files of residual streams fail at the moment
}

// Shapes returns the ways to read a prompt, in the order of preference. file reports whether every
// socket has room for a file of a given size.
func (r Prefill) Shapes(g kvcache.Geometry, ranks int, p *kvcache.Policy, read, shared int, file func(bytes int64) bool) []layered.Shape {
	chunks := layered.Shape{}
	if r.Mode == Chunks || r.Hidden == 0 || !layered.Fits(p) ||
		shared > 0 && p.Needs.PromptAttention { // the sums of a prefix are those of all layers
		return []layered.Shape{chunks}
	}
	shape := layered.ShapeOf(g, g.Chunk, read, r.Hidden, ranks, p)
	if shape.Whole() {
		return []layered.Shape{chunks}
	}
	inFile := shape
	inFile.InFile = true
	list := []layered.Shape{chunks, shape, inFile}
	if r.NoFiles || !file(inFile.FileBytes(read-shared*tensor.BlockSlots)) {
		list = list[:2]
	}
	if r.Mode == Layers {
		return list[1:]
	}
	return list
}
