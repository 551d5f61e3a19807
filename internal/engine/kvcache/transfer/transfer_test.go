package transfer

import (
	"bytes"
	"errors"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var small = kvcache.Geometry{Layers: 3, KVHeads: 3, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}}

var policies = []string{
	"full", "streaming:sink=4,recent=60", "snapkv:topk=40,obs=8,pool=5", "snapstream:sink=4,recent=30,topk=33,obs=8,pool=7",
	"snapstream:sink=4,recent=30,topk=33,obs=8,pool=7,positions=cache,half=1", "sage:sink=4,recent=20,topk=40",
	"h2o:recent=30,topk=30,step=0", "h2o:recent=30,topk=30,step=1", "tova:size=64", "knorm:sink=4,recent=20,topk=30",
	"quest:page=16,budget=64,skip=0", "quest:page=32,budget=96,skip=1",
	"shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=0,skip=0,keys=exact",
	"shadowkv:chunk=4,budget=8,outliers=2,local=1,int8=0,skip=0,keys=lowrank,rank=16",
	"shadowkv:chunk=8,budget=8,outliers=1,local=1,int8=1,skip=1,keys=lowrank,rank=8",
	"squeezed:clusters=0.25,levels=1,sparsity=0.8,tail=4,obs=6,segment=64",
	"squeezed:clusters=0.4,levels=2,sparsity=0.7,tail=8,obs=3,segment=100",
}

// owned returns the cache of a prompt on its owner.
func owned(t *testing.T, g kvcache.Geometry, p *kvcache.Policy, prompt int) *kvcache.Store {
	t.Helper()
	from := kvcache.NewPrefill(memory.NewArena(1<<26), g, tensor.Span{Lo: 0, Hi: g.KVHeads})
	if err := from.Reserve(prompt); err != nil {
		t.Fatal(err)
	}
	kvcachetest.WriteNoise(from, 0, prompt)
	from.Commit(prompt)
	own, _, err := kvcachetest.HandOver(p, []*kvcache.Store{from}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

// move copies a cache piece by piece, as sockets do.
func move(t *testing.T, own *kvcache.Store, size int) *kvcache.Store {
	t.Helper()
	n := own.Tokens()
	to := kvcache.NewStore(memory.NewArena(1<<26), own.Geometry(), own.Policy())
	to.Score = tensor.Score{Scale: 0.25}
	if err := to.OpenMoved(n, n); err != nil {
		t.Fatal(err)
	}
	for b := range Pieces(to, n, size) {
		if err := Check(own, n, b); err != nil {
			t.Fatal(err)
		}
		body, err := own.ReadRows(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) != Body(to, b) || b.Slots.Len() > 1 && b.Planes&perSlot != 0 && len(body) > size {
			t.Fatalf("%v has %d bytes, the other side expects %d, and a piece has at most %d", b, len(body), Body(to, b), size)
		}
		if err := to.WriteRows(b, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Seal(); err != nil {
		t.Fatal(err)
	}
	return to
}

// content is all that a cache has.
func content(t *testing.T, s *kvcache.Store) (all []byte) {
	t.Helper()
	for layer := range s.Geometry().Layers {
		var err error
		if all, err = s.LayerBlock(layer, s.Tokens()).Append(all, s); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestMove: a cache that has moved in pieces is equal to its source under every policy, also after
// further tokens, and has the bytes that the ledger books.
func TestMove(t *testing.T) {
	windowed := small
	windowed.Windows = []int{40, 0, 40}
	for _, g := range []kvcache.Geometry{small, windowed} {
		for _, spec := range policies {
			p, err := kvpolicy.Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			if g.Fits(p) != nil {
				continue
			}
			for _, prompt := range []int{1, 63, 200, 500} {
				if p.Context(prompt) != prompt && prompt < 100 {
					continue
				}
				for _, size := range []int{1, 1000, 1 << 20} {
					own := owned(t, g, p, prompt)
					to := move(t, own, size)
					if want := kvcache.ResidentBytes(g, prompt, prompt, p); to.Bytes() != want || to.Arena().Used() != want {
						t.Errorf("%s, %d tokens: %d bytes, the ledger books %d", spec, prompt, to.Bytes(), want)
					}
					for range 3 {
						if a, b := content(t, own), content(t, to); !bytes.Equal(a, b) {
							t.Fatalf("%s, windows %v, %d tokens in pieces of %d bytes, %d in the cache: the copy differs",
								spec, g.Windows, prompt, size, own.Tokens())
						}
						for _, s := range []*kvcache.Store{own, to} {
							at := s.Tokens()
							if err := s.Reserve(at + 1); err != nil {
								t.Fatal(err)
							}
							kvcachetest.WriteNoise(s, at, at+1)
							s.Commit(1)
						}
					}
					own.Release()
					to.Release()
				}
			}
		}
	}
}

// TestCheck: blocks that are not part of the cache are refused.
func TestCheck(t *testing.T) {
	p, err := kvpolicy.Parse("streaming:sink=4,recent=60")
	if err != nil {
		t.Fatal(err)
	}
	s := owned(t, small, p, 200)
	good := s.LayerBlock(1, 200)
	good.Heads = tensor.Span{Lo: 1, Hi: 2}
	good.Planes &= perSlot
	if err := Check(s, 200, good); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(b *rowblock.Block){
		"two layers":      func(b *rowblock.Block) { b.Layers.Hi++ },
		"no such layer":   func(b *rowblock.Block) { b.Layers = tensor.Span{Lo: 3, Hi: 4} },
		"no layer":        func(b *rowblock.Block) { b.Layers.Hi-- },
		"two heads":       func(b *rowblock.Block) { b.Heads.Hi++ },
		"no such head":    func(b *rowblock.Block) { b.Heads = tensor.Span{Lo: 3, Hi: 4} },
		"too many slots":  func(b *rowblock.Block) { b.Slots.Hi++ },
		"no slots":        func(b *rowblock.Block) { b.Slots.Hi = b.Slots.Lo },
		"staged rows":     func(b *rowblock.Block) { b.Planes = rowblock.Staged },
		"pages of a file": func(b *rowblock.Block) { b.Planes |= rowblock.Pages },
		"a state":         func(b *rowblock.Block) { b.Planes = rowblock.State },
	} {
		bad := good
		change(&bad)
		if err := Check(s, 200, bad); !errors.Is(err, rowblock.Err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
