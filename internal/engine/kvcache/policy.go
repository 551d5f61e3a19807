package kvcache

import (
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Policy is the rule by which a sequence keeps, writes and reads its slots: at most one
// [Compressor], one [Eviction] and one [Selector], and their parameters. It is a pure
// value: the same arguments give the same answer on every socket, or a rebuilt sequence
// would not give the same bits. [Parse] makes one of its text.
type Policy struct {
	Parts
	name, spec string
	runs       Runner // the eviction, where it goes by positions alone
	scored     Scored // the eviction, where it goes by scores

	cachePositions bool // see AtCachePositions
	half           bool
}

// Parts are what a policy is made of. Without any it keeps and reads every token.
type Parts struct {
	// Sink and Recent are the first and the newest prompt tokens that stay whatever their
	// scores are, TopK how many of the others do.
	Sink, Recent, TopK int
	// Compressor chooses prompt tokens at the end of prefill; nil: all stay, or those that
	// the eviction would have left.
	Compressor Compressor
	// Needs is what the compressor reads beyond the keys.
	Needs Needs
	// Eviction names the slots of generated tokens; nil: each gets one of its own.
	Eviction Eviction
	// Selector chooses what a query reads; nil: everything that is kept.
	Selector Selector
	// Factors are what a selector of pages leaves of the keys of a prompt.
	Factors Factors
	// Skip is the number of first layers that keep and read everything.
	Skip int
	// Arranger orders the prompt's tokens, all of which stay; nil: they lie in the order of the
	// text.
	Arranger Arranger
	// Tail is how many of a prompt's last tokens attend as generated ones do; see Context.
	Tail int
}

// Arranger says where the tokens of a prompt lie, once, at the end of prefill, and makes the index
// of them when the owner has all heads.
type Arranger interface {
	// Arrange keeps every token; scores are numbers that come with the rows, see note.
	Arrange(s *Statistics) Kept
	// arranged is how many of a context's first tokens it moves.
	arranged(context int) int
	// clustering is the part of its work that can be done before the end, and piece does some of it.
	clustering(g Geometry, prompt int) Clustering
	piece(o *Observation, from *Store, p *Policy, piece int, run func(n int, f func(i int)))
	// note takes the number that came with a row, and notes gives that of each slot for a cache that moves.
	note(t *table, s *Store, slot int, number float32)
	notes(t *table, s *Store) func(slot int) float32
	// finish makes a piece of the owner's index, see Clustering.
	finish(s *Store, piece int, run func(n int, f func(i int))) error
}

// Compressor scores the prompt's tokens once, at the end of prefill; see Parts.
type Compressor interface {
	// Score is a number a prompt token, [Prompt]: the highest stay.
	Score(s *Statistics) []float32
}

// Eviction names the slot of the next token.
type Eviction interface {
	// Slots is the number of slots that `tokens` tokens take, never less for more of them.
	Slots(tokens int) int
	// Slot is the slot of the token at position pos, below Slots(pos+1). What it held is
	// evicted; that happens only when Slots does not grow with the token. Positions come in
	// order, without gaps.
	Slot(h *Head, pos int) int
}

// Runner is an eviction that goes by positions alone: the tokens from pos on, m at most,
// take n successive slots from slot on, as Slot would have it one by one. n is at least 1.
type Runner interface {
	Eviction
	Run(pos, m int) (slot, n int)
}

// Scored is an eviction that goes by the scores of slots, which begin as those of the
// compressor: after each generated token it updates h.Scores from the attention that the
// token's query paid to each slot, summed over the query heads of the group. A token that
// comes into a slot has score 0.
type Scored interface {
	Eviction
	Observe(h *Head, attention []float32)
}

// Selector chooses what a query reads: it is a pageSelector or a slotSelector. It has an index beside the rows of each
// head, a pure function of the keys as they are stored, so that every socket finds the same.
type Selector interface {
	// Page is the number of slots of a page; it divides tensor.BlockSlots.
	Page() int
	// Reads is how many of so many slots a query reads, at most where the choice has a budget.
	Reads(slots int) int
	// Index is the size of a block of the index, and the number of slots that it covers.
	Index(l tensor.KVLayout) (bytes, slots int)
	// Update makes an index that is right for the slots [0, from) right for [0, to). From the
	// start of a page on it looks at nothing but the rows.
	Update(l tensor.KVLayout, index, blocks [][]byte, from, to int, s *tensor.AttnScratch)
}

// pageSelector is a Selector that chooses whole pages.
type pageSelector interface {
	Selector
	// Select gives the pages of the slots [0, n) that the queries q read together, in order
	// of position; nil: all. They lie in the scratch, and the newest is among them.
	Select(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []int32
}

// slotSelector is a Selector that chooses single slots.
type slotSelector interface {
	Selector
	// SelectSlots is Select by a bit a slot; nil: all.
	SelectSlots(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []uint64
}

// Queries are those of one token for one KV head.
type Queries struct {
	Rows  []float32 // [Heads][KDim] after RoPE
	Heads int
	Scale float32 // of a product with a key
}

// Factors say that the keys of a prompt's pages become factors of low rank, see lowrank.go.
type Factors struct {
	Rank  int // 0: keys are exact
	Exact int // pages that keep their keys, at most
	Pages int // others that a query chooses
	// Marked is how many pages of so many slots a query chooses from, the first; 0: it reads all.
	Marked func(slots int) int
	// Choose gives a bit to each of the first n pages whose keys stay.
	Choose func(l tensor.KVLayout, index [][]byte, n int, s *tensor.AttnScratch) []uint64
}

// Needs is what a compressor reads beyond the keys.
type Needs struct {
	// Window is the length of the observation window: the queries of the last Window
	// prompt tokens. 0: none.
	Window int
	// PromptAttention is the attention that each prompt token received, summed over all
	// queries of the prompt.
	PromptAttention bool
	// Queries says that the window's queries themselves go to the owner, not their votes.
	Queries bool
	// Labels says that the arranger's work may be done before the end of prefill, see Clustering.
	Labels bool
}

// Kept is what a head of a layer keeps of a prompt.
type Kept struct {
	Positions []int32   // [slots] the prompt position that goes into each slot
	Scores    []float32 // [slots] the first scores under a Scored eviction, or an Arranger's numbers; else nil
}

// Head is one head of one layer as an eviction sees it. Only Observe changes Scores.
type Head struct {
	Layer, Index int       // Index: the KV head in the model
	Prompt       int       // tokens at the end of prefill
	Positions    []int32   // [slots] true position of the token in each slot, -1: none; nil: slot = position
	Scores       []float32 // [slots], under a Scored eviction
}

// Compose makes a policy of its parts; spec is what names it.
func Compose(name, spec string, parts Parts) *Policy {
	p := &Policy{Parts: parts, name: name, spec: spec}
	p.runs, _ = parts.Eviction.(Runner)
	p.scored, _ = parts.Eviction.(Scored)
	return p
}

// Name is the word before the colon: "full", "streaming".
func (p *Policy) Name() string { return p.name }

// Spec is the canonical form with all parameters; Parse(Spec()) is the same policy.
func (p *Policy) Spec() string { return p.spec }

// KeepsAll says that every token stays in the slot of its position: then the prefill
// blocks become the resident blocks.
func (p *Policy) KeepsAll() bool { return !p.evicts() && p.Arranger == nil }

func (p *Policy) evicts() bool { return p.Compressor != nil || p.Eviction != nil }

// Context is how many tokens of a prompt prefill reads; the others attend as generated ones do.
func (p *Policy) Context(prompt int) int {
	if p.Arranger != nil && p.Arranger.arranged(prompt) > 0 {
		return prompt - p.Tail // of which some may be too few to be clustered
	}
	return prompt
}

// RebuildsByPrefill says that a lost cache is rebuilt by prefill of the prompt and of what
// was generated, whose rows are those that decode wrote. Under other policies generated
// tokens attended to less than prefill attends to, so a cache is rebuilt by prefill of the
// prompt and a replay of the output through decode rows.
func (p *Policy) RebuildsByPrefill() bool { return p.KeepsAll() && p.Selector == nil }

// Warm is how many of the first tokens of a prompt may come from a cache of its rows with the
// same answer: the rest is read, at least one token for the logits and the queries that the
// compressor observes. Where it sums over all queries, the sums have to come too ([Segment.KeepSums]).
func (p *Policy) Warm(prompt int) int { return max(0, prompt-max(1, p.Needs.Window)) }

// Unseen is how many of the first tokens may leave when their keys and values are there (SwiftKV).
func (p *Policy) Unseen(prompt int) int {
	if p.Needs.PromptAttention {
		return 0
	}
	return p.Warm(prompt)
}

// firstSums is where the sums of a long prompt are kept first.
const firstSums = 1024

// SumsAt is the next place, behind the first from tokens of a prompt, where its sums are worth
// keeping, 0: there is none: at powers of two, where others may have left the text, and at the end
// of the last block that another prompt can begin with. All together are shorter than three prompts.
func (p *Policy) SumsAt(prompt, from int) int {
	last := p.Warm(prompt) / tensor.BlockSlots * tensor.BlockSlots
	if !p.Needs.PromptAttention || last <= from {
		return 0
	}
	return min(last, max(firstSums, 1<<bits.Len(uint(from))))
}

// Scored says that slots carry scores, which attention changes in decode: such a cache
// cannot be followed by a replica, which sees rows and no queries.
func (p *Policy) Scored() bool { return p.scored != nil }

// numbered says that rows carry a number when a cache moves.
func (p *Policy) numbered() bool { return p.Scored() || p.Arranger != nil }

// Layer is what a layer that sees everything goes by.
func (p *Policy) Layer(layer int) *Policy {
	if layer < p.Skip {
		return full
	}
	return p
}

// Slots is the number of slots per layer and head that a sequence spans once `tokens`
// tokens were read or generated, `prompt` of which were there at the end of prefill;
// tokens >= prompt. It never falls as tokens grow.
func (p *Policy) Slots(prompt, tokens int) int {
	switch {
	case p.Eviction == nil && p.Compressor == nil:
		return tokens
	case p.Eviction == nil:
		return min(prompt, p.Sink+p.TopK+p.Recent) + tokens - prompt
	case p.scored != nil:
		return p.Eviction.Slots(tokens)
	}
	return p.Eviction.Slots(tokens) + p.apart(prompt)
}

// apart is the number of chosen prompt tokens that lie behind the slots of a ring.
func (p *Policy) apart(prompt int) int { return min(max(prompt-p.Sink-p.Recent, 0), p.TopK) }

// Keep says at the end of prefill which of the prompt's tokens one head of one layer
// keeps: Positions has length Slots(prompt, prompt). Behind an eviction that goes by
// positions the slots are
//
//	| as the eviction has them | chosen |
//
// and otherwise the first, the chosen and the newest tokens in the order of the text.
func (p *Policy) Keep(s *Statistics) Kept {
	n := s.Prompt
	if p.Arranger != nil {
		return p.Arranger.Arrange(s)
	}
	if p.Eviction != nil && p.scored == nil {
		kept := make([]int32, p.Eviction.Slots(n))
		for pos := range min(p.Sink, n) {
			kept[pos] = int32(pos)
		}
		for pos := max(p.Sink, n-p.Recent); pos < n; pos++ {
			kept[p.Eviction.Slot(nil, pos)] = int32(pos)
		}
		if k := p.apart(n); k > 0 {
			kept = slices.Concat(kept, topK(p.Compressor.Score(s), p.Sink, n-p.Recent, k))
		}
		return Kept{Positions: kept}
	}
	recent := n
	if p.Compressor != nil {
		recent = min(p.Recent, n)
	}
	sink := min(p.Sink, n-recent)
	var scores []float32
	if p.scored != nil || p.Compressor != nil && n-recent > sink && p.TopK > 0 {
		scores = p.Compressor.Score(s)
	}
	kept := span(nil, 0, sink)
	if scores != nil {
		kept = append(kept, topK(scores, sink, n-recent, p.TopK)...)
	}
	k := Kept{Positions: span(kept, n-recent, n)}
	if p.scored != nil {
		k.Scores = make([]float32, len(k.Positions))
		for i, pos := range k.Positions {
			k.Scores[i] = scores[pos]
		}
	}
	return k
}

// span appends the positions [lo, hi).
func span(kept []int32, lo, hi int) []int32 {
	for pos := lo; pos < hi; pos++ {
		kept = append(kept, int32(pos))
	}
	return kept
}

// Slot is the slot of the token at position pos, below Slots(h.Prompt, pos+1).
func (p *Policy) Slot(h *Head, pos int) int {
	if p.Eviction == nil {
		return p.Slots(h.Prompt, pos)
	}
	return p.Eviction.Slot(h, pos)
}
