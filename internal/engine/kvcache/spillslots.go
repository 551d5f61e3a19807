package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/sys/crc32c"
)

// A sequence whose policy selects single slots (Squeezed Attention) may have rows in a file too, if the
// policy is a filedSlots. The file has pages of panelSlots slots. A query reads those that contain a
// chosen slot, and its mask has the chosen slots only. A choice has no bound: it may be the whole
// prompt. So attention loads its blocks run by run (tensor.LoadRun), RunBlocks of them at a time in the
// scratch of a thread. A fixed number of pages per head stays in memory for the next step (pageCache).
// Each step reads the other pages of a larger choice from the file.

// filedSlots is a slotSelector whose rows can be in a file.
type filedSlots interface {
	slotSelector
	// FileBlocks returns the number of first blocks of a prompt whose slots only a choice reads.
	FileBlocks(prompt int) int
	// KeptPages returns how many pages of panelSlots slots stay in memory of a number of slots in a file.
	KeptPages(slots int) int
}

// filedSlots returns the policy's selector of slots, if its rows can be in a file; otherwise nil. The rows
// of a prompt must stay in their slots, wherever the policy puts them.
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

// slotRuns loads the blocks of one choice of slots.
type slotRuns struct {
	s      *Store
	t      *table
	blocks []int32  // number of each block of the list
	valid  []uint64 // [blocks] chosen slots
}

const blockPages = tensor.BlockSlots / panelSlots

// pagesOf calls f with each page of a block, counted within it, that has a chosen slot.
func pagesOf(chosen uint64, f func(i int)) {
	for i := range blockPages {
		if chosen>>(i*panelSlots)&(1<<panelSlots-1) != 0 {
			f(i)
		}
	}
}

// viewSlots is View of the slots of a mask, of a head whose first blocks are in a file. The scratch loads
// the blocks. The list has nil for those in the file.
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

// load is a tensor.LoadRun.
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

// slotPage is a page of a head, and its slots in a block.
type slotPage struct {
	number, first int
	block         []byte
}

// readSlotPages reads pages from the file. Those for which there is a place stay in memory. Lost pages
// are zero: the result of the step is discarded.
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
