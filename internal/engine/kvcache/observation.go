package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/results"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Statistics are the inputs of a compressor for one head of one layer.
type Statistics struct {
	Layer, Head int
	Prompt      int // tokens in the prompt

	// Queries are the queries of the observation window, [window][group][KDim] after RoPE, with
	// window = min(Needs.Window, Prompt). Score is that of a query with a key.
	Queries []float32
	Group   int
	Score   tensor.Score
	// Votes replace Queries in latent attention: the attention that the window's queries pay to
	// each prompt token, summed over them and all query heads, [Prompt].
	Votes []float32
	// Attention is the attention received by each prompt token, [Prompt]; nil unless requested.
	Attention []float32
	// votes are WindowVotes of the needs voted, after Vote.
	votes []float32
	voted Needs

	// Labels are the numbers that PromptIndex.Prepare has given to the tokens, [Prompt]. Prepared is the
	// state that it has stored in the observation. nil: nothing was prepared.
	Labels   []int32
	Prepared any

	// Layout and Blocks give access to the prompt's keys: slot = position.
	Layout tensor.KVLayout
	Blocks [][]byte
	arena  *memory.Arena // of Blocks; nil: they are in the host's memory
}

// Rows returns Blocks in the host's memory. It copies them there at its first call.
func (s *Statistics) Rows() [][]byte {
	if s.arena != nil {
		s.Blocks, s.arena = s.arena.OnHost(s.Blocks), nil
	}
	return s.Blocks
}

// ForgetRows ends the use of Rows and EachKey. It frees the copy that they have made.
func (s *Statistics) ForgetRows() { s.Blocks, s.arena = nil, nil }

// EachKey calls f with every key of the prompt in order, [KDim] after RoPE, as stored. The slice is
// valid during the call.
func (s *Statistics) EachKey(f func(pos int, key []float32)) {
	k, v := make([]float32, s.Layout.KDim), make([]float32, s.Layout.VDim)
	blocks := s.Rows()
	for pos := range s.Prompt {
		s.Layout.Get(blocks[pos/tensor.BlockSlots], pos%tensor.BlockSlots, k, v)
		f(pos, k)
	}
}

// Observation collects attention statistics on one socket while it reads a prompt: the queries of
// the observation window and the attention that prompt tokens receive, for the socket's KV heads.
// Compressors read them at the end. Different (layer, head) pairs may be fed concurrently.
//
// In latent attention the sockets divide the query heads of the one KV head, so the statistics of a
// unit are a part of a sum (see [Observation.Parts]). Queries of a unit are as wide as the row, so
// only their votes are kept, counted as they arrive.
type Observation struct {
	arena  *memory.Arena
	g      Geometry
	heads  tensor.Span
	prompt int
	at     []int       // index of each layer among those without a window; -1: the layer has one
	among  tensor.Span // see Needs.Candidates
	first  int         // position of the first query of the window
	charge int64

	queries   []float32 // (layer, head or unit, window, its query heads, KDim), after RoPE; for latent attention only on request
	votes     []float32 // (layer, unit, prompt): attention of the window to each token; latent attention only
	attention []float32 // (layer, head or unit, prompt)
	labels    []int32   // (layer, head, prompt), of PromptIndex.Prepare

	// Prepared is the state of PromptIndex.Prepare.
	Prepared any
	// Results has the results that PromptIndex.Prepare computed from the same prompt before; nil: nothing is stored.
	Results *results.Prompt
}

// StatisticsBytes returns the size of an Observation for policy p on a socket. heads is its
// number of KV heads (or units) of every layer, and prompt the length of the prompt in tokens.
func StatisticsBytes(g Geometry, heads, prompt int, p *Policy) int64 {
	return statisticsBytes(g, heads, prompt, p.Needs)
}

func statisticsBytes(g Geometry, heads, prompt int, n Needs) int64 {
	floats := min(n.Window, prompt) * g.queryHeads() * g.Layout.KDim
	if g.Units > 0 && !n.Queries {
		if floats = 0; n.Window > 0 {
			floats = prompt
		}
	}
	if n.PromptAttention {
		floats += prompt
	}
	if n.Labels {
		floats += prompt
	}
	return 4 * int64(floats) * int64(g.unwindowed()) * int64(heads)
}

// NewObservation charges the arena. It returns nil without an error if nothing is needed. Errors
// wrap memory.ErrBudget.
func NewObservation(a *memory.Arena, g Geometry, heads tensor.Span, n Needs, prompt int) (*Observation, error) {
	bytes := statisticsBytes(g, heads.Hi-heads.Lo, prompt, n)
	if bytes == 0 {
		return nil, nil
	}
	if err := a.Charge(bytes); err != nil {
		return nil, fmt.Errorf("observing a prompt of %d tokens: %w", prompt, err)
	}
	at, layers := make([]int, g.Layers), 0
	for i := range at {
		at[i] = -1
		if g.window(i) == 0 {
			at[i] = layers
			layers++
		}
	}
	tables := layers * (heads.Hi - heads.Lo)
	window := min(n.Window, prompt)
	o := &Observation{
		arena: a, g: g, heads: heads, prompt: prompt, at: at, among: n.Candidates.Between(prompt),
		first: prompt - window, charge: bytes,
	}
	switch {
	case g.Units == 0 || n.Queries:
		o.queries = make([]float32, tables*window*g.queryHeads()*g.Layout.KDim)
	case window > 0:
		o.votes = make([]float32, tables*prompt)
	}
	if n.PromptAttention {
		o.attention = make([]float32, tables*prompt)
	}
	if n.Labels {
		o.labels = make([]int32, tables*prompt)
	}
	return o, nil
}

// queryHeads returns the number of query heads of a KV head, or of a unit.
func (g Geometry) queryHeads() int { return g.group() / max(1, g.Units) }

func (o *Observation) index(layer, head int) int {
	return o.at[layer]*(o.heads.Hi-o.heads.Lo) + head - o.heads.Lo
}

func (o *Observation) window(layer, head int) []float32 {
	n := (o.prompt - o.first) * o.g.queryHeads() * o.g.Layout.KDim
	return o.queries[o.index(layer, head)*n:][:n]
}

// Observe records the queries of n tokens from position pos on. Their keys are in blocks already.
// q[i*ldq:] is [Group][KDim] of token i.
func (o *Observation) Observe(layer, head, pos, n int, q []float32, ldq int, score tensor.Score, blocks [][]byte, s *tensor.AttnScratch) {
	if o.at[layer] < 0 {
		return
	}
	o.KeepQueries(layer, head, pos, n, q, ldq)
	if o.g.Units > 0 {
		o.count(layer, head, pos, n, q, ldq, score, blocks, s)
		return
	}
	if sums := o.Sums(layer, head); sums != nil {
		tensor.AttentionMass(sums, q, ldq, n, pos, o.g.group(), o.g.scoreOf(layer, head, score), o.g.Layout, blocks, s)
	}
}

// KeepQueries is Observe without the attention of the queries, in a layer without a window.
func (o *Observation) KeepQueries(layer, head, pos, n int, q []float32, ldq int) {
	if o.queries == nil {
		return
	}
	width, w := o.g.queryHeads()*o.g.Layout.KDim, o.window(layer, head)
	for i := max(0, o.first-pos); i < n; i++ {
		copy(w[(pos+i-o.first)*width:][:width], q[i*ldq:])
	}
}

// Statistics returns the inputs of a compressor for one head of the prompt in from.
func (o *Observation) Statistics(from *Store, layer, head int, score tensor.Score) *Statistics {
	e := StatisticsOf(from, layer, head)
	if o == nil || o.at[layer] < 0 {
		return e
	}
	e.Queries, e.Group, e.Score = o.window(layer, head), o.g.group(), o.g.scoreOf(layer, head, score)
	e.Attention = o.Sums(layer, head)
	o.Label(e)
	return e
}

// CopyQueries copies the window's queries of another observation of the same heads, for measurements on
// synthetic prompts.
func (o *Observation) CopyQueries(from *Observation) { copy(o.queries, from.queries) }

// StatisticsOf returns the statistics that need no observation.
func StatisticsOf(s *Store, layer, head int) *Statistics {
	return &Statistics{
		Layer: layer, Head: head, Prompt: s.Tokens(), Group: s.g.group(),
		Layout: s.g.LayoutOf(layer), Blocks: s.Blocks(layer, head), arena: s.arena,
	}
}

// Release returns the bytes to the arena. It may be called twice, or on nil.
func (o *Observation) Release() {
	if o == nil {
		return
	}
	o.arena.Uncharge(o.charge)
	o.charge, o.queries, o.votes, o.attention, o.labels, o.Prepared = 0, nil, nil, nil, nil, nil
}

// First returns the position of the first query that is kept, or the number of tokens. Observes reports whether a
// layer has no window.
func (o *Observation) First() int              { return o.first }
func (o *Observation) Observes(layer int) bool { return o.at[layer] >= 0 }

// Sums returns the attention that each prompt token has received from a head's queries so far; nil if the layer has
// a window, or if the policy does not need it.
func (o *Observation) Sums(layer, head int) []float32 {
	if o.attention == nil || o.at[layer] < 0 {
		return nil
	}
	return o.attention[o.index(layer, head)*o.prompt:][:o.prompt]
}

// Prompt returns the number of tokens in the prompt.
func (o *Observation) Prompt() int { return o.prompt }

// LabelHeads returns the heads with labels. In latent attention all units share one head.
func (o *Observation) LabelHeads() tensor.Span {
	if o.g.Units > 0 {
		return tensor.Span{Lo: 0, Hi: 1}
	}
	return o.heads
}

// Labels returns the numbers of the tokens of a head, [prompt], zero at first; nil: the layer has a
// window.
func (o *Observation) Labels(layer, head int) []int32 {
	if o == nil || o.labels == nil || o.at[layer] < 0 {
		return nil
	}
	of := o.LabelHeads()
	return o.labels[(o.at[layer]*of.Len()+head-of.Lo)*o.prompt:][:o.prompt]
}

// Label sets the labels of a head's statistics, and the state of their preparation.
func (o *Observation) Label(s *Statistics) {
	if s.Labels = o.Labels(s.Layer, s.Head); s.Labels != nil {
		s.Prepared = o.Prepared
	}
}
