package kvcache

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// drawPolicy draws a policy of these methods, or of any, with sizes around those of blocks, windows and prompts.
func drawPolicy(r *rapid.T, methods ...string) *Policy {
	if methods == nil {
		methods = []string{"streaming", "snapkv", "snapstream", "sage", "h2o", "tova", "knorm", "pyramidkv", "adakv", "lagkv",
			"resnap", "quest", "loki", "infinigen", "shadowkv", "squeezed", "full"}
	}
	size := func(name string, least int) string {
		if rapid.IntRange(0, 9).Draw(r, name+" is a share") == 0 {
			return fmt.Sprintf("%s=%g%%", name, float64(rapid.IntRange(1, 100_000).Draw(r, name))/1000)
		}
		return fmt.Sprintf("%s=%d", name, rapid.OneOf(rapid.IntRange(least, least+9), rapid.IntRange(least, 200)).Draw(r, name))
	}
	number := func(name string, lo, hi int) string {
		return fmt.Sprintf("%s=%d", name, rapid.IntRange(lo, hi).Draw(r, name))
	}
	of := func(name string, values ...string) string {
		return name + "=" + rapid.SampledFrom(values).Draw(r, name)
	}
	pool := func() string { return of("pool", "1", "3", "7") }
	var spec string
	switch rapid.SampledFrom(methods).Draw(r, "method") {
	case "full":
		spec = "full"
	case "streaming":
		spec = "streaming:" + size("sink", 0) + "," + size("recent", 1)
	case "snapkv":
		spec = "snapkv:" + size("topk", 0) + "," + size("obs", 1) + "," + pool() + "," + of("votes", "prompt", "prefix", "candidates")
	case "snapstream":
		spec = "snapstream:" + size("sink", 0) + "," + size("recent", 1) + "," + size("topk", 0) + "," + size("obs", 1) + "," + pool() + "," +
			of("votes", "prompt", "prefix", "candidates")
	case "sage":
		spec = "sage:" + size("sink", 0) + "," + size("recent", 1) + "," + size("topk", 0)
	case "h2o":
		spec = "h2o:" + size("recent", 1) + "," + size("topk", 0) + "," + number("step", 0, 1)
	case "tova":
		spec = "tova:" + size("size", 2)
	case "knorm":
		spec = "knorm:" + size("sink", 0) + "," + size("recent", 1) + "," + size("topk", 0)
	case "pyramidkv":
		spec = "pyramidkv:" + size("topk", 0) + "," + size("obs", 1) + "," + pool() + "," + number("beta", 1, 30)
	case "adakv":
		spec = "adakv:" + size("topk", 0) + "," + size("obs", 1) + "," + pool() + "," + of("floor", "0", "0.2", "1")
	case "lagkv":
		spec = "lagkv:" + size("sink", 0) + "," + size("lag", 2) + "," + size("topk", 0)
	case "resnap":
		spec = "resnap:" + size("topk", 0) + "," + size("every", 1) + "," + size("obs", 1) + "," + pool()
	case "quest":
		spec = "quest:" + of("page", "16", "32", "64") + "," + number("budget", 32, 200) + "," + number("skip", 0, 3)
	case "loki":
		spec = "loki:" + size("budget", 2) + "," + of("dims", "0.001", "0.5", "1") + "," + of("calib", "16", "64")
	case "infinigen":
		spec = "infinigen:" + of("alpha", "0.5", "4") + "," + of("most", "0.001", "0.3", "1") + "," + of("dims", "0.001", "0.5", "1") + "," +
			of("calib", "16", "64")
	case "shadowkv":
		spec = "shadowkv:" + of("chunk", "2", "4", "8", "16", "64") + "," + size("budget", 2) + "," + number("outliers", 0, 5) + "," +
			number("local", 1, 4) + "," + number("int8", 0, 1) + "," + number("skip", 0, 2) + "," +
			of("keys", "exact", "lowrank") + "," + of("rank", "8", "16")
	case "squeezed":
		spec = "squeezed:" + of("clusters", "0.005", "0.05", "0.5") + "," + number("levels", 1, 2) + "," +
			of("sparsity", "0", "0.5", "0.999") + "," + size("tail", 1) + "," + size("obs", 2) + "," + size("segment", 64)
	}
	sep := ":"
	if slices.Contains([]byte(spec), ':') {
		sep = ","
	}
	for _, option := range []string{of("layers", "pyramid") + "," + number("beta", 1, 30),
		of("heads", "ada") + "," + of("floor", "0", "0.2", "1"),
		size("ring", 1), size("recall", 1) + "," + of("page", "16", "64"), "positions=cache," + number("half", 0, 1)} {
		if rapid.IntRange(0, 2).Draw(r, "option") > 0 {
			continue
		}
		if _, err := Parse(spec + sep + option); err == nil {
			spec, sep = spec+sep+option, ","
		}
	}
	p, err := Parse(spec)
	if err != nil {
		r.Fatalf("%s: %v", spec, err)
	}
	return p
}

// observeToken records the attention of the newest token, at position pos.
func observeToken(s *Store, pos int) {
	for layer := range s.g.Layers {
		for head := range s.g.KVHeads {
			attention := make([]float32, s.Len(layer, head))
			for slot := range attention {
				attention[slot] = attentionOf(head, s.Position(layer, head, slot)+pos)
			}
			s.Observe(layer, head, attention)
		}
	}
}

func moveTo(r *rapid.T, a *memory.Arena, s *Store) *Store {
	to := NewStore(a, s.g, s.policy)
	if err := to.OpenMoved(s.Prompt(), s.Tokens()); err != nil {
		r.Fatal(err)
	}
	for layer := range s.g.Layers {
		b := s.LayerBlock(layer, s.Tokens())
		if _, err := b.Store(append1(b, s), to); err != nil {
			r.Fatal(err)
		}
	}
	if err := to.Seal(); err != nil {
		r.Fatal(err)
	}
	return to
}

// A sequence under any policy that is cut, refused memory, rolled back, forked and moved equals the
// undisturbed one, and holds the bytes of the ledger.
func TestAnySchedule(t *testing.T) {
	shapes := []Geometry{small, windowed, mixed,
		{Layers: 3, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.Int8, KDim: 32, VDim: 32},
			Windows: []int{0, 100, 0}, Chunked: true},
		{Layers: 2, KVHeads: 1, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}},
		{Layers: 1, KVHeads: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}, Windows: []int{1}}}
	rapid.Check(t, func(r *rapid.T) {
		p, g := drawPolicy(r), rapid.SampledFrom(shapes).Draw(r, "shape")
		prompt := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 300)).Draw(r, "prompt")
		if p = p.For(prompt); g.Fits(p) != nil {
			return
		}
		a, b := memory.NewArena(1<<30), memory.NewArena(1<<30)
		defer a.Close()
		defer b.Close()
		build := func(a *memory.Arena, spans []tensor.Span, owner int) *Store {
			var stores []*Store
			for _, span := range spans {
				stores = append(stores, read(t, a, g, span, prompt, rapid.IntRange(1, 97).Draw(r, "chunk")))
			}
			o, _, err := handOver(p, stores, owner)
			if err != nil {
				r.Fatal(p.Spec(), err)
			}
			return o
		}
		spans := drawSockets(r, g)
		s, twin := build(a, spans, rapid.IntRange(0, len(spans)-1).Draw(r, "owner")), build(b, []tensor.Span{{Lo: 0, Hi: g.KVHeads}}, 0)
		check := func(what string) {
			if want := ResidentBytes(g, prompt, s.Tokens(), p); s.Bytes() != want || a.Used() != want {
				r.Fatalf("%s: %s: %d tokens hold %d, arena %d, ResidentBytes is %d", p.Spec(), what, s.Tokens(), s.Bytes(), a.Used(), want)
			}
			if got, want := dump(s), dump(twin); got != want {
				r.Fatalf("%s: %s: %s", p.Spec(), what, diff(got, want))
			}
		}
		check("hand-over")
		for range rapid.IntRange(1, 8).Draw(r, "steps") {
			if rapid.IntRange(0, 3).Draw(r, "moves") == 0 {
				to := moveTo(r, a, s)
				s.Release()
				s = to
				check("move")
			}
			from, n := s.Tokens(), rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 90)).Draw(r, "tokens")
			written := 0
			writeTo := func(to int) {
				for ; written < to; written++ {
					write(s, from+written, from+written+1)
					observeToken(s, from+written)
				}
			}
			for reserved := 0; reserved < n; {
				next := rapid.IntRange(reserved+1, n).Draw(r, "reserved")
				used, bytes := a.Used(), s.Bytes()
				if rapid.Bool().Draw(r, "tight") {
					a.SetBudget(used + int64(rapid.IntRange(0, 20000).Draw(r, "room")))
				}
				err := s.Reserve(from + next)
				a.SetBudget(1 << 30)
				if err != nil {
					mustBudget(t, err)
					if a.Used() != used || s.Bytes() != bytes {
						r.Fatalf("%s: a refused Reserve of %d after %d tokens left %d bytes, before %d", p.Spec(), next, reserved, a.Used(), used)
					}
					break
				}
				reserved = next
				if want := StepBytes(g, prompt, from+reserved, reserved, p); s.Bytes() != want || a.Used() != want {
					r.Fatalf("%s: %d and %d of a step hold %d, arena %d, StepBytes is %d", p.Spec(), from, reserved, s.Bytes(), a.Used(), want)
				}
				if rapid.Bool().Draw(r, "writes") {
					writeTo(rapid.IntRange(written, reserved).Draw(r, "written"))
				}
				if rapid.IntRange(0, 3).Draw(r, "again") == 0 && written > 0 {
					written = rapid.IntRange(0, written-1).Draw(r, "from")
					writeTo(rapid.IntRange(written+1, reserved).Draw(r, "to"))
				}
			}
			keep := rapid.IntRange(0, written).Draw(r, "accepted")
			s.Commit(keep)
			for i := range keep {
				if err := twin.Reserve(from + i + 1); err != nil {
					r.Fatal(err)
				}
				write(twin, from+i, from+i+1)
				observeToken(twin, from+i)
				twin.Commit(1)
			}
			check(fmt.Sprintf("%d of %d tokens", keep, written))
		}
		if g.Layout.Type != tensor.Int8 {
			checkRows(t, s)
		}
		if p.Forks() && len(g.Windows) == 0 {
			fork, err := s.Fork()
			if err != nil {
				r.Fatal(err)
			}
			s.Release()
			s = fork
			fresh := build(b, []tensor.Span{{Lo: 0, Hi: g.KVHeads}}, 0)
			step(t, fresh, 70)
			step(t, fork, 70)
			if got, want := dump(fork), dump(fresh); got != want {
				r.Fatalf("%s: fork: %s", p.Spec(), diff(got, want))
			}
		}
		if s.Release(); a.Used() != 0 {
			r.Fatalf("%s: %d bytes left", p.Spec(), a.Used())
		}
	})
}

// A step that was refused more tokens leaves no block behind when it is rolled back.
func TestRefusedTokensLeaveNoBlock(t *testing.T) {
	forEachShape(t, func(t *testing.T, p *Policy, g Geometry) {
		a := memory.NewArena(1 << 30)
		defer a.Close()
		s := ownedOf(t, a, g, p, 6)
		for n := 1; n < 130; n++ {
			if err := s.Reserve(6 + n); err != nil {
				t.Fatal(err)
			}
			a.SetBudget(a.Used())
			refused := s.Reserve(6+n+1) != nil
			a.SetBudget(1 << 30)
			s.Rollback()
			if want := ResidentBytes(g, 6, 6, p); s.Bytes() != want || a.Used() != want {
				t.Fatalf("a step of %d tokens, one more refused %v: %d bytes are left, arena %d, want %d", n, refused, s.Bytes(), a.Used(), want)
			}
		}
	})
}

// turning is a rotation by n positions.
func turning(kdim int) Rope {
	return func(n int) (cos, sin []float32) {
		cos, sin = make([]float32, kdim/2), make([]float32, kdim/2)
		for i := range cos {
			a := float64(n) / float64(3+5*i)
			cos[i], sin[i] = float32(math.Cos(a)), float32(math.Sin(a))
		}
		return cos, sin
	}
}

// read1 is the attention of the query of the token at pos to a head of a store, as bits.
func read1(s *Store, layer, head, pos int) []uint32 {
	l, g := s.g.LayoutOf(layer), s.g.group()
	q := make([]float32, g*l.KDim)
	for i := range q {
		q[i] = float32((pos*13+layer*5+head*3+i*7)%29)/29 - 0.5
	}
	scratch := new(tensor.AttnScratch)
	blocks, n, valid := s.View(layer, head, pos, q, tensor.Score{Scale: 0.3}, turning(l.KDim), scratch)
	out := make([]float32, g*l.VDim)
	tensor.Attend(out, q, g, tensor.Score{Scale: 0.3}, l, blocks, n, valid, scratch)
	bits := make([]uint32, len(out))
	for i, x := range out {
		bits[i] = math.Float32bits(x)
	}
	return bits
}

// A token reads the same bits in a step of any number of tokens, in an owner's cache and in a replica.
func TestAnyStepReadsTheSame(t *testing.T) {
	shapes := []Geometry{small, windowed, mixed,
		{Layers: 3, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.Int8, KDim: 32, VDim: 32},
			Windows: []int{0, 100, 0}, Chunked: true},
		{Layers: 2, KVHeads: 1, Layout: tensor.KVLayout{Type: tensor.F32, KDim: 16, VDim: 8}},
		{Layers: 2, KVHeads: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}, Windows: []int{1, 0}}}
	rapid.Check(t, func(r *rapid.T) {
		p, g := drawPolicy(r), rapid.SampledFrom(shapes).Draw(r, "shape")
		prompt := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 300)).Draw(r, "prompt")
		if p = p.For(prompt); g.Fits(p) != nil {
			return
		}
		a := memory.NewArena(1 << 30)
		defer a.Close()
		build := func() *Store {
			part := NewPrefill(a, g, tensor.Span{Lo: 0, Hi: g.KVHeads})
			if err := part.Reserve(prompt); err != nil {
				r.Fatal(err)
			}
			write(part, 0, prompt)
			part.Commit(prompt)
			o, _, err := handOver(p, []*Store{part}, 0)
			if err != nil {
				r.Fatal(p.Spec(), err)
			}
			return o
		}
		s, twin, replica := build(), build(), build()
		for range rapid.IntRange(1, 6).Draw(r, "steps") {
			from, n := s.Tokens(), rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 150)).Draw(r, "tokens")
			keep := rapid.IntRange(0, n).Draw(r, "accepted")
			if err := s.Reserve(from + n); err != nil {
				r.Fatal(err)
			}
			all := make([][][]uint32, g.Layers*g.KVHeads) // [layer][head][token]
			for layer := range g.Layers {
				together, _ := s.BatchedDecode(layer, from, n)
				for head := range g.KVHeads {
					var got [][]uint32
					if together {
						writeHead(s, layer, head, from, from+n)
					}
					for i := range n {
						if !together {
							writeHead(s, layer, head, from+i, from+i+1)
						}
						got = append(got, read1(s, layer, head, from+i))
						attention := make([]float32, s.Len(layer, head))
						for slot := range attention {
							attention[slot] = attentionOf(head, s.Position(layer, head, slot)+from+i)
						}
						s.Observe(layer, head, attention)
					}
					all[layer*g.KVHeads+head] = got
				}
			}
			if !p.Scored() {
				if err := replica.Reserve(from + n); err != nil {
					r.Fatal(err)
				}
				b := s.StepBlock(from, n)
				if _, err := b.Store(append1(b, s), replica); err != nil {
					r.Fatal(err)
				}
				replica.Commit(keep)
			}
			s.Commit(keep)
			for i := range keep {
				if err := twin.Reserve(from + i + 1); err != nil {
					r.Fatal(err)
				}
				write(twin, from+i, from+i+1)
				for layer := range g.Layers {
					for head := range g.KVHeads {
						if got, want := all[layer*g.KVHeads+head][i], read1(twin, layer, head, from+i); !slices.Equal(got, want) {
							r.Fatalf("%s: token %d of %d from %d, layer %d, head %d: %x, alone %x", p.Spec(), i, n, from, layer, head, got, want)
						}
					}
				}
				observeToken(twin, from+i)
				twin.Commit(1)
			}
			if got, want := dump(s), dump(twin); got != want {
				r.Fatalf("%s: %s", p.Spec(), diff(got, want))
			}
			if p.Scored() {
				continue
			}
			if got, want := dump(replica), dump(twin); got != want {
				r.Fatalf("%s: a replica: %s", p.Spec(), diff(got, want))
			}
		}
	})
}
