package kvcache

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A prompt that continues from a segment's sums has the bits of one that was read whole, for any
// chunks. The sums are counted to the byte, and freed with their segment.
func TestSumsGoOn(t *testing.T) {
	latent := small
	latent.KVHeads, latent.Group, latent.Units = 1, 4, 2
	grouped := small
	grouped.Group = 2
	p := parse("h2o:recent=30,topk=30,step=0")
	for name, g := range map[string]Geometry{"plain": grouped, "windows": windowed, "latent": latent} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				a := memory.NewArena(1 << 30)
				defer a.Close()
				heads, cut := tensor.Span{Lo: 0, Hi: g.KVHeads}, tensor.Span{Lo: 0, Hi: g.Cut()}
				blocks := rapid.IntRange(1, 3).Draw(r, "blocks")
				at := blocks * tensor.BlockSlots
				prompt := at + rapid.IntRange(1, 90).Draw(r, "more")
				chain, s := chainOf(t, a, g, heads, prompt, blocks)
				defer s.Release()
				if g.Windows != nil { // layers with a window have freed their rows and are not observed
					s = read(t, a, small, heads, prompt, 64)
				}
				q := observed(prompt, g)
				width := g.queryHeads() * g.Layout.KDim
				observe := func(o *Observation, from, to int) {
					for from < to {
						n := min(to-from, rapid.IntRange(1, 70).Draw(r, "chunk"))
						for layer := range g.Layers {
							for head := range g.Cut() {
								row := head % g.KVHeads
								o.Observe(layer, head, from, n, q[from*width:], width, tensor.Score{Scale: 0.25}, s.Blocks(layer, row), new(tensor.AttnScratch))
							}
						}
						from += n
					}
				}
				begin := func(prompt int) *Observation {
					o, err := NewObservation(a, g, cut, p.Needs, prompt)
					if err != nil {
						r.Fatal(err)
					}
					return o
				}
				whole, first, second := begin(prompt), begin(at+1), begin(prompt)
				observe(whole, 0, prompt)
				observe(first, 0, at)
				before, last := a.Stats(), chain[blocks-1]
				if err := last.KeepSums(first); err != nil {
					r.Fatal(err)
				}
				first.Release()
				bytes := SumsBytes(g, cut.Len(), at)
				if st := a.Stats(); st.Used != before.Used+bytes-StatisticsBytes(g, cut.Len(), at+1, p) || st.Evictable != before.Evictable+bytes {
					r.Fatalf("%+v, before %+v: sums of %d bytes", st, before, bytes)
				}
				if last.KeepSums(second) == nil || second.Continue(chain[0]) == nil == (blocks > 1) {
					r.Fatal("sums were kept twice, or found where none are")
				}
				if err := second.Continue(last); err != nil {
					r.Fatal(err)
				}
				observe(second, at, prompt)
				if !slices.Equal(whole.attention, second.attention) {
					r.Fatalf("%d tokens, gone on from %d: other sums", prompt, at)
				}
				used := a.Used()
				last.Release()
				if a.Used() > used-bytes || a.Stats().Evictable > before.Evictable {
					r.Fatal("the sums of a block that has ended are still there")
				}
			})
		})
	}
}

// Sums are kept at powers of two and at the last block that another prompt can reuse. They take less
// memory than those of three whole prompts.
func TestSumsAt(t *testing.T) {
	p := parse("h2o:recent=30,topk=30,step=1")
	for prompt := range 20_000 {
		from, all := 0, 0
		for at := p.SumsAt(prompt, 0); at > 0; at = p.SumsAt(prompt, from) {
			if at <= from || at >= prompt || at%tensor.BlockSlots != 0 {
				t.Fatalf("prompt of %d: sums at %d after %d", prompt, at, from)
			}
			from, all = at, all+at
		}
		if last := max(0, prompt-1) / tensor.BlockSlots * tensor.BlockSlots; from != last || all >= 3*prompt && prompt > 0 {
			t.Fatalf("prompt of %d: sums of %d tokens, the last at %d, want %d", prompt, all, from, last)
		}
	}
	if Full().SumsAt(5000, 0) != 0 {
		t.Error("sums that nobody needs")
	}
}
