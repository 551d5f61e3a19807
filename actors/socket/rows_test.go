package socket

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/layer/rotation"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// decoder is a model on a single rank and one sequence of it, after a random prompt.
type decoder struct {
	t     *testing.T
	g     kvcache.Geometry
	ropes []*rotation.Table
	view  layer.OwnedCache
	w     *shard.Weights
	batch *layer.Batch
	place topology.Placement
}

// decodeRows is the maximum number of rows per step in TestRowsOfSeveralTokens, mostRows that of a decoder.
const (
	decodeRows = 9
	mostRows   = 200
)

func newDecoder(t *testing.T, ck *checkpoint.Checkpoint, w *shard.Weights, place topology.Placement,
	pool *tensor.Pool, arena *memory.Arena, p *kvcache.Policy, prompt int, noise uint64) *decoder {
	c := &ck.Config
	d := &decoder{t: t, g: shard.GeometryOf(c, tensor.BF16), w: w, place: place}
	d.batch = layer.NewBatch(layer.DimsOf(c), mostRows, layer.NewProcessor(layer.DimsOf(c), mostRows, d.g.Layout, pool))
	d.ropes = rotation.TablesOf(c)
	r := rand.New(rand.NewPCG(noise, 1))
	part := kvcache.NewPrefill(arena, d.g, tensor.Span{Lo: 0, Hi: d.g.KVHeads})
	own := kvcache.NewStore(arena, d.g, p)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(part.Reserve(prompt))
	for layer := range d.g.Layers {
		for head := range d.g.KVHeads {
			k, v := noiseRow(r, prompt*d.g.Layout.KDim), noiseRow(r, prompt*d.g.Layout.VDim)
			part.WriteRun(layer, head, 0, prompt, k, d.g.Layout.KDim, v, d.g.Layout.VDim)
		}
	}
	part.Commit(prompt)
	must(own.Open(prompt, prompt, tensor.Span{}))
	for layer := range d.g.Layers {
		rule, seen := d.g.Rule(layer, p), make([]*kvcache.Statistics, d.g.KVHeads)
		for head := range seen {
			seen[head] = kvcache.StatisticsOf(part, layer, head)
			seen[head].Votes, seen[head].Attention = noiseRow(r, prompt), noiseRow(r, prompt)
		}
		var curves [][]float32
		for _, s := range seen {
			if rule.Divides(d.g, prompt) {
				curves = append(curves, rule.HeadCurve(s, len(seen)))
			}
		}
		if curves != nil {
			must(own.Divide(layer, rule.HeadBlocks(prompt, curves)))
		}
		for head, s := range seen {
			of := rule
			if curves != nil {
				of = rule.OfHead(prompt, rule.HeadBlocks(prompt, curves)[head])
			}
			must(own.Keep(part, layer, head, of.Keep(s)))
		}
	}
	must(own.Seal())
	part.Release()
	d.ropes[0].Until(prompt + 300)
	d.view = layer.OwnedCache{Store: own, Score: c.Score(), Ropes: rotation.RopesOf(c, d.ropes)}
	return d
}

func noiseRow(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = r.Float32()*2 - 1
	}
	return x
}

// step runs rows of the residual stream through all layers and returns their outputs.
func (d *decoder) step(rows []float32) []float32 {
	d.t.Helper()
	n, start := len(rows)/d.batch.Dims.Hidden, d.view.Tokens()
	if err := d.view.Reserve(start + n); err != nil {
		d.t.Fatal(err)
	}
	return d.pass(rows, start)
}

// passes is step, one row at a time.
func (d *decoder) passes(rows []float32) (out []float32) {
	d.t.Helper()
	h, start := d.batch.Dims.Hidden, d.view.Tokens()
	if err := d.view.Reserve(start + len(rows)/h); err != nil {
		d.t.Fatal(err)
	}
	for i := range len(rows) / h {
		out = append(out, d.pass(rows[i*h:][:h], start+i)...)
	}
	return out
}

func (d *decoder) pass(rows []float32, start int) []float32 {
	d.t.Helper()
	n := len(rows) / d.batch.Dims.Hidden
	if err := d.batch.Reset(d.place, 0, []layer.Segment{{Seq: 1, Cache: d.view, N: n, Start: start}}, d.ropes...); err != nil {
		d.t.Fatal(err)
	}
	x := d.batch.Backend.(*layer.Processor).X
	copy(x, rows)
	for _, w := range d.w.Layers {
		d.batch.Through(w)
	}
	return slices.Clone(x[:len(rows)])
}

// TestRowsOfSeveralTokens checks that a step of 1 to 9 tokens of a sequence gives the bits of one
// token per step. The tokens are rows of one pass or one per pass, and any number of them is
// committed. It covers every policy, ordinary and latent attention, layers with a window, and
// repeated steps.
func TestRowsOfSeveralTokens(t *testing.T) {
	policies := []string{"full", "streaming:sink=4,recent=60", "streaming:sink=0,recent=3", "snapkv:topk=30,obs=8,pool=5",
		"snapstream:sink=4,recent=20,topk=20,obs=8,pool=7", "sage:sink=4,recent=20,topk=20", "h2o:recent=20,topk=20",
		"h2o:recent=2,topk=40,step=1", "h2o:recent=20,topk=50,step=1", "tova:size=50",
		"streaming:sink=4,recent=60,positions=cache", "snapkv:topk=30,obs=8,pool=5,positions=cache",
		"h2o:recent=20,topk=20,step=1,positions=cache,half=1", "tova:size=50,positions=cache",
		"knorm:sink=4,recent=20,topk=20", "quest:page=16,budget=48", "quest:page=16,budget=32,skip=1", "quest:page=64,budget=128",
		"shadowkv:chunk=8,budget=24,outliers=2,local=1", "shadowkv:chunk=2,budget=20,outliers=3,local=2,int8=1,skip=1",
		"shadowkv:chunk=16,budget=32,outliers=1,local=1", "squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8",
		"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
		"snapstream:sink=4,recent=20,topk=20,obs=8,pool=7,votes=candidates",
		"pyramidkv:topk=20,obs=8,pool=5,beta=4", "snapstream:sink=4,recent=20,topk=20,obs=8,pool=7,layers=pyramid,beta=3",
		"lagkv:sink=4,lag=16,topk=30", "loki:budget=40,dims=0.5,calib=32",
		"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5", "adakv:topk=70,obs=8,pool=5",
		"snapstream:sink=4,recent=1,topk=12,obs=8,recall=16", "streaming:sink=4,recent=1,recall=16",
		"snapstream:sink=4,recent=20,topk=64,obs=8,pool=7,heads=ada,floor=0", "snapkv:topk=20,obs=8,pool=5,ring=11,positions=cache",
		"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64,ring=9",
		"shadowkv:chunk=8,budget=24,outliers=2,local=1,ring=11", "quest:page=16,budget=32,skip=1,ring=7",
		"loki:budget=40,dims=0.5,calib=32,ring=9", "infinigen:alpha=2,most=0.3,calib=32,ring=5"}
	for _, name := range []string{"llama", "deepseek_v2", "gemma3", "gemma4_31b"} {
		ck, err := checkpoint.Open(filepath.Join(modelData, name))
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		pool := tensor.NewPool(2)
		defer pool.Close()
		place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&ck.Config), []topology.Member{{ID: "a"}})
		if err != nil {
			t.Fatal(err)
		}
		w, err := shard.Load(t.Context(), ck, place, 0, tensor.F32, shard.Options{Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, spec := range policies {
			t.Run(name+" "+spec, func(t *testing.T) {
				p, err := kvpolicy.Parse(spec)
				if err != nil {
					t.Fatal(err)
				}
				for seed, prompt := range []int{5, 58, 130} {
					arena := memory.NewArena(1 << 30)
					several := newDecoder(t, ck, w, place, pool, arena, p, prompt, uint64(seed))
					passes := newDecoder(t, ck, w, place, pool, arena, p, prompt, uint64(seed))
					single := newDecoder(t, ck, w, place, pool, arena, p, prompt, uint64(seed))
					h, r := several.batch.Dims.Hidden, rand.New(rand.NewPCG(uint64(seed), 2))
					for i := range 14 {
						n := 1 + r.IntN(decodeRows)
						rows := noiseRow(r, n*h)
						accepted := []int{0, n, r.IntN(n + 1)}[i%3]
						got := several.step(rows)
						if i%4 == 0 { // a repeated step
							got = several.step(rows)
						}
						several.view.Commit(accepted)
						again := passes.passes(rows)
						passes.view.Commit(accepted)
						var want []float32
						for j := range accepted {
							want = append(want, single.step(rows[j*h:][:h])...)
							single.view.Commit(1)
						}
						if !slices.Equal(got[:accepted*h], want) {
							t.Fatalf("prompt %d, step %d: %d of %d tokens: bits differ from one at a time", prompt, i, accepted, n)
						}
						if !slices.Equal(again[:accepted*h], want) {
							t.Fatalf("prompt %d, step %d: %d of %d passes: bits differ from single steps", prompt, i, accepted, n)
						}
						if got, want := rowsOf(passes.view.Store, several.g.Layers), rowsOf(single.view.Store, several.g.Layers); got != want {
							t.Fatalf("prompt %d, step %d: %d of %d passes: the caches differ", prompt, i, accepted, n)
						}
						if got, want := rowsOf(several.view.Store, several.g.Layers), rowsOf(single.view.Store, several.g.Layers); got != want {
							t.Fatalf("prompt %d, step %d: %d of %d tokens: the caches differ", prompt, i, accepted, n)
						}
					}
					several.view.Release()
					passes.view.Release()
					single.view.Release()
					if used := arena.Used(); used != 0 {
						t.Fatalf("%d bytes are left", used)
					}
				}
			})
		}
	}
}

// rowsOf returns the contents and the size of a store as text.
func rowsOf(s *kvcache.Store, layers int) string {
	out := fmt.Appendf(nil, "%d tokens, %d bytes", s.Tokens(), s.Bytes())
	for layer := range layers {
		for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
			var err error
			out, err = s.ReadRows(out, rowblock.Block{
				Layers: tensor.Span{Lo: layer, Hi: layer + 1}, Heads: tensor.Span{Lo: head, Hi: head + 1},
				Slots: tensor.Span{Lo: 0, Hi: s.Len(layer, head)}, Planes: rowblock.Positions | rowblock.Numbers | rowblock.Rows,
			})
			if err != nil {
				return err.Error()
			}
		}
	}
	return string(out)
}
