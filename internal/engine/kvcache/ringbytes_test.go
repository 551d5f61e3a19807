package kvcache

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ringed are policies with a selector and a ring.
var ringed = []string{"quest:page=16,budget=64,skip=1,ring=70", "shadowkv:chunk=8,budget=40,outliers=5,local=4,ring=40",
	"shadowkv:chunk=4,budget=8,outliers=2,local=1,skip=1,keys=lowrank,rank=8,ring=5", "loki:budget=40,dims=0.5,calib=64,ring=33",
	"infinigen:alpha=1,most=0.3,dims=0.5,calib=64,ring=1"}

// TestLongAnswerHasConstantBytes: once the ring is full, a store and its arena hold the same bytes after any number of
// tokens, with and without rows in a file, and the cost functions name them.
func TestLongAnswerHasConstantBytes(t *testing.T) {
	const prompt, answer = 700, 500
	g := Geometry{Layers: 3, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 32}}
	for _, spec := range ringed {
		for _, filed := range []bool{false, true} {
			p, a := parse(spec), memory.NewArena(1<<30)
			s := ownedOf(t, a, g, p, prompt)
			blocks := 0
			if filed {
				if Spillable(g, prompt, prompt, p) == 0 {
					s.Release()
					a.Close()
					continue
				}
				spill(t, s)
				blocks = s.Spilled()
			}
			full := SpilledBytes(g, prompt, prompt+p.Ring+1, 1, blocks, p) // with the rows of a rollback
			for s.Tokens() < prompt+answer {
				step(t, s, 1)
				want := SpilledBytes(g, prompt, s.Tokens(), 1, blocks, p)
				if s.Bytes() != want || a.Used() != want {
					t.Fatalf("%s: %d tokens hold %d bytes (arena %d), SpilledBytes is %d", spec, s.Tokens(), s.Bytes(), a.Used(), want)
				}
				if s.Tokens() > prompt+p.Ring && want != full {
					t.Fatalf("%s: %d tokens hold %d bytes, a full ring %d", spec, s.Tokens(), want, full)
				}
			}
			if n := ReadBytes(g, prompt, s.Tokens(), p); n != ReadBytes(g, prompt, prompt+p.Ring, p) {
				t.Errorf("%s: a step after %d tokens reads %d bytes", spec, s.Tokens(), n)
			}
			if !filed {
				checkRows(t, s)
			}
			s.Release()
			a.Close()
		}
	}
}

// TestRingLeavesSharedBlocks: a store that adopted a prompt's blocks writes its ring into a copy of the block in which the
// prompt ends. The other blocks remain shared.
func TestRingLeavesSharedBlocks(t *testing.T) {
	const prompt = 200 // ends within a block
	for _, spec := range ringed {
		p, a := parse(spec), memory.NewArena(1<<30)
		part := read(t, a, small, tensor.Span{Lo: 0, Hi: small.KVHeads}, prompt, 64)
		s := NewStore(a, small, p)
		if err := s.Open(prompt, prompt, part.Heads()); err != nil {
			t.Fatal(err)
		}
		for head := range small.KVHeads {
			if err := s.Adopt(part, head); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Seal(); err != nil {
			t.Fatal(err)
		}
		for range 2*p.Ring + 150 {
			step(t, s, 1)
		}
		checkRows(t, s)
		checkRows(t, part)
		if want := int64(3*small.Layers*small.KVHeads) * int64(small.Layout.BlockBytes()); p.Shares(small, prompt) && s.Shared() != want {
			t.Errorf("%s: %d bytes are shared, want %d", spec, s.Shared(), want)
		}
		part.Release()
		s.Release()
		if a.Used() != 0 {
			t.Errorf("%s: %d bytes are left", spec, a.Used())
		}
		a.Close()
	}
}
