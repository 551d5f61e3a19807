package kvcache

import (
	"errors"
	"math/bits"
	"slices"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/budget"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/voting"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ErrPolicy means that a text is not a policy, or that a policy is not possible for a model. The
// message names the possible ones.
var ErrPolicy = errors.New("kvcache: bad cache policy")

// Policy decides which slots a sequence keeps, writes and reads: at most one [Compressor], one
// [Eviction] and one [Selector], and their parameters. It is a pure value. The same arguments must
// give the same result on every socket; otherwise a rebuilt sequence would have other bits. Package
// kvpolicy makes one from a text.
type Policy struct {
	Parts
	name, spec string
	runs       Runner // the eviction, if it depends on positions alone
	scored     Scored // the eviction, if it depends on scores

	cachePositions bool // see AtCachePositions
	half           bool

	skipped *Policy // of the first Skip layers; nil: full

	of func(prompt int) *Policy // see SharesOf

	layers *sync.Map // place of a layer, number of layers -> *Policy, under LayerTopK
	place  [2]int    // of the layer; layers is nil
}

// Parts are the parts of a policy. Without any it keeps and reads every token.
type Parts struct {
	// Sink and Recent are the numbers of first and newest prompt tokens that stay regardless of their
	// scores. TopK is the number of others that stay.
	Sink, Recent, TopK int
	// LayerTopK, unless nil, is the TopK of each layer, by its place among the layers without a window,
	// for a prompt with a number of other tokens. TopK is the mean over the layers.
	LayerTopK func(candidates, layer, layers int) int
	// HeadBudget divides TopK among the heads of a layer; nil: they have equal numbers.
	HeadBudget *budget.Heads
	// Compressor chooses prompt tokens at the end of prefill. nil: all stay, or those that the
	// eviction would have left.
	Compressor Compressor
	// Needs are the compressor's inputs beyond the keys.
	Needs Needs
	// Eviction assigns slots to generated tokens; nil: each gets its own.
	Eviction Eviction
	// Ring is the number of tokens after those of the prompt that stay, the newest ones; 0: all. It is for a
	// compressor without an eviction, or a selector. A query then selects from the prompt only, and reads the
	// whole ring.
	Ring int
	// Selector chooses the tokens that a query reads; nil: every kept token.
	Selector Selector
	// Index is built when a prompt has been read; nil: none. Under Reorders its Arrange decides
	// where the prompt's tokens are stored, all of which stay; otherwise they stay in text order.
	// Under ReplacesKeys it replaces the keys of pages, and a file holds only their values.
	Index                  PromptIndex
	Reorders, ReplacesKeys bool
	// Skip is the number of first layers that keep and read everything.
	Skip int
	// Tail is the number of a prompt's last tokens that attend like generated ones; nil: none.
	Tail func(prompt int) int
}

// Compressor scores the prompt's tokens once, at the end of prefill; see Parts.
type Compressor interface {
	// Score returns a number per prompt token, [Prompt]. The highest stay.
	Score(s *Statistics) []float32
}

// Eviction assigns the slot of the next token.
type Eviction interface {
	// Slots is the number of slots for a number of tokens. It never falls as tokens grow.
	Slots(tokens int) int
	// Slot is the slot of the token at position pos, below Slots(pos+1). The token in it is
	// evicted; that happens only when Slots does not grow with the new token. Positions come in
	// order, without gaps.
	Slot(h *Head, pos int) int
}

// Runner is an eviction that depends on positions alone. The tokens from pos on, at most m, take n
// successive slots from slot on, as Slot would assign them. n is at least 1.
type Runner interface {
	Eviction
	Run(pos, m int) (slot, n int)
}

// Scored is an eviction by the scores of slots, which start as those of the compressor. After each
// generated token it updates h.Scores from the attention of the token's query to each slot, summed
// over the query heads of the group. A new token has score 0.
type Scored interface {
	Eviction
	Observe(h *Head, attention []float32)
}

// Selector chooses the tokens that a query reads. It is a pageSelector or a slotSelector. It has an index for
// each head, a pure function of the stored keys, so every socket computes the same.
type Selector interface {
	// Page is the number of slots of a page. It divides tensor.BlockSlots.
	Page() int
	// Reads is how many of a number of slots a query reads, at most if the choice has a budget.
	Reads(slots int) int
	// Index is the size of a block of the index, and the number of slots that it covers.
	Index(l tensor.KVLayout) (bytes, slots int)
	// Update extends a valid index of slots [0, from) to [0, to). From the start of a page on it
	// depends on the rows alone.
	Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch)
}

// pageSelector is a Selector of whole pages.
type pageSelector interface {
	Selector
	// Select returns the pages of the slots [0, n) that the queries q read together, by position;
	// nil: all. The slice is in the scratch. The newest page is always included.
	Select(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []int32
}

// slotSelector is a Selector of single slots.
type slotSelector interface {
	Selector
	// SelectSlots is Select with one bit per slot; nil: all.
	SelectSlots(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []uint64
}

// Queries are the queries of one token for one KV head.
type Queries struct {
	Rows  []float32 // [Heads][KDim] after RoPE
	Heads int
	Score tensor.Score // of a product with a key
}

// Needs are a compressor's inputs beyond the keys.
type Needs struct {
	// Window is the length of the observation window: the queries of the last Window prompt tokens.
	// 0: none.
	Window int
	// Candidates, unless zero, are the edges of the prompt outside of the softmax of votes.
	Candidates voting.Edges
	// PromptAttention is the attention that each prompt token received, summed over all queries of
	// the prompt.
	PromptAttention bool
	// Queries: the window's queries themselves go to the owner, not their votes.
	Queries bool
	// Labels: the index is prepared before the end of prefill, with a number for each token, see
	// Clustering.
	Labels bool
}

// Kept is the part of a prompt that one head of a layer keeps.
type Kept struct {
	Positions []int32   // [slots] the prompt position stored in each slot
	Scores    []float32 // [slots] initial scores of a Scored eviction; otherwise nil
	Index     []byte    // of a PromptIndex that reorders: the argument of StoreIndex.WriteIndex
}

// Head is the state of one head of one layer for an Eviction. Only Observe changes Scores.
type Head struct {
	Layer, Index int       // Index: the KV head in the model
	Prompt       int       // tokens at the end of prefill
	Positions    []int32   // [slots] true position of the token in each slot, -1: none; nil: slot = position
	Scores       []float32 // [slots], under a Scored eviction
}

// Compose makes a policy of its parts. spec identifies it.
func Compose(name, spec string, parts Parts) *Policy {
	p := &Policy{Parts: parts, name: name, spec: spec}
	p.runs, _ = parts.Eviction.(Runner)
	p.scored, _ = parts.Eviction.(Scored)
	if p.Skip > 0 && p.Ring > 0 {
		p.skipped = Compose("full", "full", Parts{Ring: p.Ring})
	}
	return p.copied()
}

// copied resets the policies of the layers in a copied policy.
func (p *Policy) copied() *Policy {
	if p.layers = nil; p.LayerTopK != nil {
		p.layers = new(sync.Map)
	}
	return p
}

// at returns the policy of the layer at a place among a number of them.
func (p *Policy) at(place, layers int) *Policy {
	if p.layers == nil {
		return p
	}
	key := [2]int{place, layers}
	if q, ok := p.layers.Load(key); ok {
		return q.(*Policy)
	}
	q := *p
	q.layers, q.place = nil, key
	of, _ := p.layers.LoadOrStore(key, &q)
	return of.(*Policy)
}

// SharesOf makes a policy with sizes that are shares of the prompt. of returns the policy of a prompt
// of the given length in tokens. The parts are those of the longest prompt.
func SharesOf(spec string, longest int, of func(prompt int) *Policy) *Policy {
	p := *of(longest)
	p.spec, p.of = spec, of
	return p.copied()
}

// For returns the policy of a prompt of the given length: each share of the prompt becomes a size.
// Costs and sockets accept only such policies.
func (p *Policy) For(prompt int) *Policy {
	if p == nil || p.of == nil {
		return p
	}
	return p.of(prompt)
}

// Name returns the word before the colon: "full", "streaming".
func (p *Policy) Name() string { return p.name }

// Spec returns the canonical form with all parameters. Parse(Spec()) is the same policy.
func (p *Policy) Spec() string { return p.spec }

// KeepsAll reports whether every token stays in the slot of its position.
func (p *Policy) KeepsAll() bool { return p.KeepsPrompt() && p.Ring == 0 }

// KeepsPrompt reports whether every prompt token stays in the slot of its position. Then the prefill
// blocks become the resident blocks.
func (p *Policy) KeepsPrompt() bool { return !p.Evicts() && !p.Reorders }

// Evicts reports whether the policy drops tokens.
func (p *Policy) Evicts() bool { return p.Compressor != nil || p.Eviction != nil }

// Context returns the number of a prompt's tokens that prefill reads. The others attend like generated
// ones.
func (p *Policy) Context(prompt int) int {
	if p.Tail == nil {
		return prompt
	}
	return prompt - p.Tail(prompt)
}

// RebuildsByPrefill reports whether a lost cache can be rebuilt by prefill of the prompt and the
// output, because decode wrote the same rows. Under other policies generated tokens attended to
// less than prefill does. Their caches are rebuilt by prefill of the prompt and a replay of the
// output through decode rows.
func (p *Policy) RebuildsByPrefill() bool { return p.KeepsAll() && p.Selector == nil }

// ReusableTokens returns the number of first prompt tokens whose rows may come from a prefix cache. The
// rest must be read: at least one token for the logits, and the queries that the compressor
// observes. If it sums over all queries, the sums must come from the cache too ([Segment.KeepSums]).
func (p *Policy) ReusableTokens(prompt int) int { return max(0, prompt-max(1, p.Needs.Window)) }

// SkippableTokens returns the number of first tokens that may leave a step once their keys and values exist
// (SwiftKV).
func (p *Policy) SkippableTokens(prompt int) int {
	if p.Needs.PromptAttention {
		return 0
	}
	return p.ReusableTokens(prompt)
}

// firstSums is the first place in a long prompt where sums are kept.
const firstSums = 1024

// SumsAt returns the next place, after the first from tokens of a prompt, where its sums are worth
// keeping; 0: none. The places are powers of two, where other texts may diverge, and the end of the
// last block that another prompt can reuse. Together they are shorter than three prompts.
func (p *Policy) SumsAt(prompt, from int) int {
	last := p.ReusableTokens(prompt) / tensor.BlockSlots * tensor.BlockSlots
	if !p.Needs.PromptAttention || last <= from {
		return 0
	}
	return min(last, max(firstSums, 1<<bits.Len(uint(from))))
}

// Scored reports whether slots have scores that attention changes in decode. A replica cannot follow
// such a cache, since it gets rows but no queries.
func (p *Policy) Scored() bool { return p.scored != nil }

// Slots returns the number of slots per layer and head that a sequence spans. tokens counts the tokens
// read and generated, prompt those at the end of prefill; tokens >= prompt. Slots never falls as
// tokens grow.
func (p *Policy) Slots(prompt, tokens int) int {
	if p.Ring > 0 {
		tokens = min(tokens, prompt+p.Ring)
	}
	switch {
	case p.Eviction == nil && p.Compressor == nil:
		return tokens
	case p.Eviction == nil:
		return min(prompt, p.Sink+p.Recent) + p.chosen(prompt) + tokens - prompt
	case p.scored != nil:
		return p.Eviction.Slots(tokens)
	}
	return p.Eviction.Slots(tokens) + p.chosen(prompt)
}

// chosen returns the number of prompt tokens that the compressor chooses. They are stored after the slots of a ring.
func (p *Policy) chosen(prompt int) int {
	n := max(prompt-p.Sink-p.Recent, 0)
	if p.LayerTopK != nil {
		return min(n, p.LayerTopK(n, p.place[0], p.place[1]))
	}
	return min(n, p.TopK)
}

// Keep decides at the end of prefill which prompt tokens one head of one layer keeps. Positions has
// length Slots(prompt, prompt). With an eviction by positions the slots are
//
//	| as the eviction assigns them | chosen |
//
// and otherwise the first, the chosen and the newest tokens in text order.
func (p *Policy) Keep(s *Statistics) Kept {
	n := s.Prompt
	if p.Reorders {
		return p.Index.Arrange(s)
	}
	if p.Eviction != nil && p.scored == nil {
		kept := make([]int32, p.Eviction.Slots(n))
		for pos := range min(p.Sink, n) {
			kept[pos] = int32(pos)
		}
		for pos := max(p.Sink, n-p.Recent); pos < n; pos++ {
			kept[p.Eviction.Slot(nil, pos)] = int32(pos)
		}
		if k := p.chosen(n); k > 0 {
			kept = slices.Concat(kept, voting.Top(p.Compressor.Score(s), p.Sink, n-p.Recent, k))
		}
		return Kept{Positions: kept}
	}
	recent := n
	if p.Compressor != nil {
		recent = min(p.Recent, n)
	}
	sink := min(p.Sink, n-recent)
	var scores []float32
	if p.scored != nil || p.Compressor != nil && p.chosen(n) > 0 {
		scores = p.Compressor.Score(s)
	}
	kept := Positions(nil, 0, sink)
	if scores != nil {
		kept = append(kept, voting.Top(scores, sink, n-recent, p.chosen(n))...)
	}
	k := Kept{Positions: Positions(kept, n-recent, n)}
	if p.scored != nil {
		k.Scores = make([]float32, len(k.Positions))
		for i, pos := range k.Positions {
			k.Scores[i] = scores[pos]
		}
	}
	return k
}

// Positions appends the positions [lo, hi).
func Positions(kept []int32, lo, hi int) []int32 {
	for pos := lo; pos < hi; pos++ {
		kept = append(kept, int32(pos))
	}
	return kept
}

// Slot returns the slot of the token at position pos, below Slots(h.Prompt, pos+1).
func (p *Policy) Slot(h *Head, pos int) int {
	if p.Eviction == nil && p.Ring > 0 {
		return p.Slots(h.Prompt, h.Prompt) + (pos-h.Prompt)%p.Ring
	}
	if p.Eviction == nil {
		return p.Slots(h.Prompt, pos)
	}
	return p.Eviction.Slot(h, pos)
}
