package layered

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
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

// A socket that reads layer by layer allocates exactly the bytes that CacheBytes returns, for any
// prompt, groups of layers, blocks of the prefix cache at its beginning, and sweeps. Layers give the
// rows of a prompt that was read in chunks.
func TestCacheBytesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := kvcache.Geometry{Layers: rapid.IntRange(1, 5).Draw(t, "layers"), KVHeads: 3, Group: 2, Layout: layout}
		if g.Layers > 1 && rapid.Bool().Draw(t, "SwiftKV") {
			g.Later = rapid.IntRange(1, g.Layers-1).Draw(t, "first later layer")
		} else if rapid.Bool().Draw(t, "layers with several caches") {
			for at := 0; at < g.Layers; at += rapid.IntRange(1, 3).Draw(t, "caches") {
				g.Begins = append(g.Begins, at)
			}
		}
		windowed := rapid.Bool().Draw(t, "windows")
		if windowed {
			for range g.Layers {
				g.Windows = append(g.Windows, rapid.SampledFrom([]int{0, 40, 130}).Draw(t, "window"))
			}
		}
		p := parse(t, rapid.SampledFrom([]string{"streaming:sink=2,recent=20", "snapkv:topk=9,obs=8,pool=3",
			"h2o:recent=8,topk=8", "knorm:sink=2,recent=8,topk=8"}).Draw(t, "policy"))
		read, heads := rapid.IntRange(1, 700).Draw(t, "read"), tensor.Span{Lo: 1, Hi: 3}
		s := ShapeOf(g, rapid.IntRange(1, 90).Draw(t, "chunk"), read, 8, 2, p)
		if s.Group < 1 || s.Group > g.Layers {
			t.Fatalf("shape %+v of %d layers", s, g.Layers)
		}
		shared := 0
		if !p.Needs.PromptAttention {
			shared = rapid.IntRange(0, p.ReusableTokens(read)/tensor.BlockSlots).Draw(t, "shared blocks")
		}
		a := memory.NewArena(1 << 30)
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
		for from, to := 0, 0; from < g.Layers; from = to {
			to = s.To(from)
			rows := s.Rows(from, s.Pass)
			cut := g.Begins != nil && to < g.Layers && !slices.Contains(g.Begins, to)
			if to <= from || cut || from < g.Later && to > g.Later || rows < s.Pass || rows%s.Pass != 0 {
				t.Fatalf("%d rows of layers [%d,%d) of %+v", rows, from, to, s)
			}
			store.Enter(tensor.Span{Lo: from, Hi: to}, shared*tensor.BlockSlots)
			seen, err := kvcache.NewObservation(a, Only(g, from, to), heads, p.Needs, read)
			if err != nil {
				t.Fatal(err)
			}
			for store.Tokens() < read {
				n := min(rows, read-store.Tokens())
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

// fakeFile is a file in memory that may fail.
type fakeFile struct {
	bytes       []byte
	read, write error
	closed      int
}

func (f *fakeFile) Put(b []byte, at int64) error {
	copy(f.bytes[at:], b)
	return f.write
}

func (f *fakeFile) Read(at []int64, size int, got func(i int, page []byte) error) error {
	if f.read != nil {
		return f.read
	}
	return got(0, f.bytes[at[0]:][:size])
}

func (f *fakeFile) Close() { f.closed++ }

const hidden, pass, ranks, first, prompt = 12, 10, 3, 64, 99

// load and store move rows as a socket does: through blocks, or through the file.
func load(r *Residual, start, n int) ([]float32, error) {
	if r.InFile() {
		return r.Load(start, n)
	}
	blocks, err := r.Blocks(start, n)
	if err != nil {
		return nil, err
	}
	return tensor.Floats(slices.Concat(blocks...))[:n*hidden], nil
}

func store(r *Residual, start int, rows []float32) error {
	if r.InFile() {
		return r.Store(start, rows)
	}
	blocks, err := r.Blocks(start, len(rows)/hidden)
	left := tensor.FloatBytes(rows)
	for _, b := range blocks {
		left = left[copy(b, left):]
	}
	if len(left) > 0 && err == nil {
		return fmt.Errorf("%d bytes have no room", len(left))
	}
	return err
}

// A rank's rows of each pass come back as stored, from memory and from a file.
func TestResidual(t *testing.T) {
	a := memory.NewArena(1 << 20)
	defer a.Close()
	const block = 128
	inMemory, err := NewResidual(a, block, hidden, pass, ranks, first, prompt)
	if err != nil {
		t.Fatal(err)
	}
	shape, file := Shape{Group: 1, Pass: pass, Hidden: hidden, Block: block, Ranks: ranks}, new(fakeFile)
	if want := shape.ResidualBytes(prompt - first); a.Used() != want {
		t.Errorf("%d bytes, %d are booked", a.Used(), want)
	}
	shape.InFile = true
	inFile := NewInFile(func(size int64) (File, error) {
		if want := shape.FileBytes(prompt - first); size != want || shape.ResidualBytes(prompt-first) != 0 {
			t.Errorf("a file of %d bytes, %d are booked", size, want)
		}
		file.bytes = make([]byte, size)
		return file, nil
	}, hidden, pass, ranks, first, prompt)
	for _, r := range []*Residual{inMemory, inFile} {
		for layer := range 3 {
			for start := first; start < prompt; start += pass {
				n := min(4, prompt-start)
				if layer > 0 {
					got, err := load(r, start, n)
					if err != nil || len(got) != n*hidden || got[5] != float32(start*100+layer-1) || got[n*hidden-1] != float32(layer) {
						t.Fatalf("pass %d of layer %d: %v %v", start, layer, got, err)
					}
				}
				rows := make([]float32, n*hidden)
				rows[5], rows[n*hidden-1] = float32(start*100+layer), float32(layer+1)
				if err := store(r, start, rows); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, bad := range []struct{ start, n int }{{0, 1}, {65, 1}, {104, 1}, {64, 5}} {
			_, loads := load(r, bad.start, bad.n)
			for _, err := range []error{loads, store(r, bad.start, make([]float32, bad.n*hidden))} {
				if err == nil || !strings.Contains(err.Error(), "passes begin every 10 tokens after 64") {
					t.Errorf("rows %+v: %v", bad, err)
				}
			}
		}
		if err := r.Lost(); err != nil {
			t.Error(err)
		}
		r.Release()
		r.Release()
	}
	if a.Used() != 0 || file.closed != 1 {
		t.Errorf("%d bytes are left, the file was closed %d times", a.Used(), file.closed)
	}
	if _, err := NewResidual(memory.NewArena(100), block, hidden, pass, ranks, first, prompt); err == nil ||
		!strings.Contains(err.Error(), "residual stream of a prompt of 99 tokens") {
		t.Errorf("without memory: %v", err)
	}
}

// Rows whose file fails, or comes back damaged, are zeros, and the reason is kept.
func TestResidualIsLost(t *testing.T) {
	bad := errors.New("bad disk")
	for name, spoil := range map[string]func(f *fakeFile){
		"bad disk":     func(f *fakeFile) { f.read = bad },
		"were damaged": func(f *fakeFile) { f.bytes[17]++ },
	} {
		f := new(fakeFile)
		r := NewInFile(func(size int64) (File, error) { f.bytes = make([]byte, size); return f, nil }, hidden, pass, ranks, first, prompt)
		rows := make([]float32, hidden)
		rows[4] = 1
		if err := r.Store(first, rows); err != nil || r.Lost() != nil {
			t.Fatal(err, r.Lost())
		}
		spoil(f)
		got, err := r.Load(first, 1)
		if err != nil || got[4] != 0 || r.Lost() == nil || !strings.Contains(r.Lost().Error(), name) {
			t.Errorf("%s: %v %v %v", name, got, err, r.Lost())
		}
	}
	r := NewInFile(func(int64) (File, error) { return &fakeFile{bytes: make([]byte, 1<<10), write: bad}, nil },
		hidden, pass, ranks, first, prompt)
	if err := r.Store(first, make([]float32, hidden)); err != nil || !errors.Is(r.Lost(), bad) {
		t.Errorf("a failed write: %v %v", err, r.Lost())
	}
	r = NewInFile(func(int64) (File, error) { return nil, bad }, hidden, pass, ranks, first, prompt)
	if got, err := r.Load(first, 1); err != nil || len(got) != hidden || !errors.Is(r.Lost(), bad) {
		t.Errorf("no file: %v %v", err, r.Lost())
	}
	r.Release()
}

// The streams of a prompt have the booked bytes, with rows that pass the later layers of SwiftKV and without.
func TestStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := kvcache.Geometry{Layers: 4, KVHeads: 1, Layout: layout, Later: rapid.SampledFrom([]int{0, 2}).Draw(t, "first later layer")}
		p := parse(t, rapid.SampledFrom([]string{"streaming:sink=2,recent=20", "snapkv:topk=9,obs=8", "h2o"}).Draw(t, "policy"))
		prompt, from := rapid.IntRange(1, 300).Draw(t, "tokens"), 0
		if !p.Needs.PromptAttention {
			from = rapid.IntRange(0, p.ReusableTokens(prompt)).Draw(t, "first token")
		}
		s := ShapeOf(g, rapid.IntRange(1, 90).Draw(t, "chunk"), prompt, hidden, ranks, p)
		a := memory.NewArena(1 << 24)
		defer a.Close()
		open := func(first int) (*Residual, error) {
			return NewResidual(a, s.Block, s.Hidden, s.Pass, s.Ranks, first, prompt)
		}
		streams, err := NewStreams(from, s.Pass, prompt, KeptRows(g, p, prompt), open)
		if err != nil {
			t.Fatal(err)
		}
		if book := s.ResidualBytes(prompt - from); a.Used() != book {
			t.Fatalf("%d bytes, %d are booked", a.Used(), book)
		}
		if got := streams.Kept != nil; got != (g.Later > 0) {
			t.Fatalf("a stream of kept rows: %v", got)
		}
		if at := from + (prompt-1-from)/s.Pass*s.Pass; streams.Kept != nil {
			if _, err := streams.Kept.Blocks(at, 1); err != nil || streams.From >= prompt {
				t.Fatalf("the last token, after %d: %v", streams.From, err)
			}
		}
		streams.Release()
		streams.Release()
		if a.Used() != 0 {
			t.Fatalf("%d bytes are left", a.Used())
		}
		small := memory.NewArena(max(0, s.ResidualBytes(prompt-from)-1))
		defer small.Close()
		a = small
		if _, err := NewStreams(from, s.Pass, prompt, KeptRows(g, p, prompt), open); !errors.Is(err, memory.ErrBudget) || small.Used() != 0 {
			t.Fatalf("without memory: %v, %d bytes are left", err, small.Used())
		}
	})
}

// Policies that keep all tokens, or need all layers at once, are read in chunks.
func TestFits(t *testing.T) {
	for spec, want := range map[string]bool{
		"snapkv": true, "snapstream": true, "sage": true, "h2o": true, "tova": true, "knorm": true, "pyramidkv": true, "lagkv": true,
		"streaming": true, "full": false, "quest": false, "shadowkv": false, "squeezed": false,
	} {
		p, err := kvpolicy.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := Fits(p); got != want {
			t.Errorf("%s: %v", spec, got)
		}
	}
}

// Peaks are the tables of the decision record: MiB that the ledger books on the socket that owns a sequence.
func TestPeaks(t *testing.T) {
	p, err := kvpolicy.Parse("snapstream")
	if err != nil {
		t.Fatal(err)
	}
	delta := kvcache.Geometry{Layers: 12, KVHeads: 2, Group: 8}
	delta.Recurrent.Layers, delta.Recurrent.KeyHeads, delta.Recurrent.ValueHeads = 36, 16, 32
	delta.Recurrent.KeyDim, delta.Recurrent.ValueDim, delta.Recurrent.Taps = 128, 128, 4
	for _, m := range []struct {
		name   string
		dim    int
		hidden int
		g      kvcache.Geometry
		eighth int // sockets from which on memory is an eighth at 131,072 tokens, without a file; 0: none
	}{
		{"Llama 3.2 1B", 64, 2048, kvcache.Geometry{Layers: 16, KVHeads: 8, Group: 4}, 8},
		{"Llama 3.1 8B", 128, 4096, kvcache.Geometry{Layers: 32, KVHeads: 8, Group: 4}, 2},
		{"Llama 3.1 8B with SwiftKV", 128, 4096, kvcache.Geometry{Layers: 32, Later: 16, KVHeads: 8, Group: 4}, 2},
		{"Qwen3-Next 80B", 256, 2048, delta, 0},
	} {
		g := m.g
		g.Layout, g.Chunk = tensor.KVLayout{Type: tensor.BF16, KDim: m.dim, VDim: m.dim}, 256
		for _, tokens := range []int{32768, 131072} {
			chunks := kvcache.HandoverBytes(g, g.KVHeads, tokens, p) + kvcache.StatisticsBytes(g, g.KVHeads, tokens, p)
			row := fmt.Sprintf("| %s, %d | %d |", m.name, tokens, chunks>>20)
			cell := func(bytes int64) { row += fmt.Sprintf(" %d (1/%.1f) |", bytes>>20, float64(chunks)/float64(bytes)) }
			for _, ranks := range []int{1, 2, 4, 8, 16} {
				s := ShapeOf(g, 256, tokens, m.hidden, ranks, p)
				layers := s.CacheBytes(g, g.KVHeads, g.KVHeads, tokens, 0, p) + kvcache.ResidentBytes(g, tokens, tokens, p)
				bytes := layers + s.ResidualBytes(tokens)
				if tokens == 131072 && m.eighth > 0 && ranks >= m.eighth && chunks < 8*bytes {
					t.Errorf("%s, %d sockets: %d bytes by layers, %d in chunks: less than 8 times", m.name, ranks, bytes, chunks)
				}
				if ranks == 1 && tokens == 131072 && chunks < 6*layers {
					t.Errorf("%s, with a file: %d bytes by layers, %d in chunks: less than 6 times", m.name, layers, chunks)
				}
				if cell(bytes); ranks == 16 {
					cell(layers)
				}
			}
			t.Log(row)
		}
	}
}
