package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// The tests of this file run on every policy of the table.

func forEach(t *testing.T, f func(t *testing.T, p *Policy)) {
	for _, p := range policies {
		t.Run(p.Spec(), func(t *testing.T) { f(t, p) })
	}
}

// forEachShape is forEach, and also runs some policies of each kind on a model whose first layer
// has a window.
func forEachShape(t *testing.T, f func(t *testing.T, p *Policy, g Geometry)) {
	forEach(t, func(t *testing.T, p *Policy) { f(t, p, small) })
	for _, i := range []int{0, 5, 13, 16} {
		t.Run("window,"+policies[i].Spec(), func(t *testing.T) { f(t, policies[i], windowed) })
		t.Run("mixed,"+policies[i].Spec(), func(t *testing.T) { f(t, policies[i], mixed) })
	}
}

func drawSockets(r *rapid.T, g Geometry) []tensor.Span {
	cuts := []int{0, g.KVHeads}
	for range rapid.IntRange(0, 3).Draw(r, "cuts") {
		cuts = append(cuts, rapid.IntRange(0, g.KVHeads).Draw(r, "cut"))
	}
	slices.Sort(cuts)
	var spans []tensor.Span
	for i := 1; i < len(cuts); i++ {
		spans = append(spans, tensor.Span{Lo: cuts[i-1], Hi: cuts[i]})
	}
	return spans
}

// The stores hold the bytes that the cost functions predict, at every step, for any cut.
func TestCostsAreExact(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		rapid.Check(t, func(r *rapid.T) {
			prompt, spans := rapid.IntRange(1, 150).Draw(r, "prompt"), drawSockets(r, small)
			owner := rapid.IntRange(0, len(spans)-1).Draw(r, "owner")
			var stores []*Store
			var arenas []*memory.Arena
			for _, span := range spans {
				a := memory.NewArena(1 << 30)
				defer a.Close()
				s := read(t, a, small, span, prompt, rapid.IntRange(1, 97).Draw(r, "chunk"))
				if want := PrefillBytes(small, span.Hi-span.Lo, prompt, p); s.Bytes() != want || a.Used() != want {
					r.Fatalf("prefill holds %d (arena %d), PrefillBytes is %d", s.Bytes(), a.Used(), want)
				}
				stores, arenas = append(stores, s), append(arenas, a)
			}
			heads := stores[owner].Heads()
			o, peak, err := handOver(p, stores, owner)
			if err != nil {
				r.Fatal(err)
			}
			if want := HandoverBytes(small, heads.Hi-heads.Lo, prompt, p); peak != want || arenas[owner].Stats().Peak != want {
				r.Fatalf("hand-over took %d (arena peak %d), HandoverBytes is %d", peak, arenas[owner].Stats().Peak, want)
			}
			for i, a := range arenas {
				if i != owner && a.Used() != 0 {
					r.Fatalf("socket %d still holds %d bytes", i, a.Used())
				}
			}
			for range rapid.IntRange(0, 80).Draw(r, "decode") {
				if want := ResidentBytes(small, prompt, o.Tokens(), p); o.Bytes() != want || arenas[owner].Used() != want {
					r.Fatalf("%d tokens hold %d (arena %d), ResidentBytes is %d", o.Tokens(), o.Bytes(), arenas[owner].Used(), want)
				}
				step(t, o, 1)
				n := rapid.IntRange(1, 9).Draw(r, "tokens of a step that is rolled back")
				if err := o.Reserve(o.Tokens() + n); err != nil {
					r.Fatal(err)
				}
				if want := StepBytes(small, prompt, o.Tokens()+n, n, p); o.Bytes() != want || arenas[owner].Used() != want {
					r.Fatalf("%d tokens and %d of a step hold %d (arena %d), StepBytes is %d", o.Tokens(), n, o.Bytes(), arenas[owner].Used(), want)
				}
				o.Rollback()
			}
			checkRows(t, o)
			o.Release()
			o.Release()
			if arenas[owner].Used() != 0 {
				r.Fatalf("%d bytes left after Release", arenas[owner].Used())
			}
		})
	})
}

// The cut over sockets, the owner and the chunks do not change the cache.
func TestSameCacheOnAnyCut(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		rapid.Check(t, func(r *rapid.T) {
			prompt, decode := rapid.IntRange(1, 200).Draw(r, "prompt"), rapid.IntRange(0, 80).Draw(r, "decode")
			a := memory.NewArena(1 << 30)
			defer a.Close()
			build := func(spans []tensor.Span, owner int) string {
				var stores []*Store
				for _, span := range spans {
					stores = append(stores, read(t, a, small, span, prompt, rapid.IntRange(1, 97).Draw(r, "chunk")))
				}
				o, _, err := handOver(p, stores, owner)
				if err != nil {
					r.Fatal(err)
				}
				defer o.Release()
				for range decode {
					observe(o)
					step(t, o, 1)
				}
				return dump(o)
			}
			spans := drawSockets(r, small)
			one := build([]tensor.Span{{Lo: 0, Hi: small.KVHeads}}, 0)
			if many := build(spans, rapid.IntRange(0, len(spans)-1).Draw(r, "owner")); one != many {
				r.Fatalf("cut %v differs from one socket: %s", spans, diff(many, one))
			}
		})
	})
}

func diff(got, want string) string {
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("at byte %d of %d and %d: %.60q..., want %.60q...", i, len(got), len(want), got[max(0, i-40):], want[max(0, i-40):])
}

func observe(s *Store) {
	for layer := range s.g.Layers {
		for head := range s.g.KVHeads {
			attention := make([]float32, s.Len(layer, head))
			for slot := range attention {
				attention[slot] = attentionOf(head, s.Position(layer, head, slot)+s.Tokens())
			}
			s.Observe(layer, head, attention)
		}
	}
}

func owned(t testing.TB, a *memory.Arena, p *Policy, prompt int) *Store {
	t.Helper()
	return ownedOf(t, a, small, p, prompt)
}

func ownedOf(t testing.TB, a *memory.Arena, g Geometry, p *Policy, prompt int) *Store {
	t.Helper()
	o, _, err := handOver(p, []*Store{read(t, a, g, tensor.Span{Lo: 0, Hi: g.KVHeads}, prompt, 64)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A step may be repeated in part or whole, rolled back, or committed in part.
func TestStepsAreIdempotent(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		rapid.Check(t, func(r *rapid.T) {
			a := memory.NewArena(1 << 30)
			defer a.Close()
			s := ownedOf(t, a, small, p, rapid.IntRange(1, 100).Draw(r, "prompt"))
			twin := ownedOf(t, a, small, p, s.Prompt())
			for range rapid.IntRange(1, 8).Draw(r, "steps") {
				n := rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(4, 40)).Draw(r, "tokens")
				from, before := s.Tokens(), dump(s)
				if some := rapid.IntRange(0, n).Draw(r, "reserved first"); some > 0 {
					if err := s.Reserve(from + some); err != nil {
						r.Fatal(err)
					}
					write(s, from, from+rapid.IntRange(0, some).Draw(r, "got to at first"))
				}
				if err := s.Reserve(from + n); err != nil {
					r.Fatal(err)
				}
				for range rapid.IntRange(0, 2).Draw(r, "tries") {
					write(s, from, from+rapid.IntRange(0, n).Draw(r, "got to"))
				}
				if rapid.Bool().Draw(r, "roll back") {
					observe(s)
					s.Rollback()
					if after := dump(s); after != before {
						r.Fatalf("roll-back left a trace: %s", diff(after, before))
					}
					continue
				}
				write(s, from, from+n)
				keep := rapid.IntRange(0, n).Draw(r, "accepted")
				s.Commit(keep)
				for range keep {
					step(t, twin, 1)
				}
				if got, want := dump(s), dump(twin); got != want {
					r.Fatalf("%d of %d tokens committed differ from one by one: %s", keep, n, diff(got, want))
				}
			}
			checkRows(t, s)
		})
	})
}

// A decoding sequence may move to another owner.
func TestMove(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		rapid.Check(t, func(r *rapid.T) {
			a, b := memory.NewArena(1<<30), memory.NewArena(1<<30)
			defer a.Close()
			defer b.Close()
			s := ownedOf(t, a, small, p, rapid.IntRange(1, 100).Draw(r, "prompt"))
			for range rapid.IntRange(0, 90).Draw(r, "decode") {
				observe(s)
				step(t, s, 1)
			}
			to := NewStore(b, small, p)
			if err := to.OpenMoved(s.Prompt(), s.Tokens()); err != nil {
				r.Fatal(err)
			}
			for layer := range small.Layers {
				b := s.LayerBlock(layer, s.Tokens())
				rows := append1(b, s)
				if _, err := b.Store(rows[:len(rows)-1], to); !errors.Is(err, rowblock.Err) {
					r.Fatalf("a layer without its last byte: %v", err)
				}
				for range 2 { // a repeated message has no effect
					if rest, err := b.Store(rows, to); err != nil || len(rest) > 0 {
						r.Fatal(err, len(rest))
					}
				}
			}
			if used, want := b.Used(), ResidentBytes(small, s.Prompt(), s.Tokens(), p); used != want || to.Bytes() != want {
				r.Fatalf("%d bytes in use where it goes, %d of the store, want %d", used, to.Bytes(), want)
			}
			if err := to.Seal(); err != nil {
				r.Fatal(err)
			}
			for range 3 {
				if got, want := dump(to), dump(s); got != want {
					r.Fatalf("the moved sequence differs: %s", diff(got, want))
				}
				step(t, to, 1)
				step(t, s, 1)
			}
		})
	})
}

// Reserve is all or nothing at every budget.
func TestReserveIsAllOrNothing(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		whole := memory.NewArena(1 << 30)
		defer whole.Close()
		s := ownedOf(t, whole, small, p, 60)
		for range 12 {
			step(t, s, 1)
		}
		full := whole.Used()
		tight := memory.NewArena(1 << 30) // a hand-over may need more than 12 steps do
		defer tight.Close()
		s = ownedOf(t, tight, small, p, 60)
		others := min(tight.Budget()-tight.Used(), tight.Budget()-full+1)
		if err := tight.Charge(others); err != nil {
			t.Fatal(err)
		}
		for range 12 {
			used := tight.Used()
			err := s.Reserve(s.Tokens() + 1)
			if err != nil {
				mustBudget(t, err)
				if tight.Used() != used || s.Bytes() != used-others {
					t.Fatalf("a refused Reserve left %d bytes, before %d", tight.Used(), used)
				}
				return
			}
			write(s, s.Tokens(), s.Tokens()+1)
			s.Commit(1)
		}
	})
}

// A token that takes over a slot does not inherit its score, and a rollback restores the score.
func TestScoresFollowTokens(t *testing.T) {
	a := memory.NewArena(1 << 30)
	defer a.Close()
	p := parse("h2o:recent=1,topk=7,step=1")
	s := owned(t, a, p, 20)
	h := s.Head(1, 2)
	slot := p.Slot(h, 20)
	old := h.Scores[slot]
	if old == 0 {
		t.Fatal("no scores came with the hand-over")
	}
	if err := s.Reserve(21); err != nil {
		t.Fatal(err)
	}
	write(s, 20, 21)
	if h.Scores[slot] != 0 || s.Position(1, 2, slot) != 20 {
		t.Errorf("token 20 in slot %d has score %v", slot, h.Scores[slot])
	}
	s.Observe(1, 2, []float32{9, 9, 9, 9, 9, 9, 9, 9})
	s.Rollback()
	if h.Scores[slot] != old {
		t.Errorf("after the roll-back slot %d has score %v, had %v", slot, h.Scores[slot], old)
	}
	step(t, s, 1)
	if h.Scores[slot] != 0 {
		t.Errorf("an attention of a step that was rolled back was observed: %v", h.Scores[slot])
	}
}

// The hand-over refuses inconsistent input.
func TestHandOverIsChecked(t *testing.T) {
	a, b := memory.NewArena(1<<30), memory.NewArena(1<<30)
	defer a.Close()
	defer b.Close()
	all := tensor.Span{Lo: 0, Hi: small.KVHeads}
	src := read(t, a, small, all, 70, 64)
	refuse := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Errorf("%s was taken", what)
		}
	}
	s := NewStore(a, small, Full())
	refuse("a token before Open", s.Reserve(1))
	refuse("Seal before Open", s.Seal())
	row := rowblock.Block{Layers: tensor.Span{Lo: 0, Hi: small.Layers}, Heads: tensor.Span{Lo: 2, Hi: 3},
		Slots: tensor.Span{}, Planes: rowblock.Positions | rowblock.Rows}
	rows := func(lo, hi int) []byte {
		b := row
		b.Slots = tensor.Span{Lo: lo, Hi: hi}
		body, err := Selection{src, Full(), func(int) (Kept, *Statistics) { return Full().Keep(&Statistics{Prompt: 70}), nil }}.ReadRows(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	write := func(lo, hi int, body []byte) error {
		b := row
		b.Slots = tensor.Span{Lo: lo, Hi: hi}
		return s.WriteRows(b, body)
	}
	refuse("rows before Open", write(0, 1, rows(0, 1)))
	refuse("an empty prompt", s.Open(0, 0, all))
	refuse("fewer tokens than the prompt", s.Open(5, 4, all))
	if err := s.Open(70, 70, tensor.Span{Lo: 0, Hi: 2}); err != nil {
		t.Fatal(err)
	}
	refuse("a second Open", s.Open(70, 70, all))
	refuse("a head that was not named", s.Adopt(src, 2))
	for head := range 2 {
		if err := s.Adopt(src, head); err != nil {
			t.Fatal(err)
		}
	}
	refuse("a store without its third head", s.Seal())
	refuse("rows of other positions", write(1, 70, rows(0, 69)))
	refuse("rows past the end", write(69, 71, rows(68, 70)))
	for range 2 { // a repeated message has no effect
		if err := write(0, 69, rows(0, 69)); err != nil {
			t.Fatal(err)
		}
	}
	refuse("a store without its last row", s.Seal())
	if err := write(69, 70, rows(69, 70)); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	refuse("rows after Seal", write(0, 1, rows(0, 1)))

	ring := NewStore(a, small, Streaming(1, 8))
	refuse("an adopted head of a ring", ring.Open(70, 70, all))
	if err := ring.Open(70, 70, tensor.Span{}); err != nil {
		t.Fatal(err)
	}
	refuse("an adopted head of a ring", ring.Adopt(src, 0))
	refuse("too few slots", ring.Keep(src, 0, 2, Kept{Positions: []int32{1}}))
	refuse("a position past the prompt", ring.Keep(src, 0, 2, Kept{Positions: []int32{0, 1, 2, 3, 4, 5, 6, 7, 70}}))
	other := NewStore(b, small, Full())
	if err := other.Open(70, 70, all); err != nil {
		t.Fatal(err)
	}
	refuse("blocks of another arena", other.Adopt(src, 2))
}

func FuzzImport(f *testing.F) {
	a := memory.NewArena(1 << 24)
	src := read(f, a, small, tensor.Span{Lo: 0, Hi: 3}, 10, 10)
	b := PromptBlock(small, Full(), 10, 1, src.Heads())
	f.Add(append1(b, Selection{src, Full(), func(head int) (Kept, *Statistics) { return Full().Keep(statistics(src, 1, head)), nil }}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, rows []byte) {
		s := NewStore(a, small, Full())
		defer s.Release()
		if err := s.Open(10, 10, tensor.Span{}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Store(rows, s); err != nil && !errors.Is(err, rowblock.Err) {
			t.Fatal(err)
		}
	})
}

// Different heads of one store may be written concurrently (run with -race).
func TestHeadsAreWrittenConcurrently(t *testing.T) {
	forEach(t, func(t *testing.T, p *Policy) {
		a := memory.NewArena(1 << 30)
		defer a.Close()
		s, twin := owned(t, a, p, 100), owned(t, a, p, 100)
		for range 20 {
			pos := s.Tokens()
			if err := s.Reserve(pos + 1); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for head := range small.KVHeads {
				wg.Go(func() {
					for layer := range small.Layers {
						k, v := row(small, layer, head, pos)
						s.Write(layer, head, pos, k, v)
					}
				})
			}
			wg.Wait()
			s.Commit(1)
			step(t, twin, 1)
		}
		if got, want := dump(s), dump(twin); got != want {
			t.Fatal(diff(got, want))
		}
	})
}

// Blocks of one head may be written concurrently if ParallelWrite allows it (run with -race), in any order,
// also in a step that is rolled back.
func TestBlocksAreWrittenConcurrently(t *testing.T) {
	a := memory.NewArena(1 << 30)
	defer a.Close()
	check := func(t *testing.T, s, twin *Store, all bool) {
		for _, n := range []int{50, 1, 200, 64, 7} {
			for _, commit := range []int{0, n} {
				pos := s.Tokens()
				if err := s.Reserve(pos + n); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for layer := range small.Layers {
					for head := s.heads.Lo; head < s.heads.Hi; head++ {
						if !s.ParallelWrite(layer, head, pos, n) {
							if all {
								t.Fatalf("layer %d: not apart", layer)
							}
							writeHead(s, layer, head, pos, pos+n)
							continue
						}
						for to := pos + n; to > pos; {
							from := max(pos, (to-1)/tensor.BlockSlots*tensor.BlockSlots)
							at, m := from, to-from
							wg.Go(func() { writeHead(s, layer, head, at, at+m) })
							to = from
						}
					}
				}
				wg.Wait()
				s.Commit(commit)
			}
			step(t, twin, n)
			if got, want := dump(s), dump(twin); got != want {
				t.Fatal(diff(got, want))
			}
		}
	}
	forEach(t, func(t *testing.T, p *Policy) {
		check(t, owned(t, a, p, 100), owned(t, a, p, 100), p == policies[0])
	})
	heads := tensor.Span{Lo: 1, Hi: 3}
	check(t, NewPrefill(a, small, heads), NewPrefill(a, small, heads), true)
	s := NewPrefill(a, small, heads)
	if s.ParallelWrite(0, 1, 0, 1) {
		t.Error("tokens that are not reserved")
	}
}

// A replica that gets the rows of each step equals the owner's store, if all or a part of each step is
// committed.
func TestReplicaFollows(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, small Geometry) {
		if p.Scored() {
			return
		}
		rapid.Check(t, func(r *rapid.T) {
			a := memory.NewArena(1 << 30)
			defer a.Close()
			s := ownedOf(t, a, small, p, rapid.IntRange(1, 100).Draw(r, "prompt"))
			replica := ownedOf(t, a, small, p, s.Prompt())
			for range rapid.IntRange(1, 8).Draw(r, "steps") {
				n, from := rapid.IntRange(1, 9).Draw(r, "tokens"), s.Tokens()
				for _, to := range []*Store{s, replica} {
					if err := to.Reserve(from + n); err != nil {
						r.Fatal(err)
					}
				}
				write(s, from, from+n)
				for range rapid.IntRange(1, 2).Draw(r, "times") {
					b := s.StepBlock(from, n)
					if _, err := b.Store(append1(b, s), replica); err != nil {
						r.Fatal(err)
					}
				}
				keep := rapid.IntRange(0, n).Draw(r, "accepted")
				s.Commit(keep)
				replica.Commit(keep)
				if got, want := dump(replica), dump(s); got != want {
					r.Fatalf("%d of %d tokens committed: %s", keep, n, diff(got, want))
				}
			}
			checkRows(t, replica)
		})
	})
}
