package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

func inTurn(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// A copy takes the bytes of the cache from the start, and no more: the queries of the hand-over are
// not sent again.
func TestCopyTakesNoQueries(t *testing.T) {
	for _, p := range policies {
		if !p.Reorders {
			continue
		}
		a := memory.NewArena(1 << 30)
		s := owned(t, a, p, 150)
		step(t, s, 9)
		c := NewStore(memory.NewArena(ResidentBytes(small, 150, 159, p)), small, p)
		if err := c.OpenMoved(150, 159); err != nil {
			t.Fatal(err)
		}
		for layer := range small.Layers {
			b := s.LayerBlock(layer, 159)
			if _, err := b.Store(append1(b, s), c); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Seal(); err != nil || dump(c) != dump(s) {
			t.Errorf("%s: the copy is another: %v", p.Spec(), err)
		}
	}
}

// A fork equals the cache that its prompt gives, and allocates only the blocks that are not shared.
// Each of the two survives the release of the other.
func TestFork(t *testing.T) {
	for _, p := range policies {
		if !p.Forks() {
			continue
		}
		for _, prompt := range []int{5, 64, 130, 192, 401} {
			a, fresh := memory.NewArena(1<<30), memory.NewArena(1<<30)
			first, want := owned(t, a, p, prompt), owned(t, fresh, p, prompt)
			step(t, first, 3)
			used := a.Used()
			fork, err := first.Fork()
			if err != nil {
				t.Fatal(err)
			}
			if got, want := a.Used()-used, ResidentBytes(small, prompt, prompt, p)-ForkBytes(small, prompt, p); got != want {
				t.Errorf("%s, %d tokens: a fork takes %d bytes, want %d", p.Spec(), prompt, got, want)
			}
			step(t, want, 3)
			first.Release()
			step(t, fork, 3)
			again, err := fork.Fork()
			if err != nil {
				t.Fatal(err)
			}
			step(t, fork, 70)
			step(t, want, 70)
			if step(t, again, 73); dump(fork) != dump(want) || dump(again) != dump(want) {
				t.Errorf("%s, %d tokens: a fork is not the cache of its prompt", p.Spec(), prompt)
			}
			again.Release()
			if fork.Release(); a.Used() != 0 {
				t.Fatalf("%s: %d bytes are left", p.Spec(), a.Used())
			}
		}
	}
}

// Coarse clusters arrive with the rows, complete and one for each cluster, or the cache is refused.
// Seal groups by them.
func TestCoarseClustersComeWithRows(t *testing.T) {
	p := parse("squeezed:clusters=0.4,levels=2,sparsity=0.7,tail=8,obs=3,segment=100")
	for name, change := range map[string]func(group []byte){
		"none":      func(group []byte) { clear(group) },
		"too large": func(group []byte) { binary.LittleEndian.PutUint32(group, 1e6) },
		"negative":  func(group []byte) { binary.LittleEndian.PutUint32(group, 1<<31+1) },
		"another":   func(group []byte) { binary.LittleEndian.PutUint32(group, 1) },
	} {
		a := memory.NewArena(1 << 30)
		s := owned(t, a, p, 150)
		c := NewStore(a, small, p)
		if err := c.OpenMoved(150, 150); err != nil {
			t.Fatal(err)
		}
		changed := false
		for layer := range small.Layers {
			b := s.LayerBlock(layer, 150)
			rows := append1(b, s)
			groups := rows[rowblock.HeaderBytes+150*(4+small.Layout.RowBytes()):][8:s.promptIndex.IndexBytes(0, 0)] // of the first head
			for at := 0; at < len(groups) && !changed; at += 4 {
				if binary.LittleEndian.Uint32(groups[at:]) > 1 {
					change(groups[at : at+4])
					changed = true
				}
			}
			if _, err := b.Store(rows, c); err != nil {
				t.Fatal(err)
			}
		}
		switch err := c.Seal(); {
		case !changed:
			t.Fatal("no coarse cluster came")
		case name == "another":
			if err != nil || fmt.Sprint(indexOf(c, 0, 0)) == fmt.Sprint(indexOf(s, 0, 0)) {
				t.Errorf("another coarse cluster: %v, and the index is the same", err)
			}
		case !errors.Is(err, rowblock.Err):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The owner's index is the same whenever its pieces are done, after the rows that they need. Others
// are refused.
func TestIndexInPieces(t *testing.T) {
	for _, spec := range []string{"squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8,segment=64",
		"squeezed:clusters=0.1,levels=2,sparsity=0.6,tail=4,obs=8,segment=64"} {
		for _, g := range []Geometry{small, {Layers: 3, KVHeads: 6, Group: 2, Layout: small.Layout, Windows: []int{0, 40, 0}}} {
			p, err := Parse(spec)
			if err != nil {
				t.Fatal(err)
			}
			a, x := memory.NewArena(1<<30), IndexWorkOf(g, 333, p)
			want, _, err := handOver(p, []*Store{read(t, a, g, tensor.Span{Hi: g.KVHeads}, 333, 100)}, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, sealed := range []int{0, 1, g.Layers * Quarters, x.Pieces - x.Before - 1, x.Pieces - x.Before} {
				part, own := read(t, a, g, tensor.Span{Hi: g.KVHeads}, 333, 100), NewStore(a, g, p)
				if own.Score = statistics(part, 0, 0).Score; own.Open(333, 333, tensor.Span{}) != nil {
					t.Fatal("Open")
				}
				move := func(piece int) {
					layer, heads, ok := g.Moved(piece)
					for head := heads.Lo; ok && head < heads.Hi; head++ {
						rule, seen := g.Rule(layer, p), statistics(part, layer, head)
						if err := errors.Join(own.Keep(part, layer, head, rule.Keep(seen)), own.KeepQueries(seen)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if own.Index(1, inTurn) == nil {
					t.Error("the second piece came first")
				}
				for piece := range x.Pieces - x.Before {
					move(piece)
					if piece < sealed {
						if err := own.Index(piece, inTurn); err != nil {
							t.Fatal(err)
						}
						if own.Index(piece, inTurn) == nil {
							t.Error("a piece came twice")
						}
					}
				}
				if err := own.Seal(); err != nil || dump(own) != dump(want) {
					t.Errorf("%s, %d layers: another index with %d pieces before Seal: %v", spec, g.Layers, sealed, err)
				}
				if own.Index(0, inTurn) == nil {
					t.Error("a piece of a store that is sealed")
				}
				own.Release()
				part.Release()
			}
			want.Release()
			if used := a.Used(); used != 0 {
				t.Errorf("%d bytes are left", used)
			}
			a.Close()
		}
	}
}
