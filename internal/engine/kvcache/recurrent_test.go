package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// recurrents have recurrent layers and two layers of rows. In the second, KV heads share
// different numbers of key heads. In the third, two KV heads have none.
var recurrents = []Geometry{
	{Layers: 2, KVHeads: 3, Layout: small.Layout,
		Recurrent: states.Shape{Layers: 2, KeyHeads: 6, ValueHeads: 12, KeyDim: 8, ValueDim: 20, Taps: 4}},
	{Layers: 2, KVHeads: 3, Layout: small.Layout,
		Recurrent: states.Shape{Layers: 1, KeyHeads: 4, ValueHeads: 4, KeyDim: 6, ValueDim: 16, Taps: 2}},
	{Layers: 2, KVHeads: 3, Layout: small.Layout,
		Recurrent: states.Shape{Layers: 2, KeyHeads: 1, ValueHeads: 2, KeyDim: 6, ValueDim: 16, Taps: 1}},
}

// tokenRecord is the record of a token for a key head. value makes tokens differ.
func tokenRecord(g Geometry, layer, head, pos, value int) states.Record {
	r, n := g.Recurrent, 0
	next := func(count int) []float32 {
		x := make([]float32, count)
		for i := range x {
			n++
			x[i] = float32((pos*37+layer*11+head*7+value*5+n*13)%61)/64 - 0.5
		}
		return x
	}
	rec := states.Record{Input: next(r.Channels()), Key: next(r.KeyDim), Decay: make([]float32, r.Group()),
		Updates: next(r.Group() * r.ValueDim)}
	for v := range rec.Decay {
		rec.Decay[v] = 0.75
	}
	return rec
}

// eachState calls f for every key head of the states of a store.
func eachState(s *Store, f func(layer int, state *states.State, head int)) {
	for layer := range s.g.Recurrent.Layers {
		for h := s.heads.Lo; h < s.heads.Hi; h++ {
			state := s.State(layer, h)
			for head := state.Heads().Lo; head < state.Heads().Hi; head++ {
				f(layer, state, head)
			}
		}
	}
}

// advanced records that all states of a store have a number of tokens.
func advanced(s *Store, tokens int) {
	for layer := range s.g.Recurrent.Layers {
		for h := s.heads.Lo; h < s.heads.Hi; h++ {
			s.State(layer, h).Advanced(tokens)
		}
	}
}

// advance runs a prompt's token through the states of a store.
func advance(s *Store, pos, value int) {
	eachState(s, func(layer int, state *states.State, head int) {
		if err := state.Prompt(pos); err != nil {
			panic(err)
		}
		r, out := tokenRecord(s.g, layer, head, pos, value), make([]float32, s.g.Recurrent.ValueDim)
		for v := range r.Decay {
			tensor.DeltaAdvance(out, state.Matrix(head, v), r.Key, r.Key, r.Update(v), r.Decay[v])
		}
		state.Push(head, r.Input)
	})
	advanced(s, pos+1)
}

// record runs a decoded token through the states of a store.
func record(s *Store, pos, value int) {
	eachState(s, func(layer int, state *states.State, head int) {
		state.Settle(head, make([]float32, s.g.Recurrent.ValueDim))
		from, to := tokenRecord(s.g, layer, head, pos, value), state.Record(head, pos)
		copy(to.Input, from.Input)
		copy(to.Key, from.Key)
		copy(to.Decay, from.Decay)
		copy(to.Updates, from.Updates)
	})
	advanced(s, s.tokens)
}

// statesOf are all states after a number of tokens.
func statesOf(t *testing.T, s *Store, tokens int) (all []byte) {
	t.Helper()
	for layer := range s.g.Recurrent.Layers {
		var err error
		if all, err = s.ReadRows(all, s.LayerBlock(s.g.Layers+layer, tokens)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// recurrentStep is step with recurrent layers.
func recurrentStep(t *testing.T, s *Store, value int, token func(s *Store, pos, value int)) {
	t.Helper()
	pos := s.Tokens()
	if err := s.Reserve(pos + 1); err != nil {
		t.Fatal(err)
	}
	write(s, pos, pos+1)
	token(s, pos, value)
	s.Commit(1)
}

// TestRecurrentState takes a sequence through prefill on two sockets, hand-over, decode with
// repeated and rolled back tokens, and a replica. Its states have the bits of a text that is read
// token by token, and its bytes are those of the formulas.
func TestRecurrentState(t *testing.T) {
	for _, g := range recurrents {
		for _, p := range []*Policy{Full(), Streaming(4, 60)} {
			t.Run(fmt.Sprint(g.Recurrent.KeyHeads, p.Name()), func(t *testing.T) {
				const prompt, output = 70, 11
				a := memory.NewArena(1 << 24)
				defer a.Close()
				naive := NewPrefill(a, g, tensor.Span{Hi: 3})
				for pos := range prompt + output {
					recurrentStep(t, naive, 0, advance)
					if want := PrefillBytes(g, 3, pos+1, p); naive.Bytes() != want {
						t.Fatalf("%d bytes during prefill, want %d", naive.Bytes(), want)
					}
				}
				want := statesOf(t, naive, prompt+output)
				naive.Release()

				parts := []*Store{NewPrefill(a, g, tensor.Span{Hi: 2}), NewPrefill(a, g, tensor.Span{Lo: 2, Hi: 3})}
				for range prompt {
					recurrentStep(t, parts[0], 0, advance)
					recurrentStep(t, parts[1], 0, advance)
				}
				o := NewStore(a, g, p)
				heads := tensor.Span{}
				if p.KeepsPrompt() {
					heads = parts[0].Heads()
				}
				if err := o.Open(prompt, prompt, heads); err != nil {
					t.Fatal(err)
				}
				if got, want := a.Used()-parts[1].Bytes(), HandoverBytes(g, 2, prompt, p); got != want && !p.KeepsPrompt() {
					t.Errorf("%d bytes during the hand-over, want %d", got, want)
				}
				handOverRows(t, o, parts, p)
				if err := o.Seal(); err == nil {
					t.Fatal("sealed without states")
				}
				for layer := range g.Recurrent.Layers {
					if err := o.KeepState(parts[0], layer, parts[0].Heads()); err != nil {
						t.Fatal(err)
					}
					b := PromptBlock(g, p, prompt, g.Layers+layer, parts[1].Heads())
					rows, err := b.Append(nil, parts[1])
					if err != nil || len(rows) != b.Bytes(o) {
						t.Fatalf("%d bytes, %v", len(rows), err)
					}
					if err := storeRows(b, rows[:len(rows)-1], o); !errors.Is(err, rowblock.Err) {
						t.Errorf("a state without its last byte: %v", err)
					}
					if err := storeRows(b, rows, o); err != nil {
						t.Fatal(err)
					}
				}
				if err := o.Seal(); err != nil {
					t.Fatal(err)
				}
				for _, s := range parts {
					s.Release()
				}
				replica := NewStore(a, g, p)
				for i := 0; o.Tokens() < prompt+output; i++ {
					if i == 1 { // a replica of a sequence whose last token is a record
						mirror(t, o, replica, prompt)
					}
					decodeStep(t, g, p, o, replica, min(1+i%3, prompt+output-o.Tokens()))
				}
				if !slices.Equal(statesOf(t, o, prompt+output), want) {
					t.Error("the owner's states differ from those of a text read token by token")
				}
				if !slices.Equal(statesOf(t, replica, prompt+output), want) {
					t.Error("the replica's states differ from those of a text read token by token")
				}
				o.Release()
				replica.Release()
				if a.Used() != 0 {
					t.Errorf("%d bytes are left", a.Used())
				}
			})
		}
	}
}

// decodeStep decodes n tokens that count and one that does not, in a step that is rolled back once
// and repeated once, on the owner and on a replica that is complete.
func decodeStep(t *testing.T, g Geometry, p *Policy, o, replica *Store, n int) {
	t.Helper()
	pos := o.Tokens()
	reserve := func(s *Store) {
		if err := s.Reserve(pos + n + 1); err != nil {
			t.Fatal(err)
		}
	}
	step := func(value int) {
		for i := range n + 1 {
			write(o, pos+i, pos+i+1)
			v := value
			if i == n {
				v++
			}
			record(o, pos+i, v)
		}
	}
	reserve(o)
	step(9)
	o.Rollback()
	reserve(o)
	step(8)
	step(0)
	if want := StepBytes(g, o.Prompt(), pos+n+1, n+1, p); o.Bytes() != want {
		t.Fatalf("%d bytes in a step of %d tokens, want %d", o.Bytes(), n+1, want)
	}
	if replica.Sealed() {
		reserve(replica)
		b := o.StepBlock(pos, n+1)
		if _, err := b.Store(append1(b, o), replica); err != nil {
			t.Fatal(err)
		}
		replica.Commit(n)
	}
	o.Commit(n)
	if want := ResidentBytes(g, o.Prompt(), pos+n, p); o.Bytes() != want {
		t.Fatalf("%d bytes after %d tokens, want %d", o.Bytes(), pos+n, want)
	}
}

// handOverRows moves the rows of a prompt to its owner, which shares a socket with parts[0].
func handOverRows(t *testing.T, o *Store, parts []*Store, p *Policy) {
	t.Helper()
	for i, s := range parts {
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			if i == 0 && p.KeepsPrompt() {
				if err := o.Adopt(s, head); err != nil {
					t.Fatal(err)
				}
				continue
			}
			for layer := range s.g.Layers {
				kept := p.Keep(&Statistics{Prompt: o.prompt})
				b := PromptBlock(s.g, p, o.prompt, layer, tensor.Span{Lo: head, Hi: head + 1})
				if _, err := b.Store(append1(b, Selection{s, p, func(int) (Kept, *Statistics) { return kept, nil }}), o); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// storeRows stores a block.
func storeRows(b rowblock.Block, rows []byte, to *Store) error {
	_, err := b.Store(rows, to)
	return err
}

// mirror copies a whole cache to a replica.
func mirror(t *testing.T, o, replica *Store, prompt int) {
	t.Helper()
	if err := replica.OpenMoved(prompt, o.Tokens()); err != nil {
		t.Fatal(err)
	}
	for layer := range o.g.Layers + o.g.Recurrent.Layers {
		b := o.LayerBlock(layer, o.Tokens())
		if _, err := b.Store(append1(b, o), replica); err != nil {
			t.Fatal(err)
		}
	}
	if err := replica.Seal(); err != nil {
		t.Fatal(err)
	}
}
