package kvcache

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Recurrent is the shape of the layers that have a recurrent state instead of keys and values: the
// gated delta rule after a causal convolution, see docs/decisions/recurrent-state.md. The zero
// value means that a model has none.
type Recurrent struct {
	Layers     int
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads; value head h reads key head h/(ValueHeads/KeyHeads)
	KeyDim     int
	ValueDim   int
	Taps       int // tokens that the convolution sees, the newest included
}

// Group is the number of value heads of a key head.
func (r Recurrent) Group() int { return r.ValueHeads / r.KeyHeads }

// Channels is the number of inputs of the convolution for one key head: q, k, and v of its group.
func (r Recurrent) Channels() int { return 2*r.KeyDim + r.Group()*r.ValueDim }

// HeadsOf returns the key heads that KV heads h of n stand for.
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
	return r.Channels() + r.KeyDim + r.Group()*(r.ValueDim+1)
}

// most is the largest number of key heads of a KV head.
func (g Geometry) most() int { return (g.Recurrent.KeyHeads + g.KVHeads - 1) / g.KVHeads }

// stateBlock is the size in bytes of the arena block of one KV head of a recurrent layer.
func (g Geometry) stateBlock() int {
	n := 4 * g.most() * (g.Recurrent.headFloats() + g.Recurrent.recordFloats())
	return (n + blockAlign - 1) / blockAlign * blockAlign
}

// StateBytes is the size of a sequence's recurrent states on a socket with heads KV heads. It does
// not depend on the number of tokens.
func StateBytes(g Geometry, heads int) int64 {
	if g.Recurrent.Layers == 0 {
		return 0
	}
	return int64(g.Recurrent.Layers) * int64(heads) * int64(g.stateBlock())
}

// errStates is returned where a prefix of a sequence would have to be shared.
var errStates = errors.New("kvcache: a recurrent state exists after the newest token only, so no prefix can be shared")

// State is the recurrent state of the key heads of one KV head of one layer.
//
// A prompt's tokens advance it in place. In decode a step may be repeated or rolled back, so a
// decoded token leaves a record: its convolution input, its key, and for each value head its update
// vector and its decay. The next token, or an export, applies the record of a token that counts. So
// the position of the next token decides everything, and Commit and Rollback do not touch a state.
//
// Different key heads may be computed concurrently.
type State struct {
	r        Recurrent
	heads    tensor.Span // key heads
	data     []float32   // [key head] of headFloats, then [key head] of recordFloats
	tokens   int         // applied to the state; -1: the state has not arrived
	recorded bool        // the record is of the token at position tokens
}

// Heads are the key heads of the state.
func (s *State) Heads() tensor.Span { return s.heads }

// Next prepares the state for the token at position pos. It reports whether the record must be
// applied first (Apply, for every key head).
func (s *State) Next(pos int) (apply bool) {
	switch {
	case pos == s.tokens:
		return false
	case pos == s.tokens+1 && s.recorded:
		return true
	}
	panic(fmt.Sprintf("kvcache: token %d of a recurrent state after %d tokens", pos, s.tokens))
}

// Recorded notes that all key heads have applied their records, if Next asked for it, and hold a
// record of the token at pos.
func (s *State) Recorded(pos int) { s.tokens, s.recorded = pos, true }

// Advanced notes that all key heads were advanced in place to a number of tokens.
func (s *State) Advanced(tokens int) { s.tokens, s.recorded = tokens, false }

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

// Record is what a token adds to the state of a key head. Its slices are parts of the state.
type Record struct {
	Input  []float32   // (Channels) of the convolution
	Key    []float32   // (KeyDim), normalized
	Update [][]float32 // [Group](ValueDim)
	Decay  []float32   // (Group)
}

// Record returns the record of a key head.
func (s *State) Record(head int) Record {
	x := s.data[s.heads.Len()*s.r.headFloats()+(head-s.heads.Lo)*s.r.recordFloats():][:s.r.recordFloats()]
	take := func(n int) []float32 {
		part := x[:n:n]
		x = x[n:]
		return part
	}
	r := Record{Input: take(s.r.Channels()), Key: take(s.r.KeyDim)}
	for range s.r.Group() {
		r.Update = append(r.Update, take(s.r.ValueDim))
	}
	r.Decay = take(s.r.Group())
	return r
}

// Apply advances a key head by its record. out is scratch of ValueDim elements. The operations are
// those of a prompt's token, so the bits are the same.
func (s *State) Apply(head int, out []float32) {
	r := s.Record(head)
	for v, u := range r.Update {
		tensor.DeltaAdvance(out[:s.r.ValueDim], s.Matrix(head, v), r.Key, r.Key, u, r.Decay[v])
	}
	s.Push(head, r.Input)
}

// Push appends an input of the convolution and drops the oldest.
func (s *State) Push(head int, input []float32) {
	all, n := s.Inputs(head), s.r.Channels()
	if len(all) > 0 {
		copy(all, all[n:])
		copy(all[len(all)-n:], input)
	}
}

// settle applies the record of the last of a number of tokens that count.
func (s *State) settle(tokens int) error {
	switch {
	case tokens == s.tokens:
		return nil
	case tokens != s.tokens+1 || !s.recorded:
		return fmt.Errorf("kvcache: a recurrent state after %d tokens, not %d", s.tokens, tokens)
	}
	out := make([]float32, s.r.ValueDim)
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		s.Apply(head, out)
	}
	s.Advanced(tokens)
	return nil
}

// State returns the recurrent state of a KV head. Recurrent layers are counted from 0, apart from
// those with keys and values.
func (s *Store) State(layer, head int) *State {
	return &s.states[layer*s.heads.Len()+head-s.heads.Lo]
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
	s.stateBlocks, s.states = blocks, make([]State, len(blocks))
	for i, b := range blocks {
		head := s.heads.Lo + i%s.heads.Len()
		s.states[i] = State{r: r, heads: r.HeadsOf(tensor.Span{Lo: head, Hi: head + 1}, s.g.KVHeads), tokens: tokens,
			data: unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)}
	}
	return nil
}

func (s *Store) dropStates() {
	s.arena.Release(s.stateBlocks)
	s.stateBlocks, s.states = nil, nil
}

// moved is the part of a state that another socket needs.
func (s *State) moved() []byte { return floatBytes(s.data[:s.heads.Len()*s.r.headFloats()]) }

// record is the records of all key heads.
func (s *State) record() []byte {
	return floatBytes(s.data[s.heads.Len()*s.r.headFloats():][:s.heads.Len()*s.r.recordFloats()])
}

// floatBytes views float32 as bytes on the wire. Every supported host is little-endian.
func floatBytes(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&f[0])), 4*len(f))
}

// StateRowBytes is the size of what ExportState appends for KV heads h of one recurrent layer, and
// RecordBytes that of a token's records of all recurrent layers.
func StateRowBytes(g Geometry, h tensor.Span) int {
	return 4 * g.Recurrent.HeadsOf(h, g.KVHeads).Len() * g.Recurrent.headFloats()
}

func recordBytes(g Geometry) int {
	if g.Recurrent.Layers == 0 {
		return 0
	}
	return 4 * g.Recurrent.Layers * g.Recurrent.KeyHeads * g.Recurrent.recordFloats()
}

// ExportState appends the states of KV heads h of one recurrent layer after the first tokens of the
// sequence, all of which are committed.
func (s *Store) ExportState(dst []byte, layer int, h tensor.Span, tokens int) ([]byte, error) {
	for head := h.Lo; head < h.Hi; head++ {
		state := s.State(layer, head)
		if err := state.settle(tokens); err != nil {
			return dst, err
		}
		dst = append(dst, state.moved()...)
	}
	return dst, nil
}

// ImportState stores what ExportState appended, in a store that is open. Errors wrap ErrRows.
func (s *Store) ImportState(layer int, h tensor.Span, in []byte) error {
	switch want := StateRowBytes(s.g, h); {
	case s.sealed || s.pending == 0 || layer < 0 || layer >= s.g.Recurrent.Layers || h.Lo < s.heads.Lo || h.Hi > s.heads.Hi:
		return fmt.Errorf("%w: states of layer %d, heads [%d,%d) of a store that is not open for them", ErrRows, layer, h.Lo, h.Hi)
	case len(in) != want:
		return fmt.Errorf("%w: states of heads [%d,%d) have %d bytes, want %d", ErrRows, h.Lo, h.Hi, len(in), want)
	}
	for head := h.Lo; head < h.Hi; head++ {
		state := s.State(layer, head)
		in = in[copy(state.moved(), in):]
		state.Advanced(s.pending)
	}
	return nil
}

// KeepState copies the states of KV heads h of one recurrent layer from the prefill store of the
// same socket.
func (s *Store) KeepState(from *Store, layer int, h tensor.Span) error {
	for head := h.Lo; head < h.Hi; head++ {
		to, own := s.State(layer, head), from.State(layer, head)
		if own.tokens != s.pending || own.recorded {
			return fmt.Errorf("kvcache: a recurrent state after %d tokens of a prompt of %d", own.tokens, s.pending)
		}
		copy(to.moved(), own.moved())
		to.Advanced(s.pending)
	}
	return nil
}

// statesArrived reports whether the hand-over has filled all states.
func (s *Store) statesArrived() error {
	for i := range s.states {
		if s.states[i].tokens != s.pending {
			return errors.New("kvcache: hand-over is not complete: a recurrent state is missing")
		}
	}
	return nil
}

// exportRecords appends the records of the token at pos.
func (s *Store) exportRecords(dst []byte, pos int) []byte {
	for i := range s.states {
		if state := &s.states[i]; state.tokens != pos || !state.recorded {
			panic(fmt.Sprintf("kvcache: no record of token %d in a recurrent state after %d tokens", pos, state.tokens))
		}
		dst = append(dst, s.states[i].record()...)
	}
	return dst
}

// importRecords stores the records of the token at pos. It applies those of the token before.
func (s *Store) importRecords(pos int, in []byte) error {
	for i := range s.states {
		state := &s.states[i]
		if err := state.settle(pos); err != nil {
			return err
		}
		in = in[copy(state.record(), in):]
		state.Recorded(pos)
	}
	return nil
}
