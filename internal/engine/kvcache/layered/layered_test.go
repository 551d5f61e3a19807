package layered

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var layout = tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}

func parse(t *rapid.T, spec string) *kvcache.Policy {
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A socket that reads layer by layer allocates exactly what CacheBytes counts, for any prompt, groups
// of layers, blocks of the prefix cache at its beginning, and sweeps. Layers give the rows of a prompt
// that was read in chunks.
func TestCacheBytesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := kvcache.Geometry{Layers: rapid.IntRange(1, 5).Draw(t, "layers"), KVHeads: 3, Group: 2, Layout: layout}
		windowed := rapid.Bool().Draw(t, "windows")
		if windowed {
			for range g.Layers {
				g.Windows = append(g.Windows, rapid.SampledFrom([]int{0, 40, 130}).Draw(t, "window"))
			}
		}
		p := parse(t, rapid.SampledFrom([]string{"streaming:sink=2,recent=20", "snapkv:topk=9,obs=8,pool=3", "h2o:recent=8,topk=8", "knorm:sink=2,recent=8,topk=8"}).Draw(t, "policy"))
		read, heads := rapid.IntRange(1, 700).Draw(t, "read"), tensor.Span{Lo: 1, Hi: 3}
		s := ShapeOf(g, rapid.IntRange(1, 90).Draw(t, "chunk"), read, 8, 2)
		if s.Group < 1 || s.Group > g.Layers || s.Rows < s.Pass || s.Rows%s.Pass != 0 {
			t.Fatalf("shape %+v of %d layers", s, g.Layers)
		}
		shared := 0
		if !p.Needs.PromptAttention {
			shared = rapid.IntRange(0, p.ReusableTokens(read)/tensor.BlockSlots).Draw(t, "shared blocks")
		}
		a := kvcache.NewArena(1 << 30)
		defer a.Close()
		whole := kvcache.NewPrefill(a, g, heads)
		write(t, whole, 0, g.Layers, read)
		var chain []*kvcache.Segment
		for i := range shared {
			part := kvcache.NewPrefill(a, g, heads)
			write(t, part, 0, g.Layers, (i+1)*tensor.BlockSlots)
			segment, err := part.Share(i)
			if err != nil {
				t.Fatal(err)
			}
			part.Release()
			chain = append(chain, segment)
		}
		store := kvcache.NewPrefill(a, g, heads)
		if err := store.Attach(chain); err != nil {
			t.Fatal(err)
		}
		before, most := a.Used(), int64(0)
		for from := 0; from < g.Layers; from += s.Group {
			to := min(from+s.Group, g.Layers)
			store.Enter(tensor.Span{Lo: from, Hi: to}, shared*tensor.BlockSlots)
			seen, err := kvcache.NewObservation(a, Only(g, from, to), heads, p.Needs, read)
			if err != nil {
				t.Fatal(err)
			}
			for store.Tokens() < read {
				n := min(s.Rows, read-store.Tokens())
				write(t, store, from, to, store.Tokens()+n)
				most = max(most, a.Used()-before)
				store.Commit(n)
			}
			for layer := from; layer < to; layer++ {
				for head := heads.Lo; head < heads.Hi; head++ {
					got, want := store.Blocks(layer, head), whole.Blocks(layer, head)
					for i := range got {
						if got[i] != nil && !slices.Equal(got[i], want[i]) {
							t.Fatalf("layer %d, head %d: block %d has other rows", layer, head, i)
						}
					}
				}
			}
			seen.Release()
		}
		book := s.CacheBytes(g, heads.Len(), heads.Len(), read, shared, p)
		if most > book || !windowed && most < book {
			t.Fatalf("%d bytes at most, %d are booked for %+v", most, book, s)
		}
		store.Release()
		for _, segment := range chain {
			segment.Release()
		}
		whole.Release()
		if left := a.Used(); left != 0 {
			t.Fatalf("%d bytes are left", left)
		}
	})
}

// write writes rows of the tokens up to a number to layers [from, to), without a commit.
func write(t *rapid.T, s *kvcache.Store, from, to, tokens int) {
	start := s.Tokens()
	if err := s.Reserve(tokens); err != nil {
		t.Fatal(err)
	}
	k, v := make([]float32, layout.KDim), make([]float32, layout.VDim)
	for layer := from; layer < to; layer++ {
		for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
			for pos := start; pos < tokens; pos++ {
				k[0], v[0] = float32(pos%97), float32(layer*8+head)
				s.Write(layer, head, pos, k, v)
			}
		}
	}
}

// A rank's rows of each pass come back as they were stored.
func TestResidual(t *testing.T) {
	const hidden, pass, ranks, first, prompt = 12, 10, 3, 64, 99
	a := kvcache.NewArena(1 << 20)
	defer a.Close()
	r, err := NewResidual(a, hidden, pass, ranks, first, prompt)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Shape{Group: 1, Pass: pass, Hidden: hidden, Ranks: ranks}).ResidualBytes(kvcache.Geometry{Layers: 2}, prompt-first); a.Used() != want {
		t.Errorf("%d bytes, %d are booked", a.Used(), want)
	}
	for _, change := range []float32{1, 2} {
		for start := first; start < prompt; start += pass {
			rows, err := r.Rows(start, 4)
			if err != nil {
				t.Fatal(err)
			}
			for i := range rows {
				if had := rows[i]; change == 2 && had != float32(start*100+i) {
					t.Fatalf("pass %d: %v", start, had)
				}
				rows[i] = change * float32(start*100+i)
			}
		}
	}
	for _, bad := range []struct{ start, n int }{{0, 1}, {65, 1}, {104, 1}, {64, 5}} {
		if _, err := r.Rows(bad.start, bad.n); err == nil || !strings.Contains(err.Error(), "passes begin every 10 tokens after 64") {
			t.Errorf("rows %+v: %v", bad, err)
		}
	}
	r.Release()
	r.Release()
	if a.Used() != 0 {
		t.Errorf("%d bytes are left", a.Used())
	}
	if _, err := NewResidual(kvcache.NewArena(100), hidden, pass, ranks, first, prompt); err == nil || !strings.Contains(err.Error(), "residual stream of a prompt of 99 tokens") {
		t.Errorf("without memory: %v", err)
	}
}

// Policies that keep all tokens, or need all layers at once, are read in chunks; so are models whose
// layers share caches or have recurrent states.
func TestFits(t *testing.T) {
	g := kvcache.Geometry{Layers: 2, KVHeads: 1, Layout: layout}
	across, recurrent := g, g
	across.Across, recurrent.Recurrent.Layers = true, 1
	for _, c := range []struct {
		spec string
		g    kvcache.Geometry
		want bool
	}{
		{"snapkv", g, true}, {"snapstream", g, true}, {"sage", g, true}, {"h2o", g, true}, {"tova", g, true}, {"knorm", g, true}, {"streaming", g, true},
		{"full", g, false}, {"quest", g, false}, {"shadowkv", g, false}, {"squeezed", g, false}, {"snapkv", across, false}, {"snapkv", recurrent, false},
	} {
		p, err := kvpolicy.Parse(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := Fits(c.g, p); got != c.want {
			t.Errorf("%s, %+v: %v", c.spec, c.g, got)
		}
	}
}
