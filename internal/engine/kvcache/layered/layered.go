// Package layered supports prompts that are read layer by layer. All tokens of a prompt pass some layers,
// whose cache is then compressed, before the next layers begin. The package counts the memory of such a
// prompt, and stores its residual stream between layers. See docs/decisions/layer-by-layer.md.
package layered

import (
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
)

// Fits reports whether a prompt under policy p can be read layer by layer. The policy must drop
// tokens, otherwise nothing is saved. A policy with an index needs all layers at the end of prefill.
func Fits(p *kvcache.Policy) bool {
	return p.Evicts() && p.Index == nil && !p.Needs.Labels
}

// Only returns the geometry for an observation of only the layers [from, to). It declares all others as
// layers with a window, which have no statistics.
func Only(g kvcache.Geometry, from, to int) kvcache.Geometry {
	windows := slices.Repeat([]int{1}, g.Layers)
	clear(windows[from:to])
	copy(windows[from:to], tail(g.Windows, from))
	g.Windows = windows
	return g
}

// part returns the geometry of a model with only the layers [from, to).
func part(g kvcache.Geometry, from, to int) kvcache.Geometry {
	if windows := tail(g.Windows, from); windows != nil {
		g.Windows = windows[:min(to-from, len(windows))]
	}
	g.Layers = to - from
	return g
}

func tail(windows []int, from int) []int {
	if from >= len(windows) {
		return nil
	}
	return windows[from:]
}

// Shape describes how a prompt is read. The zero value means chunk by chunk. Layers are numbered as their caches.
type Shape struct {
	Group  int   // layers that are read at a time
	Layers int   // of the model
	Begins []int // see kvcache.Geometry
	Later  int   // see kvcache.Geometry
	Kept   int   // with Later: the last tokens of the prompt, which pass the later layers
	Pass   int   // tokens that the layers get at a time
	Hidden int   // width of the residual stream
	Block  int   // bytes of a block of the arena
	Ranks  int   // sockets that divide its rows
	InFile bool  // the residual stream is in files
}

// ShapeOf returns the shape for a prompt for which Fits is true. A sweep is about as much work as a chunk of
// `chunk` tokens through all layers. Short prompts pass several layers at a time.
func ShapeOf(g kvcache.Geometry, chunk, tokens, hidden, ranks int, p *kvcache.Policy) Shape {
	s := Shape{Layers: g.Layers, Begins: g.Begins, Later: g.Later, Kept: KeptRows(g, p, tokens), Pass: chunk, Hidden: hidden,
		Block: g.Layout.BlockBytes(), Ranks: ranks}
	s.Group = min(max(1, chunk*s.passed()/max(1, tokens)), s.passed())
	return s
}

// passed returns the number of layers that all tokens of a chunk pass.
func (s Shape) passed() int {
	if s.Later > 0 {
		return s.Later
	}
	return s.Layers
}

// Whole reports whether the layers that all tokens pass are read at once. In that case reading by layers saves
// no memory.
func (s Shape) Whole() bool { return s.To(0) == s.passed() }

// To returns the end of the layers that are read together with layer `from`.
func (s Shape) To(from int) int {
	end := s.Layers
	if from < s.Later {
		end = s.Later
	}
	to := min(from+s.Group, end)
	i, begins := slices.BinarySearch(s.Begins, to)
	switch {
	case begins || s.Begins == nil || to == end:
		return to
	case s.Begins[i-1] > from:
		return s.Begins[i-1]
	case i < len(s.Begins):
		return s.Begins[i]
	}
	return end
}

// Share returns the number of tokens whose work in all layers is that of `tokens` tokens in the layers that are
// read together with layer `from`. SwiftKV's later layers count as no work.
func (s Shape) Share(tokens, from int) int {
	if s.Later > 0 && from >= s.Later {
		return 0
	}
	return tokens * (s.To(from) - from) / s.passed()
}

// laterTokens multiplies the tokens of a sweep through SwiftKV's later layers, which computes only keys and values
// for most tokens. In a Llama of 8B parameters, these are 1/26 of the products of a layer.
const laterTokens = 4

// Rows returns the tokens of a sweep through the layers from `from` on. It is about as much work as a chunk of a number
// of tokens, at most Pass, through all layers.
func (s Shape) Rows(from, chunk int) int {
	passes := max(1, chunk*s.passed()/s.Group/s.Pass)
	if s.Later > 0 && from >= s.Later && s.Kept <= s.Pass {
		passes *= laterTokens
	}
	return passes * s.Pass
}

// CacheBytes returns the peak of a socket's full cache while it reads a prompt of `read` tokens. It includes the
// statistics for the policy. heads is the number of KV heads whose rows the socket stores, and cut the
// number of heads or units that it computes. The first `shared` blocks belong to the prefix cache and are not
// counted.
func (s Shape) CacheBytes(g kvcache.Geometry, heads, cut, read, shared int, p *kvcache.Policy) (most int64) {
	for from := 0; from < g.Layers; from = s.To(from) {
		of := part(g, from, s.To(from))
		of.Chunk = s.Rows(from, s.Pass)
		whole, _ := kvcache.SegmentBytes(of, heads)
		most = max(most, kvcache.PrefillBytes(of, heads, read, p)+kvcache.StatisticsBytes(of, cut, read, p)-int64(shared)*whole)
	}
	return most
}

// ResidualBytes returns the memory of a socket's rows of the residual stream for a number of tokens, and
// FileBytes is their size in a file.
func (s Shape) ResidualBytes(tokens int) int64 {
	if s.InFile {
		return 0
	}
	return int64(s.passes(tokens)) * int64(blocksOf(passBytes(s.Hidden, s.Pass, s.Ranks), s.Block)) * int64(s.Block)
}

func (s Shape) FileBytes(tokens int) int64 {
	if !s.InFile {
		return 0
	}
	return int64(s.passes(tokens)) * int64(passBytes(s.Hidden, s.Pass, s.Ranks))
}

// passes returns the number of passes whose rows are stored, for a number of tokens.
func (s Shape) passes(tokens int) int {
	n := passes(tokens, s.Pass)
	if s.Kept > 0 {
		n += passes(tokens-keptPass(0, s.Pass, tokens, s.Kept), s.Pass)
	}
	return n
}

func passes(tokens, pass int) int { return (tokens + pass - 1) / pass }

// passBytes returns the size of a rank's rows of one pass.
func passBytes(hidden, pass, ranks int) int { return 4 * hidden * ((pass + ranks - 1) / ranks) }

// blocksOf returns the number of blocks for a number of bytes.
func blocksOf(bytes, block int) int { return (bytes + block - 1) / block }
