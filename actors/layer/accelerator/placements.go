package accelerator

import (
	"encoding/binary"
	"fmt"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// placements is where the decode rows of a step have their keys and values, if the policy of a sequence
// evicts tokens. Each layer has an array of rows (launch.Row), whose slot is the last one that a row attends to,
// and an array of places (rows, KV heads). In a layer with a window, slots are positions.
type placements struct {
	used   bool
	host   *pinned
	there  grown
	rows   int   // decode rows of the step, which come first
	heads  int   // KV heads
	layers int   // caches
	slots  []int // of each layer, the most that a row reads
	scored int   // the most that a row reads whose policy evicts by attention, in whole runs, or 0 if there is none
	// Decode rows that are computed together, one run after another. A token may take the slot of a token that
	// the previous token attends to.
	runs []topology.Range
}

// begin starts a step: the places of all rows are the slots of their positions.
func (p *placements) begin(b *Backend) {
	p.used, p.scored, p.runs = false, 0, p.runs[:0]
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		if s.Prefill || s.Cache == nil {
			continue
		}
		c, apart := storeOf(s), false
		p.heads, p.layers = c.Heads().Len(), c.Geometry().Layers
		for i := range p.layers {
			together, _ := c.BatchedDecode(i, s.Start, s.N)
			apart = apart || !together
			if r := c.Rule(i); r.Scored() {
				p.scored = max(p.scored, wholeRuns(r.Slots(c.Prompt(), s.Start+s.N)))
			}
		}
		p.used = p.used || apart || c.Policy().Evicts()
		rows := topology.Range{Lo: s.First, Hi: s.First + s.N}
		for apart && rows.Len() > 1 {
			p.runs = append(p.runs, topology.Range{Lo: rows.Lo, Hi: rows.Lo + 1})
			rows.Lo++
		}
		if n := len(p.runs); n > 0 && !apart && p.runs[n-1].Hi == rows.Lo {
			p.runs[n-1].Hi = rows.Hi
		} else {
			p.runs = append(p.runs, rows)
		}
	}
	if !p.used {
		return
	}
	p.rows = b.prompts
	p.host = p.host.grow(b, p.layers*p.bytes())
	p.there.grow(b, int64(p.host.size()))
	p.slots = make([]int, p.layers)
	if p.scored > 0 {
		b.observer.growMasses(b)
	}
}

// bytes returns the size of the arrays of a layer.
func (p *placements) bytes() int { return p.rows * (launch.RowBytes + p.heads*launch.PlaceBytes) }

// row and place are the offsets of a row of a layer, and of the place of a KV head.
func (p *placements) row(layer, row int) int { return layer*p.bytes() + row*launch.RowBytes }

func (p *placements) place(layer, row, head int) int {
	return layer*p.bytes() + p.rows*launch.RowBytes + (row*p.heads+head)*launch.PlaceBytes
}

// add records in the cache of a segment that the card writes its rows. If tokens of a layer depend on the
// attention of the one before them, it records the first only.
func (p *placements) add(b *Backend, s *layer.Segment, l *lists) {
	c := storeOf(s)
	for i := range c.Geometry().Layers {
		n := s.N
		if c.Rule(i).Scored() {
			n = 1
		}
		if !p.used || s.Prefill {
			p.write(b, s, i, 0, n)
			continue
		}
		for j := range s.N {
			row, pos := s.First+j, s.Start+j
			last := pos
			if evicts(c, i) {
				last = c.Rule(i).Slots(c.Prompt(), pos+1) - 1
			}
			p.slots[i] = max(p.slots[i], last+1)
			at := p.host.bytes()[p.row(i, row):]
			for k, v := range [...]uint32{uint32(last), uint32(l.at), uint32(l.stride), 0} {
				binary.LittleEndian.PutUint32(at[4*k:], v)
			}
			for h := range p.heads {
				launch.Place{Slot: uint32(pos), Block: launch.NoBlock}.Put(p.host.bytes()[p.place(i, row, h):])
			}
		}
		p.write(b, s, i, 0, n)
	}
}

// evicts reports whether slots of a layer are not positions.
func evicts(c *kvcache.Store, layer int) bool {
	return !c.Rule(layer).KeepsAll() && (c.Geometry().Windows == nil || c.Geometry().Windows[layer] == 0)
}

// write records n tokens of a segment in a layer's cache, from its first on, and their places.
func (p *placements) write(b *Backend, s *layer.Segment, at, first, n int) {
	c := storeOf(s)
	if !c.WriteElsewhere(at, s.Start+first, n, func(head, i, slot int, old []byte, saved int) {
		if !p.used {
			return
		}
		if !evicts(c, at) {
			slot = s.Start + first + i
		}
		to := p.host.bytes()[p.place(at, s.First+first+i, head-c.Heads().Lo):]
		launch.Place{Slot: uint32(slot), Block: b.number(old), Saved: uint32(saved)}.Put(to)
	}) {
		panic(fmt.Sprintf("accelerator: policy %s is not computed on a card", c.Policy().Name()))
	}
}

// later records the rows of a run that add could not, because they depend on attention.
func (p *placements) later(b *Backend, at int, run topology.Range) {
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		if s.Prefill || s.Cache == nil || run.Lo <= s.First || run.Lo >= s.First+s.N || !storeOf(s).Rule(at).Scored() {
			continue
		}
		b.wait() // for the attention of the token before
		b.busy = true
		p.write(b, s, at, run.Lo-s.First, 1)
		lo, hi := p.place(at, run.Lo, 0), p.place(at, run.Lo+1, 0)
		b.card.Must(b.card.Stream.Upload(p.there.at.Add(int64(lo)), p.host.bytes()[lo:hi]))
	}
}

func (p *placements) upload(b *Backend) {
	if p.used {
		b.card.Must(b.card.Stream.Upload(p.there.at, p.host.bytes()[:p.layers*p.bytes()]))
	}
}

// of returns the arrays of a layer from a row on, and the slots that its rows read, in whole runs.
func (p *placements) of(layer, row int) (rows, places cuda.Pointer, slots int) {
	return p.there.at.Add(int64(p.row(layer, row))), p.there.at.Add(int64(p.place(layer, row, 0))), wholeRuns(p.slots[layer])
}

// wholeRuns rounds slots up to whole runs of attention, so that one graph of operations fits all steps
// of a run.
func wholeRuns(slots int) int {
	return (slots + tensor.RunSlots - 1) / tensor.RunSlots * tensor.RunSlots
}

func (p *placements) close() {
	p.host.close()
	p.there.close()
}
