package kvcache

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// A sequence whose policy selects pages (Quest, ShadowKV) reads few of its rows in a step. The
// others can be in a file. Spill frees the blocks of rows [0, n) of its heads; the file has every
// page of them, keys and values of a page and head adjacent. In memory remain the index, the later
// rows, and for each head the pages that the last step selected. The next step reads only pages
// from the file that its selection adds. Attention gets blocks with the selected pages at their
// usual places, so no bit depends on where a page is stored. If an index replaces keys, the file has
// the values (as ShadowKV was published), and the index stays in memory. spillslots.go has the files of
// policies that select single slots.

// PageFile holds the pages of one store. Read may be called concurrently.
type PageFile interface {
	// Read passes the size bytes at each offset to got, in any order but one call at a time, before
	// it returns. got may use the page until it returns.
	Read(at []int64, size int, got func(i int, page []byte) error) error
	Close()
}

// ErrPages means that pages of a store could not be read from their file, or are corrupted. The
// store is then unusable.
var ErrPages = errors.New("kvcache: pages are lost")

// spilled is the part of a store that is in a file.
type spilled struct {
	file    PageFile
	blocks  int // number of blocks of every head that selects pages
	lost    atomic.Pointer[error]
	charged int64 // bytes of tables
}

// fetched describes the pages of one head that are in the file. Those of the newest selection are
// also in memory.
type fetched struct {
	mu     sync.Mutex // held by View: several threads view a head of latent attention
	from   int64      // offset in the file
	sums   []uint32   // checksum of each page
	pages  []int32    // pages in memory, ascending
	places []int32    // place of each in blocks
	taken  []uint64   // one bit per place
	spare  [2][]int32
	blocks [][]byte
	slots  *pageCache // for selections of single slots, instead of pages, places, taken and spare
}

// pager returns the policy's selector of pages, if unselected rows can be in a file; otherwise nil.
func (p *Policy) pager() pageSelector {
	c, ok := p.Selector.(pageSelector)
	if !ok || p.Evicts() || p.half {
		return nil
	}
	return c
}

// filePage returns the number of slots of a page in a file; 0: the rows stay in memory.
func (p *Policy) filePage() int {
	switch c := p.pager(); {
	case c != nil:
		return c.Page()
	case p.filedSlots() != nil:
		return panelSlots
	}
	return 0
}

// spilledSize returns the number of bytes of n slots that move to a file.
func (p *Policy) spilledSize(l tensor.KVLayout, n int) int {
	if p.ReplacesKeys {
		return l.ValueBytes(n)
	}
	return l.PageBytes(n)
}

// pagesKept returns the maximum number of pages that a query selects.
func pagesKept(c pageSelector) int { return (c.Reads(1<<30) + c.Page() - 1) / c.Page() }

// keptBytes returns the bytes of one head that stay in memory: its selected pages and its tables.
func keptBytes(g Geometry, p *Policy, blocks int) (rows, tables int64) {
	page := p.filePage()
	all := blocks * tensor.BlockSlots / page
	block := int64(p.spilledSize(g.Layout, tensor.BlockSlots))
	if c := p.filedSlots(); c != nil {
		kept := keptPages(c, blocks)
		return blocksOf(kept*page) * block, pageCacheBytes(all, kept) + 4*int64(all)
	}
	kept, each := pagesKept(p.pager()), int64(16)
	if p.ReplacesKeys {
		each = 20
	}
	return blocksOf(kept*page) * block, each*int64(kept) + 8*((int64(kept)+63)/64) + 4*int64(all)
}

// keptPages returns the number of pages, of panelSlots slots, that stay in memory if this number of blocks
// is in a file.
func keptPages(c filedSlots, blocks int) int {
	return max(1, min(c.KeptPages(blocks*tensor.BlockSlots), blocks*tensor.BlockSlots/panelSlots))
}

// Spillable returns the number of blocks that a sequence with tokens countable tokens should move to a
// file; 0: none can, or memory would gain too little.
func Spillable(g Geometry, prompt, tokens int, p *Policy) int {
	blocks, whole := pageable(g, prompt, tokens, p), StepBytes(g, prompt, tokens, 1, p)
	if whole-SpilledBytes(g, prompt, tokens, 1, blocks, p) < whole/4 {
		return 0
	}
	return blocks
}

// pageable returns the number of blocks that can be in a file. It is 0 until every step selects among
// pages. It never falls as tokens grow, so a spill that was planned can still be done later.
func pageable(g Geometry, prompt, tokens int, p *Policy) (blocks int) {
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		if r.window > 0 {
			continue
		}
		if c := r.filedSlots(); c != nil {
			return g.chosenBlocks(c, prompt)
		}
		if c := r.pager(); c != nil {
			among := r.selectable(prompt, tokens)
			switch {
			case among <= 2*c.Reads(1<<30):
				return 0
			case r.ReplacesKeys:
				return r.plan(g, prompt).Replaced
			}
			blocks = among / tensor.BlockSlots
		}
	}
	return blocks
}

// SpilledBytes is StepBytes when the first blocks of the sequence are in a file.
func SpilledBytes(g Geometry, prompt, tokens, staged, blocks int, p *Policy) int64 {
	bytes := StepBytes(g, prompt, tokens, staged, p)
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		if r.filePage() > 0 && r.window == 0 && blocks > 0 {
			rows, tables := keptBytes(g, r.Policy, blocks)
			bytes += r.layers * int64(g.KVHeads) * (rows + tables - int64(blocks)*int64(r.spilledSize(g.Layout, tensor.BlockSlots)))
		}
	}
	return bytes
}

// FileBytes returns the size of a number of blocks in a file.
func FileBytes(g Geometry, blocks int, p *Policy) int64 {
	bytes := int64(0)
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		if r.filePage() > 0 && r.window == 0 {
			bytes += r.layers * int64(g.KVHeads) * int64(blocks) * int64(r.spilledSize(g.Layout, tensor.BlockSlots))
		}
	}
	return bytes
}

// filePage returns the number of slots of a page of a table in a file; 0: its rows stay in memory.
func (t *table) filePage() int {
	if t.window > 0 || t.rule.ReplacesKeys && t.replaced == 0 {
		return 0
	}
	return t.rule.filePage()
}

// Spilled returns the number of blocks in a file.
func (s *Store) Spilled() int {
	if s.spilled == nil {
		return 0
	}
	return s.spilled.blocks
}

// FileBlocks lists the contents of the file of a store's first blocks, in order. Each piece has at most
// the given bytes, or is one block of rows.
func FileBlocks(g Geometry, p *Policy, blocks, bytes int) (list []rowblock.Block) {
	for layer := range g.Layers {
		r := g.Rule(layer, p)
		if r.filePage() == 0 {
			continue
		}
		size := r.spilledSize(g.Layout, tensor.BlockSlots)
		heads, n := min(g.KVHeads, max(1, bytes/(size*blocks))), min(blocks, max(1, bytes/size))
		for head := 0; head < g.KVHeads; head += heads {
			for b := 0; b < blocks; b += n {
				of := tensor.Span{Lo: head, Hi: min(head+heads, g.KVHeads)}
				slots := tensor.Span{Lo: b * tensor.BlockSlots, Hi: min(b+n, blocks) * tensor.BlockSlots}
				list = append(list, blockOf(layer, of, slots, rowblock.Pages))
			}
		}
	}
	return list
}

// readPages reads pages of whole blocks as files hold them.
func (s *Store) readPages(dst []byte, t *table, slots tensor.Span) error {
	lo, hi := slots.Lo/tensor.BlockSlots, slots.Hi/tensor.BlockSlots
	if hi > pageable(s.g, s.prompt, s.tokens, s.policy) || lo < t.freed && t.replaced == 0 {
		return fmt.Errorf("%w: blocks [%d,%d) of a store with %d tokens cannot be in a file", rowblock.Err, lo, hi, s.tokens)
	}
	page := t.filePage()
	for b := lo; b < hi; b++ {
		if t.replaced > 0 {
			n := t.rule.spilledSize(s.g.Layout, tensor.BlockSlots)
			s.replacer.ReadValues(dst[:n], t.Layer, t.Index, b)
			dst = dst[n:]
			continue
		}
		for first := 0; first < tensor.BlockSlots; first += page {
			s.g.Layout.SavePage(dst, t.rows()[b], first, page)
			dst = dst[s.g.Layout.PageBytes(page):]
		}
	}
	return nil
}

// PageSums appends the checksums of pages of FileBlocks, in the policy's page size.
func PageSums(sums []uint32, g Geometry, p *Policy, pages []byte) []uint32 {
	for _, r := range g.rules(p, make([]rule, 0, fewRules)) {
		if n := r.filePage(); n > 0 {
			for page := range slices.Chunk(pages, r.spilledSize(g.Layout, n)) {
				sums = append(sums, crc32c.Of(page))
			}
			break
		}
	}
	return sums
}

// Spill frees the rows of a store's first blocks. The file has all their pages, those of
// FileBlocks, with the checksums of PageSums. The store closes the file.
func (s *Store) Spill(file PageFile, blocks int, sums []uint32) error {
	want := pageable(s.g, s.prompt, s.tokens, s.policy)
	fits := blocks == want || blocks < want && !s.policy.ReplacesKeys
	if s.spilled != nil || !s.sealed || blocks < 1 || !fits {
		return fmt.Errorf("kvcache: %d blocks of a store with %d tokens, %d of them in a file already, cannot be spilled: %d can",
			blocks, s.tokens, s.Spilled(), want)
	}
	in := spilled{file: file, blocks: blocks}
	from, all := int64(0), FileBytes(s.g, blocks, s.policy)
	for i := range s.tables {
		t := &s.tables[i]
		page := t.filePage()
		if page == 0 {
			continue
		}
		n := blocks * tensor.BlockSlots / page
		size := t.rule.spilledSize(s.g.Layout, tensor.BlockSlots)
		bytes := int64(blocks * size)
		if int64(len(sums)/n)*bytes != all-from { // at the first head nothing was freed yet
			return fmt.Errorf("kvcache: checksums of %d pages for %d bytes of pages", len(sums), all-from)
		}
		rows, tables := keptBytes(s.g, t.rule, blocks)
		if t.replaced > 0 { // frees far more than the next allocation takes
			s.replacer.DropValues(t.Layer, t.Index)
		} else {
			s.arena.Release(t.rows()[t.freed:blocks])
			clear(t.rows()[t.freed:blocks])
			t.freed = blocks
		}
		kept, ok := s.places(&in, size, rows, tables)
		t.fetched = &fetched{from: from, sums: sums[:n], blocks: kept}
		if c := t.rule.filedSlots(); c == nil {
			t.fetched.taken = make([]uint64, (pagesKept(t.rule.pager())+63)/64)
		} else if ok {
			t.fetched.slots = newPageCache(n, keptPages(c, blocks))
		} else {
			t.fetched.slots = newPageCache(n, 0)
		}
		if !ok {
			break
		}
		sums, from = sums[n:], from+bytes
	}
	s.spilled = &in
	return nil
}

// places allocates and books memory for the pages of a head that stay, and books the bytes of their tables.
// Without memory the cache is lost: places returns false, and the head keeps no page.
func (s *Store) places(in *spilled, size int, rows, tables int64) (kept [][]byte, ok bool) {
	kept, err := s.arena.Alloc(size, int(rows)/size)
	if err == nil {
		err = s.arena.Charge(tables)
	}
	if err != nil {
		s.arena.Release(kept)
		s.fail(in, fmt.Errorf("%w: no memory for %d bytes of pages that stay in memory: %w", ErrPages, rows, err))
		return nil, false
	}
	in.charged += tables
	return kept, true
}

// Lost returns the error that lost pages; nil: none is lost.
func (s *Store) Lost() error {
	if s.spilled != nil {
		if err := s.spilled.lost.Load(); err != nil {
			return *err
		}
	}
	return nil
}

func (s *Store) fail(in *spilled, err error) { in.lost.CompareAndSwap(nil, &err) }

// dropSpilled closes the file and frees the memory that Spill allocated.
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

// fetchPages reads the pages of a head, ascending, that are not in memory from the file.
func (s *Store) fetchPages(t *table, pages []int32) {
	f := t.fetched
	if f == nil || s.spilled.lost.Load() != nil {
		return
	}
	size := t.rule.spilledSize(s.g.Layout, t.rule.Selector.Page())
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
		if crc32c.Of(page) != f.sums[pages[i]] {
			return fmt.Errorf("page %d of layer %d, head %d is corrupted", pages[i], t.Layer, t.Index)
		}
		copy(f.page(i, size), page)
		return nil
	})
	if err != nil {
		f.pages, f.places = f.pages[:0], f.places[:0]
		s.fail(s.spilled, fmt.Errorf("%w: %w", ErrPages, err))
	}
}

// page returns the memory of the i-th page.
func (f *fetched) page(i, size int) []byte { return f.place(int(f.places[i]), size) }

// place returns the memory of a place.
func (f *fetched) place(at, size int) []byte {
	each := len(f.blocks[0]) / size
	return f.blocks[at/each][at%each*size:][:size]
}

// viewSpilled is View of the selected pages of a head whose first blocks are in a file.
func (s *Store) viewSpilled(t *table, pages []int32, n int, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	c, l := t.rule.pager(), s.g.Layout
	in, _ := slices.BinarySearch(pages, int32(t.freed*tensor.BlockSlots/c.Page()))
	t.fetched.mu.Lock() // until the pages are copied
	defer t.fetched.mu.Unlock()
	s.fetchPages(t, pages[:in])
	size := l.PageBytes(c.Page())
	return s.viewPages(t, pages, n, scratch, func(block []byte, first, i int) {
		if len(t.fetched.pages) == in {
			l.LoadPage(block, first, c.Page(), t.fetched.page(i, size))
		} else { // lost; the result of the step is discarded
			clear(block)
		}
	})
}

// FetchPages reads the given pages of a head, ascending, from its file, except those in memory.
// spilled is false if the head has no file.
func (s *Store) FetchPages(layer, head int, pages []int32) (spilled bool) {
	t := s.table(layer, head)
	s.fetchPages(t, pages)
	return t.fetched != nil
}

// FetchedPage returns the i-th of the pages of the last FetchPages; nil: it is lost, and so is the result
// of the step.
func (s *Store) FetchedPage(layer, head, i int) []byte {
	t := s.table(layer, head)
	if i >= len(t.fetched.pages) {
		return nil
	}
	return t.fetched.page(i, t.rule.spilledSize(s.g.Layout, t.rule.Selector.Page()))
}

// loadPage writes the i-th selected page into the slots of a block from first on.
type loadPage = func(block []byte, first, i int)

// ViewPages is View of the selected pages of a head, for a RowReplacer. If the rows of the i-th page are
// replaced, load writes them into the slots of a block from first on.
func (s *Store) ViewPages(layer, head int, pages []int32, n int, scratch *tensor.AttnScratch, load loadPage) ([][]byte, int, []uint64) {
	return s.viewPages(s.table(layer, head), pages, n, scratch, load)
}

// viewPages is View of the selected pages of a head whose first blocks are freed. load writes the
// i-th selected page, if it is one of those, into the slots of a block from first on.
func (s *Store) viewPages(t *table, pages []int32, n int, scratch *tensor.AttnScratch, load loadPage) ([][]byte, int, []uint64) {
	c, l := t.rule.Selector.(pageSelector), s.g.Layout
	each := tensor.BlockSlots / c.Page()
	in, _ := slices.BinarySearch(pages, int32(t.freed*each))
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
