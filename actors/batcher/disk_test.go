package batcher

import (
	"math/rand/v2"
	"slices"

	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/tensor"
)

// disks are those of a cluster's sockets: the texts of the blocks that were saved, by their
// keys, and what was asked and not answered.
type disks struct {
	texts  map[Key][]int32
	asked  []Disk
	coming map[uint64]bool // blocks that were asked for and not evicted since
	came   int
}

// wrote notes what a plan has written; some of it the disk was too slow for.
func (k *disks) wrote(at *cluster, rng *rand.Rand, keys []Key, blocks []uint64) {
	for i, id := range blocks {
		if text := at.texts[id]; text != nil && len(keys) > 0 && rng.IntN(20) > 0 {
			k.texts[keys[i+1]] = slices.Clone(text)
		}
	}
}

func (k *disks) ask(all []Disk) {
	for _, d := range all {
		k.asked = append(k.asked, d)
		for _, id := range d.Blocks {
			k.coming[id] = true
		}
	}
}

// answer answers one of the questions: all, some or none of the blocks come.
func (k *disks) answer(at *cluster, rng *rand.Rand) (DiskDone, bool) {
	if len(k.asked) == 0 {
		return DiskDone{}, false
	}
	i := rng.IntN(len(k.asked))
	d := k.asked[i]
	k.asked = slices.Delete(k.asked, i, i+1)
	done := DiskDone{Number: d.Number}
	most := len(d.Keys)
	if rng.IntN(4) == 0 {
		most = rng.IntN(most + 1)
	}
	if d.Seq != 0 {
		for most > done.Blocks && at.seqs[d.Seq] != nil && k.arrives(at, d.Blocks[done.Blocks], d.From+done.Blocks, at.seqs[d.Seq].text[:(d.From+done.Blocks+1)*tensor.BlockSlots]) {
			done.Blocks++
		}
		return done, true
	}
	before := k.texts[d.Before]
	for i, name := range d.Keys[:most] {
		text := k.texts[name]
		if text == nil || d.From+i > 0 && before != nil && !slices.Equal(text[:len(before)], before) {
			break
		}
		before = text
		if len(d.Blocks) > 0 && !k.arrives(at, d.Blocks[i], d.From+i, text) {
			break
		}
		done.Blocks++
	}
	return done, true
}

// arrives puts a block into the arenas: booked memory that is not free yet is a miss.
func (k *disks) arrives(at *cluster, id uint64, number int, text []int32) bool {
	if !k.coming[id] {
		return false
	}
	if at.blocks[id] != nil {
		return true // a prompt has written it meanwhile
	}
	var all []*kvcache.Segment
	for i, a := range at.arenas {
		seg, err := kvcache.NewSegment(a, geometry, at.spans[i], number, make([]byte, at.spans[i].Len()*kvcache.HeadBytes(geometry)))
		if err != nil {
			for _, seg := range all {
				seg.Release()
			}
			return false
		}
		all = append(all, seg)
	}
	at.blocks[id], at.texts[id] = all, text
	k.came++
	return true
}

// pinned are the blocks that requests wait for or that their waiting holds, and how often.
func (s *State) pinned() map[*textBlock]int32 {
	held := map[*textBlock]int32{}
	for _, f := range s.fetches {
		for _, b := range slices.Concat(f.chain, f.fresh) {
			held[b]++
		}
	}
	return held
}

// absent is what blocks are booked for on a socket that have not come there yet, and what
// those that waiting requests alone hold take.
func (k *disks) absent(s *State, at *cluster, rank int) (booked, alone int64) {
	a := &s.ledger.sockets[rank]
	for b, n := range s.pinned() {
		if at.blocks[b.id] == nil {
			booked += a.core + a.window
		} else if b.pins[rank] == n {
			alone += a.core
		}
	}
	for _, b := range s.prefix.blocks { // a prompt writes it, and has it among its own
		if !b.ready && at.blocks[b.id] == nil && s.pinned()[b] == 0 {
			booked += a.core + a.window
		}
	}
	return booked, alone
}
