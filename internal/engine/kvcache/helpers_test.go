package kvcache

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// policies is the table of all policies. Every policy in it runs all the tests below. Policies are
// packages above this one, so package kvcache_test fills it in, and the helpers of kvcachetest.
var (
	policies   []*Policy
	Parse      func(spec string) (*Policy, error)
	noise      func(g Geometry, layer, head, pos int) (k, v []float32)
	writeNoise func(s *Store, from, to int)
	observed   func(prompt int, g Geometry) []float32
	statistics func(s *Store, layer, head int) *Statistics
	handOver   func(p *Policy, stores []*Store, owner int) (*Store, int64, error)
)

// Suite has functions that package kvcache_test sets.
type Suite struct {
	Policies   []*Policy
	Parse      func(spec string) (*Policy, error)
	Noise      func(g Geometry, layer, head, pos int) (k, v []float32)
	WriteNoise func(s *Store, from, to int)
	Observed   func(prompt int, g Geometry) []float32
	Statistics func(s *Store, layer, head int) *Statistics
	HandOver   func(p *Policy, stores []*Store, owner int) (*Store, int64, error)
}

// Use sets the variables of the tests.
func (x Suite) Use() {
	policies, Parse, noise, writeNoise, observed, statistics, handOver = x.Policies, x.Parse,
		x.Noise, x.WriteNoise, x.Observed, x.Statistics, x.HandOver
}

// parse is Parse of a spec that is right.
func parse(spec string) *Policy {
	p, err := Parse(spec)
	if err != nil {
		panic(err)
	}
	return p
}

var small = Geometry{Layers: 2, KVHeads: 3, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}}

var windowed = Geometry{Layers: 2, KVHeads: 3, Layout: small.Layout, Windows: []int{40, 0}}

// mixed has heads of another width in the layers with a window.
var mixed = Geometry{Layers: 3, KVHeads: 3, Layout: small.Layout,
	Local: tensor.KVLayout{Type: tensor.BF16, KDim: 32, VDim: 24}, Windows: []int{40, 0, 40}}

// row is the key and value of a token; bf16 represents them exactly.
func row(g Geometry, layer, head, pos int) (k, v []float32) {
	k, v = make([]float32, g.LayoutOf(layer).KDim), make([]float32, g.LayoutOf(layer).VDim)
	for i := range k {
		k[i] = float32((pos*31+layer*7+head*3+i)%251) - 125
	}
	for i := range v {
		v[i] = float32((pos*17+layer*5+head*11+i)%239) - 119
	}
	return k, v
}

func write(s *Store, from, to int) {
	for layer := range s.g.Layers {
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			writeHead(s, layer, head, from, to)
		}
	}
}

func writeHead(s *Store, layer, head, from, to int) {
	var k, v []float32
	for pos := from; pos < to; pos++ {
		kk, vv := row(s.g, layer, head, pos)
		k, v = append(k, kk...), append(v, vv...)
	}
	s.WriteRun(layer, head, from, to-from, k, s.g.LayoutOf(layer).KDim, v, s.g.LayoutOf(layer).VDim)
}

// step advances a store by n tokens and checks that every row is there.
func step(t testing.TB, s *Store, n int) {
	t.Helper()
	from := s.Tokens()
	if err := s.Reserve(from + n); err != nil {
		t.Fatal(err)
	}
	write(s, from, from+n)
	s.Commit(n)
}

// dump formats the state of a store that attention and the policy use.
func dump(s *Store) string {
	out := fmt.Appendf(nil, "%d tokens, %d bytes;", s.Tokens(), s.Bytes())
	for layer := range s.g.Layers {
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			out = fmt.Appendf(out, " layer %d head %d len %d:", layer, head, s.Len(layer, head))
			t := s.table(layer, head)
			index := append1(rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1},
				Heads: tensor.Span{Lo: head, Hi: head + 1}, Slots: tensor.Span{}, Planes: rowblock.Index}, s)
			p := &t.planes[indexPlane] // of landmarks, which indexOf has, also those of undone tokens
			out = append(out, index[rowblock.HeaderBytes+p.room(t.replaced*tensor.BlockSlots)*p.size:]...)
			out = append(out, slotRows(s, layer, head, t.replaced*tensor.BlockSlots, s.Len(layer, head))...)
			out = fmt.Append(out, indexOf(s, layer, head))
		}
	}
	return string(out)
}

// indexOf returns the scores of an index for a query, one per page.
func indexOf(s *Store, layer, head int) []float32 {
	t := s.table(layer, head)
	if t.rule.Selector == nil || t.n == 0 {
		return nil
	}
	q := make([]float32, s.g.Layout.KDim)
	for i := range q {
		q[i] = float32(i*5%7) - 3
	}
	page, slots := t.rule.Selector.Page(), t.rule.selectable(s.prompt, t.n)
	index, l := t.planes[indexPlane].blocks, s.g.Layout
	switch t.rule.Name() {
	case "squeezed": // built once
		sums := []float32{}
		for _, b := range index {
			sums = append(sums, float32(crc32.ChecksumIEEE(b)>>16), float32(crc32.ChecksumIEEE(b)&0xffff))
		}
		return sums
	case "loki", "infinigen":
		if slots < tensor.BlockSlots {
			return nil
		}
		of := t.rule.Selector.(interface {
			Scores(l tensor.KVLayout, index [][]byte, n int, q Queries, s *tensor.AttnScratch) []float32
		})
		return of.Scores(l, index, slots, Queries{Rows: q, Heads: 1}, new(tensor.AttnScratch))
	case "shadowkv":
		kind := tensor.BF16
		if l.Type == tensor.F32 {
			kind = tensor.F32
		}
		if strings.Contains(t.rule.Spec(), "int8=1") {
			kind = tensor.Int8
		}
		n, scratch := slots/page, new(tensor.AttnScratch)
		marks := scratch.ScoreLandmarks(l, kind, index, n, q, 1)
		for i := range n {
			marks = append(marks, l.LandmarkNumbers(kind, index[i/tensor.BlockSlots])[i%tensor.BlockSlots])
		}
		return marks
	}
	return new(tensor.AttnScratch).ScorePages(s.g.Layout, t.planes[indexPlane].blocks, (slots+page-1)/page, q, 1)
}

// checkRows compares every live row with the row that was written for its position.
func checkRows(t testing.TB, s *Store) {
	t.Helper()
	for layer := range s.g.Layers {
		l := s.g.LayoutOf(layer)
		k, v := make([]float32, l.KDim), make([]float32, l.VDim)
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			for slot := range s.Len(layer, head) {
				pos := s.Position(layer, head, slot)
				if pos < 0 {
					continue
				}
				wk, wv := row(s.g, layer, head, pos)
				if slot < s.table(layer, head).replaced*tensor.BlockSlots {
					block, chunk := make([]byte, s.g.Layout.BlockBytes()), s.table(layer, head).rule.Selector.Page()
					values := make([]byte, s.g.Layout.ValueBytes(tensor.BlockSlots))
					s.replacer.ReadValues(values, layer, head, slot/tensor.BlockSlots)
					s.g.Layout.LoadValues(block, 0, chunk, values[slot%tensor.BlockSlots/chunk*s.g.Layout.ValueBytes(chunk):])
					s.g.Layout.Get(block, slot%chunk, k, v)
					copy(k, wk)
				} else {
					l.Get(s.Blocks(layer, head)[slot/tensor.BlockSlots], slot%tensor.BlockSlots, k, v)
				}
				if fmt.Sprint(k, v) != fmt.Sprint(wk, wv) {
					t.Fatalf("layer %d head %d slot %d: row of position %d is\n%v %v, want\n%v %v", layer, head, slot, pos, k, v, wk, wv)
				}
			}
		}
	}
}

// read prefills a prompt in chunks on one socket.
func read(t testing.TB, a *memory.Arena, g Geometry, heads tensor.Span, prompt, chunk int) *Store {
	t.Helper()
	s := NewPrefill(a, g, heads)
	for s.Tokens() < prompt {
		step(t, s, min(chunk, prompt-s.Tokens()))
	}
	return s
}

// append1 is Append of a block that can be read.
func append1(b rowblock.Block, from rowblock.Source) []byte {
	rows, err := b.Append(nil, from)
	if err != nil {
		panic(err)
	}
	return rows
}

// slotRows are the rows of slots [lo, hi) of a head.
func slotRows(s *Store, layer, head, lo, hi int) []byte {
	return append1(rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1}, Heads: tensor.Span{Lo: head, Hi: head + 1},
		Slots: tensor.Span{Lo: lo, Hi: hi}, Planes: rowblock.Positions | rowblock.Numbers | rowblock.Rows}, s)
}

func attentionOf(head, pos int) float32 { return float32((pos*37+head*101)%97) + 1 }

func mustBudget(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, memory.ErrBudget) {
		t.Fatalf("got %v, want memory.ErrBudget", err)
	}
}
