package kvcache

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// attendedSlots returns the bits of a query's attention to the slots of a mask. With threads, each run of
// slots is a task.
func attendedSlots(t *testing.T, s *Store, layer, head, n int, mask []uint64, q []float32, threads int) []uint32 {
	tab, scratch, g, l := s.table(layer, head), new(tensor.AttnScratch), s.g.group(), s.g.Layout
	mask = slices.Clone(mask)
	buffers, mu := map[*byte]bool{}, sync.Mutex{}
	view := func(t *table, mask []uint64) ([][]byte, int, []uint64) {
		if t.fetched == nil {
			return scratch.PickSlots(t.rows(), mask, n)
		}
		blocks, slots, valid := s.viewSlots(t, mask, n, scratch)
		load := scratch.Load
		scratch.Load = func(run int, dst [][]byte, own *tensor.AttnScratch) {
			load(run, dst, own)
			mu.Lock()
			defer mu.Unlock()
			for i, b := range dst {
				if blocks[run*tensor.RunBlocks+i] == nil {
					buffers[&b[0]] = true
				}
			}
		}
		return blocks, slots, valid
	}
	blocks, slots, valid := view(tab, mask)
	out := make([]float32, g*l.VDim)
	if threads == 0 {
		tensor.Attend(out, q, g, tensor.Score{Scale: 0.3}, l, blocks, slots, valid, scratch)
	} else {
		var runs tensor.Runs
		var tasks sync.WaitGroup
		count := runs.Begin(q, g, tensor.Score{Scale: 0.3}, l, blocks, slots, valid, scratch.Load)
		for i := range threads {
			tasks.Go(func() { runs.Attend(i*count/threads, (i+1)*count/threads, new(tensor.AttnScratch)) })
		}
		tasks.Wait()
		runs.Fold(out)
	}
	if most := max(1, threads) * tensor.RunBlocks; len(buffers) > most {
		t.Errorf("a choice of %d blocks was loaded into %d buffers, want at most %d for %d threads", len(blocks), len(buffers), most, threads)
	}
	bits := make([]uint32, len(out))
	for i, x := range out {
		bits[i] = math.Float32bits(x)
	}
	return bits
}

// Choices of any size give the same bits as rows in memory: no slot, single slots, whole pages, all slots.
// A thread has buffers for the blocks of one run. A head keeps the number of pages that SpilledBytes books.
// If a choice repeats, only the pages that do not fit are read again.
func TestChosenSlotsInFile(t *testing.T) {
	const prompt = 5200 // 81 blocks: five runs and one block
	p := parse("squeezed:clusters=0.05,sparsity=0.9,tail=4,obs=12")
	for _, l := range []tensor.KVLayout{
		{Type: tensor.F32, KDim: 8, VDim: 16}, {Type: tensor.BF16, KDim: 16, VDim: 16}, {Type: tensor.Int8, KDim: 32, VDim: 32},
		{Type: tensor.BF16, KDim: 24, VDim: 16, Latent: true},
	} {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			g := Geometry{Layers: 1, KVHeads: 1, Group: 2, Layout: l}
			if l.Latent {
				g.Units = 2
			}
			var stores [2]*Store
			var arenas [2]*memory.Arena
			for i := range stores {
				arenas[i] = memory.NewArena(1 << 30)
				defer arenas[i].Close()
				stores[i] = ownedOf(t, arenas[i], g, p, prompt)
				defer stores[i].Release()
			}
			f := spill(t, stores[1])
			tab, blocks := stores[1].table(0, 0), stores[1].Spilled()
			if blocks != (prompt-12)/tensor.BlockSlots {
				t.Fatalf("%d blocks are in the file", blocks)
			}
			kept, r := keptPages(p.filedSlots(), blocks), rand.New(rand.NewPCG(3, 4))
			q := make([]float32, 2*l.KDim)
			for i := range q {
				q[i] = r.Float32()*4 - 2
			}
			for round, share := range []float64{0, 0.0005, 0.01, 0.1, 0.5, 1, 1, 0.01, 0.002} {
				mask := make([]uint64, (prompt+63)/64)
				for slot := range prompt {
					chosen := r.Float64() < share
					if round%2 == 1 { // runs of slots, as of clusters
						chosen = rand.New(rand.NewPCG(uint64(round), uint64(slot/20))).Float64() < share
					}
					if chosen || slot >= prompt-12 {
						mask[slot/64] |= 1 << (slot % 64)
					}
				}
				pages := 0
				for _, chosen := range mask[:blocks] {
					pagesOf(chosen, func(int) { pages++ })
				}
				want := attendedSlots(t, stores[0], 0, 0, prompt, mask, q, 0)
				for again, threads := range []int{0, 0, 1, 3} {
					before := f.reads
					if got := attendedSlots(t, stores[1], 0, 0, prompt, mask, q, threads); !slices.Equal(got, want) {
						t.Fatalf("round %d, %d threads: %x, in memory %x", round, threads, got, want)
					}
					if read, most := f.reads-before, max(0, pages-kept); again > 0 && read != most || read > pages {
						t.Errorf("round %d: %d of %d pages were read, %d stay in memory: want %d", round, read, pages, kept, most)
					}
					if used, want := arenas[1].Used(), SpilledBytes(g, prompt, prompt, 1, blocks, p); used != want {
						t.Fatalf("%d bytes in use, SpilledBytes is %d", used, want)
					}
				}
				if n := len(tab.fetched.slots.pages); n != kept || n > len(tab.fetched.blocks)*blockPages {
					t.Fatalf("%d places in %d blocks, want %d", n, len(tab.fetched.blocks), kept)
				}
			}
			if stores[1].Lost() != nil {
				t.Error(stores[1].Lost())
			}
		})
	}
}

// Threads compute attention to several choices of one head at the same time, as for drafts of a long
// sequence. While runs of an older choice are loaded, pages of the newest one replace its pages.
func TestChoicesAtOnce(t *testing.T) {
	const prompt = 3000
	p := parse("squeezed:clusters=0.05,sparsity=0.9,tail=4,obs=12")
	g := Geometry{Layers: 1, KVHeads: 1, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 16, VDim: 16}}
	var stores [2]*Store
	for i := range stores {
		a := memory.NewArena(1 << 30)
		defer a.Close()
		stores[i] = ownedOf(t, a, g, p, prompt)
		defer stores[i].Release()
	}
	spill(t, stores[1])
	q, r := make([]float32, 32), rand.New(rand.NewPCG(5, 6))
	for i := range q {
		q[i] = r.Float32()*4 - 2
	}
	var want [8][]uint32
	masks := make([][]uint64, len(want))
	for i := range masks {
		masks[i] = make([]uint64, (prompt+63)/64)
		for slot := range prompt {
			if r.IntN(60) < i*i || slot >= prompt-12 {
				masks[i][slot/64] |= 1 << (slot % 64)
			}
		}
		want[i] = attendedSlots(t, stores[0], 0, 0, prompt, masks[i], q, 0)
	}
	var tasks sync.WaitGroup
	for i := range want {
		tasks.Go(func() {
			for k := range 6 {
				if got := attendedSlots(t, stores[1], 0, 0, prompt, masks[i], q, k%3); !slices.Equal(got, want[i]) {
					t.Errorf("choice %d: %x, in memory %x", i, got, want[i])
				}
			}
		})
	}
	tasks.Wait()
}

// A page cache has each page at most once and keeps the pages of the newest choice. put fails only if all
// places have pages of the newest choice.
func TestPageCache(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		pages, places := rapid.IntRange(1, 40).Draw(r, "pages"), rapid.IntRange(1, 12).Draw(r, "places")
		c := newPageCache(pages, places)
		held := map[int]int{} // page -> place
		for range rapid.IntRange(1, 20).Draw(r, "choices") {
			chosen := rapid.SliceOfDistinct(rapid.IntRange(0, pages-1), rapid.ID[int]).Draw(r, "chosen")
			c.begin()
			for _, page := range chosen {
				c.choose(page)
			}
			for _, page := range chosen {
				if place := c.find(page); place >= 0 {
					if held[page] != place {
						r.Fatalf("page %d is in place %d, it was put in %d", page, place, held[page])
					}
					continue
				}
				place := c.put(page)
				if place < 0 {
					for other := range held {
						if !slices.Contains(chosen, other) {
							r.Fatalf("page %d got no place, and page %d of an older choice has one", page, other)
						}
					}
					if len(held) < places {
						r.Fatalf("page %d got no place, %d of %d are in use", page, len(held), places)
					}
					continue
				}
				for other, at := range held {
					if at == place {
						if slices.Contains(chosen, other) {
							r.Fatalf("page %d took the place of page %d of the same choice", page, other)
						}
						delete(held, other)
					}
				}
				held[page] = place
			}
			for page := range pages {
				if place, ok := held[page]; ok != (c.find(page) >= 0) || ok && c.find(page) != place {
					r.Fatalf("page %d is in place %d of the cache, in %d by the model", page, c.find(page), place)
				}
			}
		}
	})
}
