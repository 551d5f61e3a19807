package states

import (
	"fmt"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// State is the recurrent state of the key heads of one KV head of one layer.
//
// A prompt's tokens advance it in place. In decode a step may be repeated or rolled back, so a
// decoded token leaves a record. A record has the token's convolution input, its key, and the update
// vector and decay of each value head. It is applied when its token counts: by the next step, or by
// Commit if several tokens count. So a rollback only drops records.
//
// Different key heads may be computed concurrently.
type State struct {
	r       Shape
	heads   tensor.Span // key heads
	data    []float32   // [key head] of headFloats
	set     *Set
	index   int // in Set.states
	applied int // tokens in data; -1: the state has not arrived
}

// Heads returns the key heads of the state.
func (s *State) Heads() tensor.Span { return s.heads }

// Prompt returns an error unless the next token of a prompt that is being read is at position pos.
func (s *State) Prompt(pos int) error {
	if s.applied != pos {
		return fmt.Errorf("kvcache: token %d of a prompt whose recurrent state has %d tokens", pos, s.applied)
	}
	return nil
}

// Committed returns the number of tokens that count. Records are of later ones.
func (s *State) Committed() int { return *s.set.tokens }

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

// Record is the update of a key head's state by one token. Its slices are in the set.
type Record struct {
	Input   []float32 // (Channels) of the convolution
	Key     []float32 // (KeyDim), normalized
	Decay   []float32 // (Group)
	Updates []float32 // (Group, ValueDim), see Update
}

// Update returns the update vector of value head v of the group.
func (r *Record) Update(v int) []float32 {
	n := len(r.Updates) / len(r.Decay)
	return r.Updates[v*n:][:n]
}

// Record returns the record of a key head for the token at pos, which does not count yet.
func (s *State) Record(head, pos int) Record { return s.record(head, pos-*s.set.tokens) }

// record returns the record of a key head in a slot.
func (s *State) record(head, slot int) Record {
	if slot < 0 || slot >= len(s.set.records) {
		panic(fmt.Sprintf("kvcache: record %d of a recurrent state, room for %d", slot, len(s.set.records)))
	}
	n := s.r.recordFloats()
	x := floatsOf(s.set.records[slot])[s.index*s.set.cut.maxKeyHeads()*n+(head-s.heads.Lo)*n:][:n]
	c, k, g := s.r.Channels(), s.r.KeyDim, s.r.Group()
	if k == 0 {
		return Record{Input: x}
	}
	return Record{Input: x[:c], Key: x[c : c+k], Decay: x[c+k : c+k+g], Updates: x[c+k+g:]}
}

// Settle applies to a key head the records of the tokens that count. out is scratch of ValueDim
// elements. The operations are those of a prompt's token, so the bits are the same. Afterwards the
// caller calls Advanced with Committed, once for all key heads.
func (s *State) Settle(head int, out []float32) { s.settle(head, 0, *s.set.tokens, out) }

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

// moved returns the part of a state that another socket needs.
func (s *State) moved() []byte { return tensor.FloatBytes(s.data[:s.heads.Len()*s.r.headFloats()]) }

// recordOf returns the records of all key heads in a slot.
func (s *State) recordOf(slot int) []byte {
	n := s.r.recordFloats()
	return tensor.FloatBytes(floatsOf(s.set.records[slot])[s.index*s.set.cut.maxKeyHeads()*n:][:s.heads.Len()*n])
}

// floatsOf views an arena block as float32.
func floatsOf(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// Read copies the states of a KV head after the first tokens of the sequence, all of which are committed.
func (s *State) Read(dst []byte, tokens int) error {
	if committed := *s.set.tokens; tokens < s.applied || tokens > committed {
		return fmt.Errorf("kvcache: a recurrent state after %d tokens of %d, it has %d", tokens, committed, s.applied)
	}
	s.settleAll(0, tokens)
	copy(dst, s.moved())
	return nil
}

// Write sets the state after a number of tokens, in the form of Read.
func (s *State) Write(src []byte, tokens int) {
	copy(s.moved(), src)
	s.Advanced(tokens)
}

// Keep copies the state of another set after a number of tokens.
func (s *State) Keep(from *State, tokens int) error {
	if from.applied != tokens {
		return fmt.Errorf("kvcache: a recurrent state after %d tokens of a prompt of %d", from.applied, tokens)
	}
	s.Write(from.moved(), tokens)
	return nil
}
