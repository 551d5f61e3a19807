package kvcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// pagesInMemory is a PageFile in memory.
type pagesInMemory struct {
	bytes  []byte
	reads  int
	err    error
	closed int
	mu     sync.Mutex // of reads
}

func (f *pagesInMemory) Read(at []int64, size int, got func(i int, page []byte) error) error {
	if f.err != nil {
		return f.err
	}
	for i := len(at) - 1; i >= 0; i-- { // any order
		f.mu.Lock()
		f.reads++
		f.mu.Unlock()
		if err := got(i, f.bytes[at[i]:][:size]); err != nil {
			return err
		}
	}
	return nil
}

func (f *pagesInMemory) Close() { f.closed++ }

// spill moves as much of a store as possible to a file, through a buffer of a few blocks.
func spill(t interface{ Fatal(...any) }, s *Store) *pagesInMemory {
	f, blocks := &pagesInMemory{}, Spillable(s.g, s.prompt, s.tokens, s.policy)
	for _, b := range FileBlocks(s.g, s.policy, blocks, 3*s.g.Layout.BlockBytes()+5) {
		var err error
		if f.bytes, err = s.ReadRows(f.bytes, b); err != nil {
			t.Fatal(err)
		}
	}
	if want := FileBytes(s.g, blocks, s.policy); int64(len(f.bytes)) != want {
		t.Fatal(fmt.Sprintf("%d bytes of pages, FileBytes is %d", len(f.bytes), want))
	}
	if err := s.Spill(f, blocks, PageSums(nil, s.g, s.policy, f.bytes)); err != nil {
		t.Fatal(err)
	}
	return f
}

// attended is the attention of a query to a head of a store, as bits.
func attended(s *Store, layer, head, pos int, q []float32) []uint32 {
	scratch, g := new(tensor.AttnScratch), s.g.group()
	blocks, n, valid := s.View(layer, head, pos, q, tensor.Score{Scale: 0.3}, nil, scratch)
	out := make([]float32, g*s.g.Layout.VDim)
	tensor.Attend(out, q, g, tensor.Score{Scale: 0.3}, s.g.Layout, blocks, n, valid, scratch)
	bits := make([]uint32, len(out))
	for i, x := range out {
		bits[i] = math.Float32bits(x)
	}
	return bits
}

type spillCase struct {
	p *Policy
	g Geometry
}

func spillCases() (all []spillCase) {
	for i, p := range []*Policy{parse("shadowkv:chunk=8,budget=40,outliers=5,local=4,int8=0,skip=0,keys=exact,rank=128"),
		parse("shadowkv:chunk=4,budget=16,outliers=0,local=1,int8=1,skip=1,keys=exact,rank=128"),
		parse("shadowkv:chunk=16,budget=32,outliers=2,local=2,int8=0,skip=0,keys=exact,rank=128"), parse("quest:page=16,budget=64,skip=0"),
		parse("quest:page=32,budget=96,skip=1"), parse("snapstream:sink=4,recent=20,topk=28,obs=8,recall=32"),
		parse("streaming:sink=4,recent=20,recall=32,page=32"),
		parse("shadowkv:chunk=8,budget=40,outliers=5,local=4,int8=0,skip=0,keys=lowrank,rank=8"),
		parse("shadowkv:chunk=4,budget=16,outliers=0,local=1,int8=1,skip=0,keys=lowrank,rank=8"),
		parse("squeezed:clusters=0.05,levels=1,sparsity=0.9,tail=4,obs=8,segment=8192"),
		parse("squeezed:clusters=0.1,levels=2,sparsity=0.8,tail=1,obs=60,segment=200"),
		parse("squeezed:clusters=0.1,levels=1,sparsity=0.97,tail=9,obs=8,segment=300,ring=50"),
		parse("shadowkv:chunk=8,budget=40,outliers=5,local=4,ring=40"), parse("quest:page=16,budget=64,ring=1"),
		parse("quest:page=32,budget=96,skip=1,ring=90"),
		parse("shadowkv:chunk=8,budget=40,outliers=5,local=4,keys=lowrank,rank=8,ring=50")} {
		for j, l := range []tensor.KVLayout{
			{Type: tensor.F32, KDim: 8, VDim: 16},
			{Type: tensor.BF16, KDim: 16, VDim: 8},
			{Type: tensor.Int8, KDim: 32, VDim: 32},
			{Type: tensor.BF16, KDim: 24, VDim: 16, Latent: true},
		} {
			g := Geometry{Layers: 3, KVHeads: 2, Group: 2, Layout: l}
			switch {
			case l.Latent && p.ReplacesKeys:
				continue
			case l.Latent:
				g.KVHeads, g.Units = 1, 2
			case p.ReplacesKeys || p.filedSlots() != nil: // make the values large enough to spill
				g.Layout.VDim *= 2
			}
			if (i+j)%3 == 0 {
				g.Windows = []int{0, 40, 0}
			}
			all = append(all, spillCase{p, g})
		}
	}
	return all
}

// A sequence with pages in a file attends to the same bits as one in memory, for any writes,
// rollbacks and times of the spill, and takes SpilledBytes.
func TestSpilledIsInMemory(t *testing.T) {
	kind := func(c spillCase) int {
		switch {
		case c.p.ReplacesKeys:
			return 1
		case c.p.filedSlots() != nil:
			return 2
		}
		return 0
	}
	var cases [3][]spillCase // policies that select pages with exact keys, pages with factors, single slots
	for _, c := range spillCases() {
		cases[kind(c)] = append(cases[kind(c)], c)
	}
	var spills, reads [3]int
	rapid.Check(t, func(r *rapid.T) {
		c := rapid.SampledFrom(rapid.SampledFrom(cases[:]).Draw(r, "kind")).Draw(r, "case")
		file, lost := compareSpilled(r, c.p, c.g, rapid.IntRange(400, 900).Draw(r, "prompt"), false)
		if file == nil {
			return
		}
		spills[kind(c)]++
		reads[kind(c)] += file.reads
		if file.reads == 0 && kind(c) < 2 || lost != nil { // a choice of slots may need no page
			r.Fatalf("%d pages were read: %v", file.reads, lost)
		}
	})
	if slices.Min(spills[:]) < 1 || slices.Min(reads[:]) < 1 {
		t.Errorf("sequences spilled with exact keys, with factors and of slots: %v, and pages were read: %v", spills, reads)
	}
}

// compareSpilled takes a sequence through random steps, once in memory and once with rows in a file from one of them on. It
// compares what a step reads, and the bytes in use with those of the ledger. Without room, there is no memory for the
// pages that stay. It returns the file, nil if no row was in one, and why the sequence was lost.
func compareSpilled(r *rapid.T, p *Policy, g Geometry, prompt int, noRoom bool) (file *pagesInMemory, lost error) {
	var arenas [2]*memory.Arena
	var stores [2]*Store
	for i := range stores {
		arenas[i] = memory.NewArena(1 << 30)
		defer arenas[i].Close()
		part := NewPrefill(arenas[i], g, tensor.Span{Lo: 0, Hi: g.KVHeads})
		if err := part.Reserve(prompt); err != nil {
			r.Fatal(err)
		}
		writeNoise(part, 0, prompt)
		part.Commit(prompt)
		var err error
		if stores[i], _, err = handOver(p, []*Store{part}, 0); err != nil {
			r.Fatal(p.Spec(), err)
		}
	}
	blocks, when := 0, rapid.IntRange(0, 3).Draw(r, "when")
	q := make([]float32, g.Group*g.Layout.KDim)
	for k := range rapid.IntRange(1, 6).Draw(r, "steps") {
		if k >= when && file == nil && Spillable(g, prompt, stores[1].Tokens(), p) > 0 {
			used := arenas[1].Used()
			if noRoom {
				arenas[1].SetBudget(0)
			}
			file = spill(r, stores[1])
			arenas[1].SetBudget(1 << 30)
			if blocks = stores[1].Spilled(); arenas[1].Used() >= used {
				r.Fatalf("%s: %d bytes after %d", p.Spec(), arenas[1].Used(), used)
			}
		}
		if stores[1].Lost() != nil {
			break
		}
		n, from := rapid.IntRange(1, 70).Draw(r, "tokens"), stores[0].Tokens()
		accepted := rapid.IntRange(0, n).Draw(r, "accepted")
		for i := range q {
			q[i] = rapid.Float32Range(-1, 1).Draw(r, "q") * 4
		}
		for _, s := range stores {
			if err := s.Reserve(from + n); err != nil {
				r.Fatal(err)
			}
			writeNoise(s, from, from+n)
		}
		if got, want := arenas[1].Used(), SpilledBytes(g, prompt, from+n, n, blocks, p); got != want || stores[1].Bytes() != want {
			r.Fatalf("%s: %d bytes in use, %d by the store, SpilledBytes %d", p.Spec(), got, stores[1].Bytes(), want)
		}
		for layer := range g.Layers {
			at := []int{from + n/2, from + n - 1}
			if together, _ := stores[0].BatchedDecode(layer, from, n); !together {
				at = at[1:]
			}
			for head := range g.KVHeads {
				for _, pos := range at {
					if got, want := attended(stores[1], layer, head, pos, q), attended(stores[0], layer, head, pos, q); !slices.Equal(got, want) {
						r.Fatalf("%s: step %d, layer %d, head %d, position %d: %x, in memory %x", p.Spec(), k, layer, head, pos, got, want)
					}
				}
			}
		}
		for _, s := range stores {
			s.Commit(accepted)
		}
	}
	lost = stores[1].Lost()
	stores[1].Release()
	if used := arenas[1].Used(); used != 0 || file != nil && file.closed != 1 {
		r.Fatalf("%s: %d bytes are left, and a file closed %d times", p.Spec(), used, file.closed)
	}
	return file, lost
}

// Pages of the last selection are not read again. Pages that are corrupted or cannot be read are
// lost; that is reported once and affects nothing else.
func TestSpilledPagesAreChecked(t *testing.T) {
	g := Geometry{Layers: 1, KVHeads: 1, Group: 1, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}}
	q := make([]float32, 16)
	for i := range q {
		q[i] = float32(i%3) - 1
	}
	for i, fault := range []string{"", "bytes", "read", "", "bytes", "read", "", "bytes", "read"} {
		p := parse([...]string{"shadowkv:chunk=8,budget=40,outliers=5,local=4,rank=8,keys=exact",
			"shadowkv:chunk=8,budget=40,outliers=5,local=4,rank=8,keys=lowrank", "squeezed:clusters=0.05,sparsity=0.7,tail=4,obs=8"}[i/3])
		a := memory.NewArena(1 << 30)
		s := ownedOf(t, a, g, p, 900)
		f := spill(t, s)
		if fault == "bytes" {
			for i := range f.bytes {
				f.bytes[i] ^= 1
			}
		}
		if fault == "read" {
			f.err = errors.New("input/output error")
		}
		attended(s, 0, 0, 899, q)
		if once := f.reads; fault == "" && (once < 5 || s.Lost() != nil) {
			t.Errorf("%d pages were read: %v", once, s.Lost())
		}
		once := f.reads
		attended(s, 0, 0, 899, q)
		if f.reads != once {
			t.Errorf("%q: %d more pages were read for the same choice", fault, f.reads-once)
		}
		if lost := s.Lost(); fault != "" && (!errors.Is(lost, ErrPages) ||
			!strings.Contains(lost.Error(), map[string]string{"bytes": "is corrupted", "read": "input/output"}[fault])) {
			t.Errorf("%q: %v", fault, lost)
		}
		s.Release()
		a.Close()
	}
}

// Several threads view one head at the same time, each for some of the query heads of latent attention.
func TestSpilledHeadIsViewedByThreads(t *testing.T) {
	g := Geometry{Layers: 1, KVHeads: 1, Units: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 24, VDim: 16, Latent: true}}
	for _, spec := range []string{"quest:page=16,budget=64", "quest:page=32,budget=96", "squeezed:clusters=0.05,sparsity=0.9,tail=4,obs=8"} {
		a := memory.NewArena(1 << 30)
		s := ownedOf(t, a, g, parse(spec), 900)
		var want [6][]uint32
		query := func(i int) []float32 {
			q := make([]float32, 2*24)
			for e := range q {
				q[e] = float32((e*7+i*11)%13) - 6
			}
			return q
		}
		for i := range want {
			want[i] = attended(s, 0, 0, 899, query(i))
		}
		spill(t, s)
		for i := range want {
			var threads sync.WaitGroup
			for range 4 {
				threads.Go(func() {
					if got := attended(s, 0, 0, 899, query(i)); !slices.Equal(got, want[i]) {
						t.Errorf("%s: %x, in memory %x", spec, got, want[i])
					}
				})
			}
			threads.Wait()
		}
		s.Release()
		a.Close()
	}
}

// Only sequences that need far less memory afterwards are spilled.
func TestSpillable(t *testing.T) {
	g := Geometry{Layers: 2, KVHeads: 2, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 64, VDim: 64}}
	for spec, want := range map[string]int{"full": 0, "squeezed": 510, "squeezed:levels=2,sparsity=0.7": 510, "squeezed:sparsity=0.2": 0,
		"snapkv": 0, "shadowkv:budget=256": 512, "quest:budget=1024": 512,
		"shadowkv:budget=20000": 0, "shadowkv:budget=256,keys=lowrank,rank=64": 511, "quest:budget=1024,skip=2": 0,
		"snapstream": 0, "snapstream:recall=512": 512, "streaming:recall=512,page=64": 512, "snapstream:recall=20000": 0} {
		p, err := Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if got := Spillable(g, 32768, 32770, p); got != want {
			t.Errorf("%s: %d blocks can be spilled, want %d", spec, got, want)
		}
	}
	p, _ := Parse("shadowkv:budget=256,int8=1")
	whole, memory := ResidentBytes(g, 32768, 32769, p), SpilledBytes(g, 32768, 32769, 1, 512, p)
	if memory*10 > whole {
		t.Errorf("%d bytes stay in memory of %d", memory, whole)
	}
	p, _ = Parse("squeezed")
	whole, memory = ResidentBytes(g, 32768, 32769, p), SpilledBytes(g, 32768, 32769, 1, 510, p)
	if memory*4 > whole {
		t.Errorf("%d bytes of clusters stay in memory of %d", memory, whole)
	}
}

// A planned spill can be done some tokens later, even if it would not be planned then.
func TestSpillLater(t *testing.T) {
	g := Geometry{Layers: 1, KVHeads: 1, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}
	p, err := Parse("quest:page=16,budget=32")
	if err != nil {
		t.Fatal(err)
	}
	a := memory.NewArena(1 << 20)
	defer a.Close()
	s := NewStore(a, g, p)
	defer s.Release()
	if err := s.Open(128, 128, tensor.Span{Hi: 1}); err != nil {
		t.Fatal(err)
	}
	rows := NewPrefill(a, g, tensor.Span{Hi: 1})
	defer rows.Release()
	if err := rows.Reserve(128); err != nil {
		t.Fatal(err)
	}
	zero := make([]float32, 128*8)
	rows.WriteRun(0, 0, 0, 128, zero, 8, zero, 8)
	rows.Commit(128)
	if err := s.Adopt(rows, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(); err != nil {
		t.Fatal(err)
	}
	now := Spillable(g, 128, s.Tokens(), p)
	if err := s.Reserve(129); err != nil {
		t.Fatal(err)
	}
	s.Commit(1)
	if later := Spillable(g, 128, s.Tokens(), p); now != 2 || later != 0 {
		t.Errorf("%d blocks are worth a file, and %d a token later: 2 and none were meant", now, later)
	}
	if err := s.Spill(&pagesInMemory{}, now, make([]uint32, 8)); err != nil {
		t.Error(err)
	}
}

// Rows that are in a file cannot be read for another socket: the reader gets an error.
func TestRowsInFilesAreNotMoved(t *testing.T) {
	for _, c := range spillCases() {
		if c.p.ReplacesKeys || c.g.Layout.Type != tensor.BF16 || Spillable(c.g, 800, 800, c.p) == 0 {
			continue
		}
		a := memory.NewArena(1 << 30)
		part := NewPrefill(a, c.g, tensor.Span{Lo: 0, Hi: c.g.KVHeads})
		if err := part.Reserve(800); err != nil {
			t.Fatal(err)
		}
		writeNoise(part, 0, 800)
		part.Commit(800)
		s, _, err := handOver(c.p, []*Store{part}, 0)
		if err != nil {
			t.Fatal(err)
		}
		spill(t, s)
		layer := c.g.Layers - 1
		if _, err := s.ReadRows(nil, s.LayerBlock(layer, 800)); !errors.Is(err, rowblock.Err) {
			t.Errorf("%s: %v", c.p.Spec(), err)
		}
		s.Release()
		a.Close()
	}
}
