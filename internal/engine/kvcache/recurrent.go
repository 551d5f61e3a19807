package kvcache

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Recurrent is the shape of the layers that have a recurrent state instead of keys and values: that of a
// causal convolution, and a matrix of each value head. The zero value means that a model has none. See
// docs/decisions/recurrent-state.md.
type Recurrent struct {
	Layers     int
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads; value head h reads key head h/(ValueHeads/KeyHeads)
	KeyDim     int // 0: the convolution alone has a state
	ValueDim   int
	Taps       int // tokens that the convolution sees, the newest included
}

// Group is the number of value heads of a key head.
func (r Recurrent) Group() int { return r.ValueHeads / r.KeyHeads }

// Channels is the number of inputs of the convolution for one key head: q, k, and v of its group.
func (r Recurrent) Channels() int { return 2*r.KeyDim + r.Group()*r.ValueDim }

// HeadsOf returns the key heads that a socket with KV heads h of n has.
func (r Recurrent) HeadsOf(h tensor.Span, n int) tensor.Span {
	return tensor.Span{Lo: h.Lo * r.KeyHeads / n, Hi: h.Hi * r.KeyHeads / n}
}

// headFloats is the size of one key head's state: S of its group, and the last inputs of the
// convolution.
func (r Recurrent) headFloats() int {
	return r.Group()*r.KeyDim*r.ValueDim + (r.Taps-1)*r.Channels()
}

// recordFloats is the size of one key head's record of a token, see State.
func (r Recurrent) recordFloats() int {
	if r.KeyDim == 0 {
		return r.Channels()
	}
	return r.Channels() + r.KeyDim + r.Group()*(r.ValueDim+1)
}

// maxKeyHeads is the largest number of key heads of a KV head.
func (g Geometry) maxKeyHeads() int { return (g.Recurrent.KeyHeads + g.KVHeads - 1) / g.KVHeads }

// stateBlock is the size in bytes of the arena block of one KV head of a recurrent layer.
func (g Geometry) stateBlock() int { return wholeLines(4 * g.maxKeyHeads() * g.Recurrent.headFloats()) }

// recordBlock is the size in bytes of the arena block of one token's records, of all recurrent layers
// and a number of KV heads.
func (g Geometry) recordBlock(heads int) int {
	return wholeLines(4 * g.Recurrent.Layers * heads * g.maxKeyHeads() * g.Recurrent.recordFloats())
}

func wholeLines(bytes int) int {
	return (bytes + memory.BlockAlign - 1) / memory.BlockAlign * memory.BlockAlign
}

// StateBytes is the size of a sequence's recurrent states on a socket with this number of
// KV heads. It does not depend on the number of tokens.
func StateBytes(g Geometry, heads int) int64 {
	if g.Recurrent.Layers == 0 {
		return 0
	}
	return int64(g.Recurrent.Layers) * int64(heads) * int64(g.stateBlock())
}

// recordBytes is the size of the records of a step of staged tokens on the owner.
func recordBytes(g Geometry, staged int) int64 {
	if g.Recurrent.Layers == 0 {
		return 0
	}
	return int64(max(staged, 1)) * int64(g.recordBlock(g.KVHeads))
}

// State is the recurrent state of the key heads of one KV head of one layer.
//
// A prompt's tokens advance it in place. In decode a step may be repeated or rolled back, so a
// decoded token leaves a record. A record has the token's convolution input, its key, and the update
// vector and decay of each value head. It is applied when its token counts: by the next step, or by
// Commit if several tokens count. So a rollback only drops records.
//
// Different key heads may be computed concurrently.
type State struct {
	r       Recurrent
	heads   tensor.Span // key heads
	data    []float32   // [key head] of headFloats
	store   *Store
	index   int // in Store.states
	applied int // tokens in data; -1: the state has not arrived
}

// Heads are the key heads of the state.
func (s *State) Heads() tensor.Span { return s.heads }

// Prompt returns an error unless the next token of a prompt that is being read is at position pos.
func (s *State) Prompt(pos int) error {
	if s.applied != pos {
		return fmt.Errorf("kvcache: token %d of a prompt whose recurrent state has %d tokens", pos, s.applied)
	}
	return nil
}

// Committed is the number of tokens that count. Records are of later ones.
func (s *State) Committed() int { return s.store.tokens }

// Advanced records that all key heads have been advanced to a number of tokens.
func (s *State) Advanced(tokens int) { s.applied = tokens }

// Matrix returns the state (KeyDim, ValueDim) of value head v of a key head's group.
func (s *State) Matrix(head, v int) []float32 {
	n := s.r.KeyDim * s.r.ValueDim
	return s.data[(head-s.heads.Lo)*s.r.headFloats()+v*n:][:n]
}

// Inputs returns the inputs of the convolution of the last Taps-1 tokens (Taps-1, Channels), oldest
// first. Those before the text are zero.
func (s *State) Inputs(head int) []float32 {
	at := (head - s.heads.Lo) * s.r.headFloats()
	return s.data[at+s.r.Group()*s.r.KeyDim*s.r.ValueDim : at+s.r.headFloats()]
}

// Record is what a token adds to the state of a key head. Its slices are in the store.
type Record struct {
	Input   []float32 // (Channels) of the convolution
	Key     []float32 // (KeyDim), normalized
	Decay   []float32 // (Group)
	updates []float32 // (Group, ValueDim), see Update
}

// Update returns the update vector of value head v of the group.
func (r *Record) Update(v int) []float32 {
	n := len(r.updates) / len(r.Decay)
	return r.updates[v*n:][:n]
}

// Record returns the record of a key head for the token at pos, which does not count yet.
func (s *State) Record(head, pos int) Record { return s.record(head, pos-s.store.tokens) }

// record returns the record of a key head in a slot.
func (s *State) record(head, slot int) Record {
	if slot < 0 || slot >= len(s.store.records) {
		panic(fmt.Sprintf("kvcache: record %d of a recurrent state, room for %d", slot, len(s.store.records)))
	}
	n := s.r.recordFloats()
	x := floatsOf(s.store.records[slot])[s.index*s.store.g.maxKeyHeads()*n+(head-s.heads.Lo)*n:][:n]
	c, k, g := s.r.Channels(), s.r.KeyDim, s.r.Group()
	if k == 0 {
		return Record{Input: x}
	}
	return Record{Input: x[:c], Key: x[c : c+k], Decay: x[c+k : c+k+g], updates: x[c+k+g:]}
}

// Settle applies to a key head the records of the tokens that count. out is scratch of ValueDim
// elements. The operations are those of a prompt's token, so the bits are the same. Afterwards the
// caller calls Advanced with Committed, once for all key heads.
func (s *State) Settle(head int, out []float32) { s.settle(head, 0, s.store.tokens, out) }

// settle applies the records from a slot on, up to the given number of tokens.
func (s *State) settle(head, slot, tokens int, out []float32) {
	if s.applied < 0 || s.applied > tokens {
		panic(fmt.Sprintf("kvcache: %d tokens count, but a recurrent state has %d", tokens, s.applied))
	}
	for i := range tokens - s.applied {
		r := s.record(head, slot+i)
		for v := range r.Decay {
			tensor.DeltaAdvance(out[:s.r.ValueDim], s.Matrix(head, v), r.Key, r.Key, r.Update(v), r.Decay[v])
		}
		s.Push(head, r.Input)
	}
}

// Push appends an input of the convolution and drops the oldest.
func (s *State) Push(head int, input []float32) {
	all, n := s.Inputs(head), s.r.Channels()
	if len(all) > 0 {
		copy(all, all[n:])
		copy(all[len(all)-n:], input)
	}
}

// settleAll is settle for all key heads.
func (s *State) settleAll(slot, tokens int) {
	out := make([]float32, s.r.ValueDim)
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		s.settle(head, slot, tokens, out)
	}
	s.applied = tokens
}

// State returns the recurrent state of a KV head. Recurrent layers are counted from 0, apart from
// those with keys and values.
func (s *Store) State(layer, head int) *State {
	return &s.states[layer*s.heads.Len()+head-s.heads.Lo]
}

// Settle prepares Commit of n tokens. run calls f with each of 0 to n-1, in any order and possibly
// concurrently. Without it, Commit does the same on one thread.
func (s *Store) Settle(n int, run func(n int, f func(i int))) {
	if n > 1 && len(s.states) > 0 && s.states[0].applied < s.tokens+n {
		run(len(s.states), func(i int) { s.states[i].settleAll(0, s.tokens+n) })
	}
}

// openStates allocates the states, all or nothing, with the given number of tokens applied.
func (s *Store) openStates(tokens int) error {
	r := s.g.Recurrent
	if r.Layers == 0 || s.heads.Len() == 0 || s.states != nil {
		return nil
	}
	blocks, err := s.arena.Alloc(s.g.stateBlock(), r.Layers*s.heads.Len())
	if err != nil {
		return fmt.Errorf("recurrent states: %w", err)
	}
	if err := s.growRecords(1); err != nil {
		s.arena.Release(blocks)
		return err
	}
	s.stateBlocks, s.states = blocks, make([]State, len(blocks))
	for i, b := range blocks {
		head := s.heads.Lo + i%s.heads.Len()
		s.states[i] = State{r: r, heads: r.HeadsOf(tensor.Span{Lo: head, Hi: head + 1}, s.g.KVHeads), data: floatsOf(b), store: s, index: i, applied: tokens}
	}
	return nil
}

// growRecords makes room for the records of a step of staged tokens.
func (s *Store) growRecords(staged int) error {
	if n := staged - len(s.records); n > 0 && s.g.Recurrent.Layers > 0 && !s.prefill {
		blocks, err := s.arena.Alloc(s.g.recordBlock(s.heads.Len()), n)
		if err != nil {
			return fmt.Errorf("records of recurrent states: %w", err)
		}
		s.records = append(s.records, blocks...)
	}
	return nil
}

// trimRecords frees the records beyond the first.
func (s *Store) trimRecords() {
	if len(s.records) > 1 {
		s.arena.Release(s.records[1:])
		s.records = s.records[:1]
	}
}

func (s *Store) dropStates() {
	s.arena.Release(s.stateBlocks)
	s.arena.Release(s.records)
	s.arena.Release(s.saved)
	s.stateBlocks, s.states, s.records, s.saved = nil, nil, nil, nil
}

// moved is the part of a state that another socket needs.
func (s *State) moved() []byte { return floatBytes(s.data[:s.heads.Len()*s.r.headFloats()]) }

// recordOf is the records of all key heads in a slot.
func (s *State) recordOf(slot int) []byte {
	n := s.r.recordFloats()
	return floatBytes(floatsOf(s.store.records[slot])[s.index*s.store.g.maxKeyHeads()*n:][:s.heads.Len()*n])
}

// floatBytes views float32 as bytes on the wire. Every supported host is little-endian.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}

// floatsOf views an arena block as float32.
func floatsOf(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// stateRow is the size of the states of a KV head of one recurrent layer on the wire.
func (g Geometry) stateRow(head int) int {
	return 4 * g.Recurrent.HeadsOf(tensor.Span{Lo: head, Hi: head + 1}, g.KVHeads).Len() * g.Recurrent.headFloats()
}

// recordRowBytes is the size of a token's records of all recurrent layers on the wire.
func recordRowBytes(g Geometry) int {
	if g.Recurrent.Layers == 0 {
		return 0
	}
	return 4 * g.Recurrent.Layers * g.Recurrent.KeyHeads * g.Recurrent.recordFloats()
}

// readState copies the states of a KV head after the first tokens of the sequence, all of which are
// committed.
func (s *Store) readState(dst []byte, state *State, tokens int) error {
	if tokens < state.applied || tokens > s.tokens {
		return fmt.Errorf("kvcache: a recurrent state after %d tokens of %d, it has %d", tokens, s.tokens, state.applied)
	}
	state.settleAll(0, tokens)
	copy(dst, state.moved())
	return nil
}

// writeState stores what readState copied, in a store that is open.
func (s *Store) writeState(state *State, tokens int, src []byte) error {
	if s.sealed || tokens != s.pending {
		return fmt.Errorf("%w: a recurrent state after %d tokens of a store that is open for %d", ErrRows, tokens, s.pending)
	}
	copy(state.moved(), src)
	state.Advanced(s.pending)
	return nil
}

// KeepState copies the states of KV heads h of one recurrent layer from the prefill store of the
// same socket.
func (s *Store) KeepState(from *Store, layer int, h tensor.Span) error {
	for head := h.Lo; head < h.Hi; head++ {
		to, own := s.State(layer, head), from.State(layer, head)
		if own.applied != s.pending {
			return fmt.Errorf("kvcache: a recurrent state after %d tokens of a prompt of %d", own.applied, s.pending)
		}
		copy(to.moved(), own.moved())
		to.Advanced(s.pending)
	}
	return nil
}

// statesArrived returns an error unless the hand-over has filled all states. With fewer key heads
// than KV heads, some states are empty and never arrive.
func (s *Store) statesArrived() error {
	for i := range s.states {
		if s.states[i].heads.Len() == 0 {
			s.states[i].Advanced(s.pending)
		}
		if s.states[i].applied != s.pending {
			return errors.New("kvcache: hand-over is not complete: a recurrent state is missing")
		}
	}
	return nil
}

// exportRecords appends the records of the token at pos, which the running step wrote.
func (s *Store) exportRecords(dst []byte, pos int) []byte {
	for i := range s.states {
		if s.states[i].applied != s.tokens {
			panic(fmt.Sprintf("kvcache: the running step has no record of a recurrent state after %d tokens of %d", s.states[i].applied, s.tokens))
		}
		dst = append(dst, s.states[i].recordOf(pos-s.tokens)...)
	}
	return dst
}

// importRecords stores the records of the token at pos. It applies those of the tokens that count.
func (s *Store) importRecords(pos int, in []byte) {
	for i := range s.states {
		s.states[i].settleAll(0, s.tokens)
		in = in[copy(s.states[i].recordOf(pos-s.tokens), in):]
	}
}
