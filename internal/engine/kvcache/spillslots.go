package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// A sequence whose policy selects single slots (Squeezed Attention) may have rows in a file too, if its
// selector implements filedSlots. The file has pages of panelSlots slots. A query reads the pages that
// contain a chosen slot, and its mask has only the chosen slots. The size of a choice has no bound: it may
// be the whole prompt. So attention loads the blocks run by run (tensor.LoadRun): a thread's scratch has
// at most RunBlocks of them. A fixed number of pages per head stays in memory for the next step
// (pageCache). Each step reads the other pages of a larger choice from the file.

// filedSlots is a slotSelector whose rows can be in a file.
type filedSlots interface {
	slotSelector
	// FileBlocks returns the number of first blocks of a prompt of which a query reads only chosen slots.
	FileBlocks(prompt int) int
	// KeptPages returns the number of pages, of panelSlots slots, that stay in memory if this number of
	// slots is in a file.
	KeptPages(slots int) int
}

// filedSlots returns the policy's selector of slots, if its rows can be in a file; otherwise nil. After
// the end of the prompt its rows must stay in their slots.
func (p *Policy) filedSlots() filedSlots {
	c, ok := p.Selector.(filedSlots)
	if !ok || p.Evicts() || p.half || p.ReplacesKeys {
		return nil
	}
	return c
}

// chosenBlocks returns the number of blocks of a prompt that can be in a file under filedSlots. An
// indexer of latent attention reads whole lists of blocks, which must be in memory.
func (g Geometry) chosenBlocks(c filedSlots, prompt int) int {
	if g.Layout.Latent && g.Unturned {
		return 0
	}
	return c.FileBlocks(prompt)
}

// slotRuns loads the blocks of one choice of slots of a head.
type slotRuns struct {
	s      *Store
	t      *table
	blocks []int32  // numbers of the blocks with chosen slots, ascending
	valid  []uint64 // [blocks] bits of the chosen slots
}

const blockPages = tensor.BlockSlots / panelSlots

// pagesOf calls f with the index, within a block, of each page that has a chosen slot.
func pagesOf(chosen uint64, f func(i int)) {
	for i := range blockPages {
		if chosen>>(i*panelSlots)&(1<<panelSlots-1) != 0 {
			f(i)
		}
	}
}

// viewSlots is View of the slots of a mask, for a head whose first blocks are in a file. It sets
// scratch.Load, which loads the blocks. The list has nil for blocks in the file.
func (s *Store) viewSlots(t *table, mask []uint64, n int, scratch *tensor.AttnScratch) ([][]byte, int, []uint64) {
	_, blocks := scratch.Chosen(0, len(mask))
	blocks = blocks[:0]
	in := t.fetched.slots
	t.fetched.mu.Lock()
	in.begin()
	for b, chosen := range mask {
		if chosen == 0 {
			continue
		}
		blocks = append(blocks, int32(b))
		if b < t.freed {
			pagesOf(chosen, func(i int) { in.choose(b*blockPages + i) })
		}
	}
	t.fetched.mu.Unlock()
	list, slots, valid := scratch.PickSlots(t.rows(), mask, n)
	scratch.Load = (&slotRuns{s, t, blocks, valid}).load
	return list, slots, valid
}

// load implements tensor.LoadRun.
func (r *slotRuns) load(run int, dst [][]byte, scratch *tensor.AttnScratch) {
	first, t := run*tensor.RunBlocks, r.t
	buffers := scratch.Blocks(len(dst), r.s.g.Layout.BlockBytes())
	var absent []slotPage
	in := t.fetched.slots
	t.fetched.mu.Lock()
	for i := range dst {
		b := int(r.blocks[first+i])
		if b >= t.freed {
			dst[i] = t.rows()[b]
			continue
		}
		dst[i] = buffers[i]
		pagesOf(r.valid[first+i], func(at int) {
			p := slotPage{number: b*blockPages + at, block: buffers[i], first: at * panelSlots}
			if place := in.find(p.number); place >= 0 {
				r.s.g.Layout.LoadPage(p.block, p.first, panelSlots, t.fetched.place(place, r.s.g.Layout.PageBytes(panelSlots)))
			} else {
				absent = append(absent, p)
			}
		})
	}
	t.fetched.mu.Unlock()
	r.s.readSlotPages(t, absent)
}

// slotPage is a page of a head, to be loaded into a block.
type slotPage struct {
	number, first int // number of the page; its first slot in the block
	block         []byte
}

// readSlotPages reads pages from the file into their blocks, and stores those for which pageCache has a
// place. After an error the blocks are cleared and the store is lost, so the result of the step is
// discarded.
func (s *Store) readSlotPages(t *table, pages []slotPage) {
	if len(pages) == 0 {
		return
	}
	f, size := t.fetched, s.g.Layout.PageBytes(panelSlots)
	err := s.Lost()
	if err == nil {
		offsets := make([]int64, len(pages))
		for i, p := range pages {
			offsets[i] = f.from + int64(p.number)*int64(size)
		}
		if err = s.spilled.file.Read(offsets, size, func(i int, page []byte) error {
			p := &pages[i]
			if crc32c.Of(page) != f.sums[p.number] {
				return fmt.Errorf("page %d of layer %d, head %d is corrupted", p.number, t.Layer, t.Index)
			}
			s.g.Layout.LoadPage(p.block, p.first, panelSlots, page)
			f.mu.Lock()
			if place := f.slots.put(p.number); place >= 0 {
				copy(f.place(place, size), page)
			}
			f.mu.Unlock()
			return nil
		}); err == nil {
			return
		}
		s.fail(s.spilled, fmt.Errorf("%w: %w", ErrPages, err))
	}
	for _, p := range pages {
		clear(p.block)
	}
}
