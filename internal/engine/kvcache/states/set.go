package states

import (
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Set is the states of one sequence on one socket. It has no memory before Open.
//
// Different states may be used concurrently. One goroutine at a time calls the methods of the set.
type Set struct {
	// InPlace is set for a prompt, whose tokens advance states in place, without records.
	InPlace bool

	arena   *memory.Arena
	cut     Cut
	heads   tensor.Span // KV heads
	tokens  *int        // committed tokens of the sequence
	states  []State     // [layer][head]; nil: not open
	blocks  [][]byte    // of states
	records [][]byte    // [token of the step after the committed ones]

	saved   [][]byte // copy of blocks, see Save; nil: none
	savedAt int      // number of tokens in the copy; -1: it is not filled
}

// New returns the set of a sequence on a socket with the given KV heads. tokens points to the sequence's
// number of committed tokens.
func New(a *memory.Arena, cut Cut, heads tensor.Span, tokens *int) Set {
	return Set{arena: a, cut: cut, heads: heads, tokens: tokens}
}

// Open allocates the states, all or nothing, with the given number of tokens applied; -1: Fill or Write
// brings them. It does nothing if they are open, or if there are none.
func (s *Set) Open(tokens int) error {
	n := s.cut.Layers * s.heads.Len()
	if n == 0 || s.states != nil {
		return nil
	}
	blocks, err := s.arena.Alloc(s.cut.BlockBytes(), n)
	if err != nil {
		return fmt.Errorf("recurrent states: %w", err)
	}
	if err := s.Reserve(1); err != nil {
		s.arena.Release(blocks)
		return err
	}
	s.blocks, s.states = blocks, make([]State, len(blocks))
	for i, b := range blocks {
		head := s.heads.Lo + i%s.heads.Len()
		s.states[i] = State{
			r: s.cut.Shape, heads: s.cut.HeadsOf(tensor.Span{Lo: head, Hi: head + 1}, s.cut.KVHeads),
			data: floatsOf(b), set: s, index: i, applied: tokens,
		}
	}
	return nil
}

// Reserve makes room for the records of a step of staged tokens.
func (s *Set) Reserve(staged int) error {
	if n := staged - len(s.records); n > 0 && s.cut.Layers > 0 && !s.InPlace {
		blocks, err := s.arena.Alloc(s.cut.recordBlock(s.heads.Len()), n)
		if err != nil {
			return fmt.Errorf("records of recurrent states: %w", err)
		}
		s.records = append(s.records, blocks...)
	}
	return nil
}

// Reserved returns the number of tokens that have room for records.
func (s *Set) Reserved() int { return len(s.records) }

// Trim frees the records beyond the first.
func (s *Set) Trim() { s.TrimTo(1) }

// TrimTo frees the records beyond those of a number of tokens.
func (s *Set) TrimTo(tokens int) {
	if len(s.records) > tokens {
		s.arena.Release(s.records[tokens:])
		s.records = s.records[:tokens]
	}
}

// Release frees everything. The set may be opened again.
func (s *Set) Release() {
	s.arena.Release(s.blocks)
	s.arena.Release(s.records)
	s.arena.Release(s.saved)
	s.blocks, s.states, s.records, s.saved = nil, nil, nil, nil
}

// Bytes returns the memory that the set holds in its arena.
func (s *Set) Bytes() (bytes int64) {
	for _, list := range [...][][]byte{s.blocks, s.records, s.saved} {
		for _, b := range list {
			bytes += int64(len(b))
		}
	}
	return bytes
}

// State returns the state of a KV head. Recurrent layers are counted from 0, apart from those with keys
// and values.
func (s *Set) State(layer, head int) *State {
	return &s.states[layer*s.heads.Len()+head-s.heads.Lo]
}

// Block returns the memory of the i-th state, in the order [layer][head].
func (s *Set) Block(i int) []byte { return s.blocks[i] }

// Fill copies to each state the block of an equal set, see Block.
func (s *Set) Fill(block func(i int) []byte) {
	for i, b := range s.blocks {
		copy(b, block(i))
	}
}

// After returns an error unless a number of tokens has been applied to every state.
func (s *Set) After(tokens int) error {
	for i := range s.states {
		if at := s.states[i].applied; at != tokens {
			return fmt.Errorf("recurrent states after %d tokens, not %d", at, tokens)
		}
	}
	return nil
}

// Arrived returns an error unless a hand-over has filled all states of a number of tokens. With fewer key
// heads than KV heads, some states are empty and never arrive.
func (s *Set) Arrived(tokens int) error {
	for i := range s.states {
		if s.states[i].heads.Len() == 0 {
			s.states[i].Advanced(tokens)
		}
		if s.states[i].applied != tokens {
			return errors.New("kvcache: hand-over is not complete: a recurrent state is missing")
		}
	}
	return nil
}

// Settle applies the records of the first n tokens of a step, which are about to count. run calls f with
// each of 0 to n-1, in any order and possibly concurrently.
func (s *Set) Settle(n int, run func(n int, f func(i int))) {
	if n > 1 && len(s.states) > 0 && !s.InPlace && s.states[0].applied < *s.tokens+n {
		run(len(s.states), func(i int) { s.states[i].settleAll(0, *s.tokens+n) })
	}
}

// ExportRecords appends the records of the token at pos, which the running step wrote.
func (s *Set) ExportRecords(dst []byte, pos int) []byte {
	for i := range s.states {
		if s.states[i].applied != *s.tokens {
			panic(fmt.Sprintf("kvcache: the running step has no record of a recurrent state after %d tokens of %d",
				s.states[i].applied, *s.tokens))
		}
		dst = append(dst, s.states[i].recordOf(pos-*s.tokens)...)
	}
	return dst
}

// ImportRecords stores the records of the token at pos. It applies those of the tokens that count.
func (s *Set) ImportRecords(pos int, in []byte) {
	for i := range s.states {
		s.states[i].settleAll(0, *s.tokens)
		in = in[copy(s.states[i].recordOf(pos-*s.tokens), in):]
	}
}

// Save copies the states of a prompt, which its tokens advance in place. Restore then returns to them.
// Errors wrap memory.ErrBudget.
func (s *Set) Save() error {
	if err := s.ReserveCopy(); err != nil {
		return err
	}
	for i, b := range s.saved {
		copy(b, s.blocks[i])
	}
	s.savedAt = *s.tokens
	return nil
}

// ReserveCopy allocates room for a copy of the states. Errors wrap memory.ErrBudget.
func (s *Set) ReserveCopy() (err error) {
	if s.saved != nil || len(s.blocks) == 0 {
		return nil
	}
	if s.saved, err = s.arena.Alloc(s.cut.BlockBytes(), len(s.blocks)); err != nil {
		return fmt.Errorf("copy of recurrent states: %w", err)
	}
	s.savedAt = -1
	return nil
}

// DropCopy frees the copy of the states.
func (s *Set) DropCopy() {
	s.arena.Release(s.saved)
	s.saved = nil
}

// Copy is Settle for n tokens, and copies the states after the first at tokens on the way.
func (s *Set) Copy(at, n int, run func(n int, f func(i int))) {
	run(len(s.saved), func(i int) {
		x, first := &s.states[i], s.states[i].applied
		x.settleAll(0, at)
		copy(s.saved[i], s.blocks[i])
		x.settleAll(at-first, *s.tokens+n)
	})
	s.savedAt = at
}

// Saved returns the copy of the states after a number of tokens, or nil if there is none.
func (s *Set) Saved(tokens int) [][]byte {
	if s.savedAt != tokens {
		return nil
	}
	return s.saved
}

// Take returns the copy of the states after a number of tokens and forgets it, or returns nil if there is none.
func (s *Set) Take(tokens int) [][]byte {
	blocks := s.Saved(tokens)
	if blocks != nil {
		s.saved = nil
	}
	return blocks
}

// Restore returns the states of a prompt to those after the given number of tokens, if the copy has them.
func (s *Set) Restore(tokens int) {
	for i, b := range s.saved {
		if x := &s.states[i]; x.applied > tokens && s.savedAt == tokens {
			copy(s.blocks[i], b)
			x.Advanced(tokens)
		}
	}
}
