package kvcache

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// A sequence whose policy chooses pages (Quest, ShadowKV) reads few of its rows in a step. The
// others can lie in a file: Spill gives up the blocks of rows [0, n) of its heads, of which a file
// then has every page, keys and values of a page and head adjacent. What stays in memory is the
// index, the rows behind, and of each head the pages that the last step chose: the next reads
// from the file what its own choice has beyond them. Attention gets blocks in which the chosen
// pages stand where they stood, so that no bit depends on where a page lies. Of keys that are
// factors the file has the values (as ShadowKV was published), and factors stay.

// PageFile holds the pages of one store. Read may be called by several goroutines at once.
type PageFile interface {
	// Read gives the `size` bytes at each offset to got, in any order, one at a time, before it
	// returns. What got is given is the caller's until it returns.
	Read(at []int64, size int, got func(i int, page []byte) error) error
	Close()
}

// ErrPages means that pages of a store could not be read from their file, or are not what was
// written. The store is of no use any more.
var ErrPages = errors.New("kvcache: pages are lost")

// spilled is what a store has in a file.
type spilled struct {
	file    PageFile
	blocks  int // of every head that chooses pages
	lost    atomic.Pointer[error]
	charged int64 // of tables
}

// fetched are the pages of one head that the file has: those of the newest choice are in memory.
type fetched struct {
	from   int64    // of the file
	sums   []uint32 // of each page
	pages  []int32  // that are in memory, in order
	places []int32  // of each in blocks
	taken  []uint64 // a bit a place
	want   []int32  // of the running choice, under factors
	spare  [2][]int32
	blocks [][]byte
}

// pager is the policy's selector of pages, if rows that it does not choose can lie elsewhere;
// nil: it has none.
func (p *Policy) pager() pageSelector {
	c, ok := p.Selector.(pageSelector)
	if !ok || !p.KeepsAll() || p.half {
		return nil
	}
	return c
}

// givenUp are the bytes of n slots that a file has.
func (p *Policy) givenUp(l tensor.KVLayout, n int) int {
	if p.Factors.Rank > 0 {
		return l.ValueBytes(n)
	}
	return l.PageBytes(n)
}

// pagesKept is how many pages a query chooses at most.
func pagesKept(c pageSelector) int { return (c.Reads(1<<30) + c.Page() - 1) / c.Page() }

// keptBytes are those of the pages in memory of one head, and of the tables beside them.
func keptBytes(g Geometry, p *Policy, blocks int) (rows, tables int64) {
	c, each := p.pager(), int64(16)
	if p.Factors.Rank > 0 {
		each = 20
	}
	return blocksOf(pagesKept(c)*c.Page()) * int64(p.givenUp(g.Layout, tensor.BlockSlots)), each*int64(pagesKept(c)) + 8*((int64(pagesKept(c))+63)/64) + 4*int64(blocks*tensor.BlockSlots/c.Page())
}

// Spillable is how many blocks of a sequence with `tokens` tokens that count are to lie in a file; 0:
// none can, or too few for memory to gain by it.
func Spillable(g Geometry, prompt, tokens int, p *Policy) int {
	blocks, whole := pageable(g, prompt, tokens, p), StepBytes(g, prompt, tokens, 1, p)
	if whole-SpilledBytes(g, prompt, tokens, 1, blocks, p) < whole/4 {
		return 0
	}
	return blocks
}

// pageable is how many blocks can lie in a file: none before every step chooses among pages. It
// never falls as tokens come, so what was ordered can be done later.
func pageable(g Geometry, prompt, tokens int, p *Policy) (blocks int) {
	for _, r := range g.rules(p) {
		if c := r.pager(); c != nil && r.window == 0 {
			switch {
			case tokens <= 2*c.Reads(1<<30):
				return 0
			case r.Factors.Rank > 0:
				return r.factored(g, prompt)
			}
			blocks = tokens / tensor.BlockSlots
		}
	}
	return blocks
}

// SpilledBytes is StepBytes when the first blocks of the sequence lie in a file.
func SpilledBytes(g Geometry, prompt, tokens, staged, blocks int, p *Policy) int64 {
	bytes := StepBytes(g, prompt, tokens, staged, p)
	for _, r := range g.rules(p) {
		if c := r.pager(); c != nil && r.window == 0 && blocks > 0 {
			rows, tables := keptBytes(g, r.Policy, blocks)
			bytes += r.layers * int64(g.KVHeads) * (rows + tables - int64(blocks)*int64(r.givenUp(g.Layout, tensor.BlockSlots)))
		}
	}
	return bytes
}

// FileBytes is what so many blocks take in a file.
func FileBytes(g Geometry, blocks int, p *Policy) int64 {
	bytes := int64(0)
	for _, r := range g.rules(p) {
		if r.pager() != nil && r.window == 0 {
			bytes += r.layers * int64(g.KVHeads) * int64(blocks) * int64(r.givenUp(g.Layout, tensor.BlockSlots))
		}
	}
	return bytes
}

// pager of a table, nil: its rows stay.
func (t *table) pager() pageSelector {
	if t.window > 0 || t.rule.Factors.Rank > 0 && t.factors == nil {
		return nil
	}
	return t.rule.pager()
}

// Spilled is how many blocks lie in a file.
func (s *Store) Spilled() int {
	if s.spilled == nil {
		return 0
	}
	return s.spilled.blocks
}

// CopyPages fills dst with what the file of the first `blocks` blocks has from offset `at` on, in
// whole pages, and says how much it was: 0 at the end. dst has room for a block.
func (s *Store) CopyPages(dst []byte, at int64, blocks int) int {
	n, skip := 0, at
	if blocks > pageable(s.g, s.prompt, s.tokens, s.policy) {
		return 0
	}
	for i := range s.tables {
		t := &s.tables[i]
		c := t.pager()
		if c == nil {
			continue
		}
		size := int64(t.rule.givenUp(s.g.Layout, tensor.BlockSlots))
		if skip >= int64(blocks)*size {
			skip -= int64(blocks) * size
			continue
		}
		for b := int(skip / size); b < blocks && n+int(size) <= len(dst); b++ {
			if f := t.factors; f != nil {
				copy(dst[n:], f.values[b])
			} else {
				for first, at := 0, n; first < tensor.BlockSlots; first, at = first+c.Page(), at+s.g.Layout.PageBytes(c.Page()) {
					s.g.Layout.SavePage(dst[at:], t.rows()[b], first, c.Page())
				}
			}
			n, skip = n+int(size), skip+size
		}
		if skip < int64(blocks)*size {
			return n
		}
		skip = 0
	}
	return n
}

// PageSums are the checksums of pages as CopyPages gave them, of a policy's page size.
func PageSums(sums []uint32, g Geometry, p *Policy, pages []byte) []uint32 {
	for _, r := range g.rules(p) {
		if c := r.pager(); c != nil {
			for page := range slices.Chunk(pages, r.givenUp(g.Layout, c.Page())) {
				sums = append(sums, crc32.Checksum(page, castagnoli))
			}
			break
		}
	}
	return sums
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Spill gives up the rows of the first `blocks` blocks, all pages of which the file has, as
// CopyPages gave them, with the checksums of PageSums. The store closes the file.
func (s *Store) Spill(file PageFile, blocks int, sums []uint32) error {
	if want := pageable(s.g, s.prompt, s.tokens, s.policy); s.spilled != nil || !s.sealed || blocks < 1 || blocks > want || s.policy.Factors.Rank > 0 && blocks < want {
		return fmt.Errorf("kvcache: %d blocks of a store with %d tokens, %d of them in a file already, cannot lie in a file: %d can", blocks, s.tokens, s.Spilled(), want)
	}
	in := spilled{file: file, blocks: blocks}
	from, all := int64(0), FileBytes(s.g, blocks, s.policy)
	for i := range s.tables {
		t := &s.tables[i]
		c := t.pager()
		if c == nil {
			continue
		}
		n := blocks * tensor.BlockSlots / c.Page()
		size := t.rule.givenUp(s.g.Layout, tensor.BlockSlots)
		bytes := int64(blocks * size)
		if int64(len(sums)/n)*bytes != all-from { // of the first head, so that nothing was given up yet
			return fmt.Errorf("kvcache: checksums of %d pages for %d bytes of them", len(sums), all-from)
		}
		rows, tables := keptBytes(s.g, t.rule, blocks)
		if f := t.factors; f != nil { // far more than what is taken next
			s.arena.Release(f.values)
			f.values = nil
		} else {
			s.arena.Release(t.rows()[t.gone:blocks])
			clear(t.rows()[t.gone:blocks])
			t.gone = blocks
		}
		kept, err := s.arena.Alloc(size, int(rows)/size)
		if err == nil {
			err = s.arena.Charge(tables)
		}
		if err != nil {
			s.arena.Release(kept)
			s.fail(&in, fmt.Errorf("%w: no memory for %d of them: %w", ErrPages, pagesKept(c), err))
			break
		}
		in.charged += tables
		t.fetched = &fetched{from: from, sums: sums[:n], taken: make([]uint64, (pagesKept(c)+63)/64), blocks: kept}
		sums, from = sums[n:], from+bytes
	}
	s.spilled = &in
	return nil
}

// Lost says why pages are lost; nil: none is.
func (s *Store) Lost() error {
	if s.spilled != nil {
		if err := s.spilled.lost.Load(); err != nil {
			return *err
		}
	}
	return nil
}

func (s *Store) fail(in *spilled, err error) { in.lost.CompareAndSwap(nil, &err) }

// drop closes the file and gives back what Spill took.
func (s *Store) dropSpilled() {
	if s.spilled == nil {
		return
	}
	for i := range s.tables {
		if f := s.tables[i].fetched; f != nil {
			s.arena.Release(f.blocks)
		}
	}
	s.arena.Uncharge(s.spilled.charged)
	s.spilled.file.Close()
	s.spilled = nil
}

// bring gets pages of a head, in order, from the file that are not in memory.
func (s *Store) bring(t *table, pages []int32) {
	f := t.fetched
	if f == nil || s.spilled.lost.Load() != nil {
		return
	}
	size := t.rule.givenUp(s.g.Layout, t.rule.Selector.Page())
	next, places := append(f.spare[0][:0], pages...), f.spare[1][:0]
	var absent []int
	at := 0
	clear(f.taken)
	for i, p := range pages {
		for at < len(f.pages) && f.pages[at] < p {
			at++
		}
		if at < len(f.pages) && f.pages[at] == p {
			places = append(places, f.places[at])
			f.taken[f.places[at]/64] |= 1 << (f.places[at] % 64)
			continue
		}
		places, absent = append(places, -1), append(absent, i)
	}
	offsets, place := make([]int64, len(absent)), int32(0)
	for j, i := range absent {
		for f.taken[place/64]&(1<<(place%64)) != 0 {
			place++
		}
		places[i], place = place, place+1
		offsets[j] = f.from + int64(pages[i])*int64(size)
	}
	f.spare = [2][]int32{f.pages, f.places}
	f.pages, f.places = next, places
	if len(absent) == 0 {
		return
	}
	err := s.spilled.file.Read(offsets, size, func(j int, page []byte) error {
		i := absent[j]
		if crc32.Checksum(page, castagnoli) != f.sums[pages[i]] {
			return fmt.Errorf("page %d of layer %d, head %d is not what was written", pages[i], t.Layer, t.Index)
		}
		copy(f.page(i, size), page)
		return nil
	})
	if err != nil {
		f.pages, f.places = f.pages[:0], f.places[:0]
		s.fail(s.spilled, fmt.Errorf("%w: %w", ErrPages, err))
	}
}

// page is the memory of the i-th page.
func (f *fetched) page(i, size int) []byte {
	block := f.blocks[0]
	each := len(block) / size
	return f.blocks[int(f.places[i])/each][int(f.places[i])%each*size:][:size]
}

// viewSpilled is View of the chosen pages of a head of which the first blocks lie in a file.
func (s *Store) viewSpilled(t *table, pages []int32, n int, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	c, l := t.pager(), s.g.Layout
	in, _ := slices.BinarySearch(pages, int32(t.gone*tensor.BlockSlots/c.Page()))
	s.bring(t, pages[:in])
	size := l.PageBytes(c.Page())
	return s.viewPages(t, pages, n, scratch, func(block []byte, first, i int) {
		if len(t.fetched.pages) == in {
			l.LoadPage(block, first, c.Page(), t.fetched.page(i, size))
		} else { // lost; what the step gives is thrown away
			clear(block)
		}
	})
}

// viewPages is View of the chosen pages of a head that has given up the rows of the first blocks: load puts
// the i-th, which is one of those, into the slots of a block from `first` on.
func (s *Store) viewPages(t *table, pages []int32, n int, scratch *tensor.AttnScratch, load func(block []byte, first, i int)) ([][]byte, int, []uint64) {
	c, l := t.rule.Selector.(pageSelector), s.g.Layout
	each := tensor.BlockSlots / c.Page()
	in, _ := slices.BinarySearch(pages, int32(t.gone*each))
	if c.Page() >= panelSlots {
		blocks := scratch.Blocks((len(pages)+each-1)/each, l.BlockBytes())
		for i, page := range pages {
			if i < in {
				load(blocks[i/each], i%each*c.Page(), i)
				continue
			}
			l.CopyPage(blocks[i/each], i%each*c.Page(), t.rows()[int(page)/each], int(page)%each*c.Page(), c.Page())
		}
		last := n - int(pages[len(pages)-1])*c.Page()
		return blocks, (len(pages)-1)*c.Page() + min(last, c.Page()), nil
	}
	list, slots, mask := scratch.Pick(t.rows(), pages, c.Page(), n)
	copies, at := scratch.Blocks(len(list), l.BlockBytes()), -1
	for i, last := 0, int32(-1); i < in; i++ {
		if b := pages[i] / int32(each); b != last {
			at, last = at+1, b
			list[at] = copies[at]
		}
		load(copies[at], int(pages[i])%each*c.Page(), i)
	}
	return list, slots, mask
}
