package kvcache

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// policies is the table of all policies. Every policy in it runs all the tests below.
var policies = []*Policy{
	Full(),
	Streaming(4, 60),
	Streaming(0, 1),
	Streaming(3, 130),
	snapKV.of(40, 8, 5),
	snapStream.of(4, 30, 33, 8, 7),
	snapStream.of(0, 1, 5, 70, 1),
	sage.of(4, 20, 40),
	h2o.of(30, 30, 0),
	h2o.of(30, 30, 1),
	tova.of(64),
	Streaming(4, 60).AtCachePositions(false),
	snapStream.of(4, 30, 33, 8, 7).AtCachePositions(true),
	h2o.of(30, 30, 1).AtCachePositions(true),
	knorm.of(4, 20, 30),
	knorm.of(0, 1, 9).AtCachePositions(true),
	quest.of(16, 64, 0),
	quest.of(32, 96, 1),
	shadowKV.of(8, 32, 2, 1, 0, 0, 0, 128),
	shadowKV.of(4, 16, 0, 2, 1, 1, 0, 128),
	shadowKV.of(4, 8, 2, 1, 0, 0, 1, 16),
	shadowKV.of(8, 8, 1, 1, 1, 1, 1, 8),
	squeezed.of(250, 1, 800, 4, 6, 64),
	squeezed.of(400, 2, 700, 8, 3, 100),
}

var small = Geometry{Layers: 2, KVHeads: 3, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 8}}

var windowed = Geometry{Layers: 2, KVHeads: 3, Layout: small.Layout, Windows: []int{40, 0}}

// mixed has heads of another width in the layers with a window.
var mixed = Geometry{Layers: 3, KVHeads: 3, Layout: small.Layout, Local: tensor.KVLayout{Type: tensor.BF16, KDim: 32, VDim: 24}, Windows: []int{40, 0, 40}}

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

// dump formats everything that attention and the policy can see of a store.
func dump(s *Store) string {
	out := fmt.Appendf(nil, "%d tokens, %d bytes;", s.Tokens(), s.Bytes())
	for layer := range s.g.Layers {
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			out = fmt.Appendf(out, " layer %d head %d len %d:", layer, head, s.Len(layer, head))
			t := s.table(layer, head)
			if f := t.factors; f != nil {
				for _, piece := range f.pieces() {
					out = append(out, piece...)
				}
				out = fmt.Append(out, f.exact)
			}
			out = s.ExportSlots(out, layer, head, t.firstRow(), s.Len(layer, head))
			out = fmt.Append(out, indexOf(s, layer, head))
		}
	}
	return string(out)
}

// indexOf is what an index returns for a query: a score per page.
func indexOf(s *Store, layer, head int) []float32 {
	t := s.table(layer, head)
	if t.rule.Selector == nil || t.n == 0 {
		return nil
	}
	q := make([]float32, s.g.Layout.KDim)
	for i := range q {
		q[i] = float32(i*5%7) - 3
	}
	page := t.rule.Selector.Page()
	if c, ok := t.rule.Selector.(clusters); ok {
		if len(t.planes[indexPlane].blocks) == 0 {
			return nil
		}
		x := c.index(s.g.Layout, t.planes[indexPlane].blocks)
		scores, _ := x.score([]int32{0, int32(x.words()[coarseWord] + x.words()[fineWord])}, Queries{q, 1, tensor.Score{Scale: 1}}, new(tensor.AttnScratch))
		return append(scores, x.bound(coarseBound), x.bound(fineBound))
	}
	if m, ok := t.rule.Selector.(landmarks); ok {
		n, scratch := t.n/m.chunk, new(tensor.AttnScratch)
		marks := scratch.ScoreLandmarks(s.g.Layout, m.kind(s.g.Layout), t.planes[indexPlane].blocks, n, q, 1)
		for i := range n {
			marks = append(marks, s.g.Layout.LandmarkNumbers(m.kind(s.g.Layout), t.planes[indexPlane].blocks[i/tensor.BlockSlots])[i%tensor.BlockSlots])
		}
		return marks
	}
	return new(tensor.AttnScratch).ScorePages(s.g.Layout, t.planes[indexPlane].blocks, (t.n+page-1)/page, q, 1)
}

// checkRows compares every live row with what was written for its position.
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
				if f := s.table(layer, head).factors; f != nil && slot < f.blocks*tensor.BlockSlots {
					block, chunk := make([]byte, s.g.Layout.BlockBytes()), s.table(layer, head).rule.Selector.Page()
					s.g.Layout.LoadValues(block, 0, chunk, f.values[slot/tensor.BlockSlots][slot%tensor.BlockSlots/chunk*s.g.Layout.ValueBytes(chunk):])
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
func read(t testing.TB, a *Arena, g Geometry, heads tensor.Span, prompt, chunk int) *Store {
	t.Helper()
	s := NewPrefill(a, g, heads)
	for s.Tokens() < prompt {
		step(t, s, min(chunk, prompt-s.Tokens()))
	}
	return s
}

// observed returns queries of a prompt.
func observed(prompt int, g Geometry) []float32 {
	q := make([]float32, prompt*g.group()*g.Layout.KDim)
	for i := range q {
		q[i] = float32(i%13)/13 - 0.5
	}
	return q
}

func statistics(s *Store, layer, head int) *Statistics {
	e := StatisticsOf(s, layer, head)
	e.Score, e.Queries, e.Attention = tensor.Score{Scale: 0.25}, observed(e.Prompt, s.g), make([]float32, e.Prompt)
	for i := range e.Attention {
		e.Attention[i] = float32(i * 7 % 31)
	}
	return e
}

// handOver hands a prompt from the sockets that read it (stores, one of them the owner) over to the
// owner. It returns the owner's peak bytes.
func handOver(p *Policy, stores []*Store, owner int) (*Store, int64, error) {
	own := stores[owner]
	o := NewStore(own.arena, own.g, p)
	adopted := tensor.Span{}
	if p.KeepsAll() {
		adopted = own.Heads()
	}
	prompt := own.Tokens()
	if err := o.Open(prompt, prompt, adopted); err != nil {
		return nil, 0, err
	}
	peak := o.Bytes() + own.Bytes()
	for i, s := range stores {
		for head := s.heads.Lo; head < s.heads.Hi; head++ {
			if i == owner && p.KeepsAll() {
				if err := o.Adopt(s, head); err != nil {
					return nil, 0, err
				}
			}
			for layer := range s.g.Layers {
				p := s.g.Rule(layer, p)
				if i == owner && p.KeepsAll() {
					continue
				}
				seen := statistics(s, layer, head)
				kept := p.Keep(seen)
				if err := o.ImportQueries(layer, head, seen.Score, ExportQueries(nil, p, seen)); err != nil {
					return nil, 0, err
				}
				if i == owner {
					if err := o.Keep(s, layer, head, kept); err != nil {
						return nil, 0, err
					}
					continue
				}
				for at := 0; at < len(kept.Positions); at += 50 { // messages are bounded, so rows go in runs
					end := min(at+50, len(kept.Positions))
					run := Kept{Positions: kept.Positions[at:end]}
					if kept.Scores != nil {
						run.Scores = kept.Scores[at:end]
					}
					if err := o.Import(layer, head, at, s.Export(nil, p, layer, head, run)); err != nil {
						return nil, 0, err
					}
				}
			}
		}
	}
	if p.Needs.Queries { // they came with the rows
		peak = o.Bytes() + own.Bytes()
	}
	for _, s := range stores {
		s.Release()
	}
	return o, peak, o.Seal()
}

func attentionOf(head, pos int) float32 { return float32((pos*37+head*101)%97) + 1 }

func mustBudget(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, ErrBudget) {
		t.Fatalf("got %v, want ErrBudget", err)
	}
}
