package kvcache

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// During prefill a layer with a window holds its ring and the chunk, for any length of the prompt
// and any failed steps. Attention gives the bits of a cache that keeps everything, and the owner
// gets the same rows at the end.
func TestWindowPrefill(t *testing.T) {
	const chunk, prompt = 96, 1500
	for _, size := range []int{1, 40, 64, 65, 200} {
		g := windowed
		g.Windows, g.Chunk = []int{size, 0}, chunk
		heads := tensor.Span{Lo: 1, Hi: 3}
		a, b := memory.NewArena(1<<30), memory.NewArena(1<<30)
		s, whole := NewPrefill(a, g, heads), NewPrefill(b, Geometry{Layers: g.Layers, KVHeads: g.KVHeads, Layout: g.Layout}, heads)
		step(t, whole, prompt)
		r := rand.New(rand.NewPCG(1, uint64(size)))
		var most int64
		for s.Tokens() < prompt {
			start, n := s.Tokens(), min(1+r.IntN(chunk), prompt-s.Tokens())
			if err := s.Reserve(start + n); err != nil {
				t.Fatal(err)
			}
			write(s, start, start+n)
			most = max(most, s.Bytes())
			if got, want := s.Bytes(), PrefillBytes(g, heads.Len(), start+n, Full()); got > want {
				t.Fatalf("window %d: %d bytes after %d tokens, booked are %d", size, got, start+n, want)
			}
			for head := heads.Lo; head < heads.Hi; head++ {
				q := make([]float32, n*g.Layout.KDim)
				for i := range q {
					q[i] = float32((start+i*head)%5) / 1000
				}
				attend := func(s *Store) []float32 {
					out := make([]float32, n*g.Layout.VDim)
					tensor.AttendCausal(out, g.Layout.VDim, q, g.Layout.KDim, n, start, size, 1, tensor.Score{Scale: 0.5},
						g.Layout, s.Blocks(0, head), new(tensor.AttnScratch))
					return out
				}
				if !slices.Equal(attend(s), attend(whole)) {
					t.Fatalf("window %d: other bits for tokens [%d,%d)", size, start, start+n)
				}
			}
			s.Commit(n * r.IntN(2)) // every second step fails and is repeated
		}
		if book := PrefillBytes(g, heads.Len(), prompt, Full()); most > book || 2*most < book {
			t.Errorf("window %d: %d bytes at most, %d are booked", size, most, book)
		}
		if without := PrefillBytes(small, heads.Len(), prompt, Full()); most > without*2/3 {
			t.Errorf("window %d: %d bytes, %d without windows", size, most, without)
		}
		rule := g.Rule(0, Full())
		kept := rule.Keep(StatisticsOf(s, 0, 1))
		rows := func(s *Store) []byte {
			return append1(PromptBlock(g, Full(), prompt, 0, tensor.Span{Lo: 1, Hi: 2}),
				Selection{s, Full(), func(int) (Kept, *Statistics) { return kept, nil }})
		}
		if !slices.Equal(rows(s), rows(whole)) {
			t.Errorf("window %d: the owner gets other rows", size)
		}
		s.Release()
		if a.Used() != 0 {
			t.Errorf("window %d: %d bytes are left", size, a.Used())
		}
		whole.Release()
		a.Close()
		b.Close()
	}
}
