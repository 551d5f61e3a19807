package kvcache

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// PromptBlock returns the rows that the owner of a sequence receives of some heads of a layer at the end of
// prefill.
func PromptBlock(g Geometry, p *Policy, prompt, layer int, heads tensor.Span) rowblock.Block {
	if layer >= g.Layers {
		return stateBlock(layer, prompt, heads)
	}
	slots := tensor.Span{Lo: 0, Hi: g.Rule(layer, p).Slots(prompt, prompt)}
	planes := rowblock.Positions | rowblock.Numbers | rowblock.Rows | rowblock.Queries
	if p.Reorders {
		planes |= rowblock.Index
	}
	return blockOf(layer, heads, slots, planes)
}

// LayerBlock is a layer of the store, all that a replica needs of its first tokens.
func (s *Store) LayerBlock(layer, tokens int) rowblock.Block {
	if layer >= s.g.Layers {
		return stateBlock(layer, tokens, s.heads)
	}
	r := s.g.Rule(layer, s.policy)
	slots := tensor.Span{Lo: r.plan(s.g, s.prompt).Replaced * tensor.BlockSlots, Hi: r.Slots(s.prompt, tokens)}
	planes := rowblock.Positions | rowblock.Numbers | rowblock.Rows | rowblock.Index
	return blockOf(layer, s.heads, slots, planes)
}

func stateBlock(layer, tokens int, heads tensor.Span) rowblock.Block {
	return blockOf(layer, heads, tensor.Span{Lo: 0, Hi: tokens}, rowblock.State)
}

// blockOf is some planes of one layer.
func blockOf(layer int, heads, slots tensor.Span, of rowblock.Plane) rowblock.Block {
	return rowblock.Block{Layers: tensor.Span{Lo: layer, Hi: layer + 1}, Heads: heads, Slots: slots, Planes: of}
}

// StepBlock returns the rows of the running step's n tokens from pos on, in all layers. A replica that
// gets them stays equal to the store: its policy makes the same choices, since they depend on
// positions alone. Policies whose scores change in decode have no replicas.
func (s *Store) StepBlock(pos, n int) rowblock.Block {
	slots := tensor.Span{Lo: pos, Hi: pos + n}
	return rowblock.Block{Layers: tensor.Span{Lo: 0, Hi: s.g.Layers}, Heads: s.heads, Slots: slots, Planes: rowblock.Staged | rowblock.Records}
}

// RowShape implements rowblock.Shaper.
func (s *Store) RowShape(layer, head int, plane rowblock.Plane) rowblock.Shape {
	if layer >= s.g.Layers || plane == rowblock.State {
		if layer < s.g.Layers || plane != rowblock.State {
			return rowblock.Shape{}
		}
		return rowblock.Shape{Bytes: s.g.states().RowBytes(head)}
	}
	t := s.table(layer, head)
	switch {
	case plane == rowblock.Index && t.rule.Index != nil && s.promptIndex != nil:
		return rowblock.Shape{Bytes: s.promptIndex.IndexBytes(layer, head)}
	case plane == rowblock.Index && s.divides(t) != nil:
		return rowblock.Shape{Bytes: 4}
	case plane == rowblock.Records && layer == 0 && head == s.heads.Lo:
		return rowblock.Shape{Bytes: s.g.states().RecordRowBytes(), Slots: 1}
	}
	return rowShape(s.g, layer, t.rule, s.prompt, plane)
}

// rowShape returns the shape of a plane of a layer, which has rule p.
func rowShape(g Geometry, layer int, p *Policy, prompt int, plane rowblock.Plane) rowblock.Shape {
	switch plane {
	case rowblock.Positions:
		return rowblock.Shape{Bytes: 4, Slots: 1}
	case rowblock.Numbers:
		if p.Scored() {
			return rowblock.Shape{Bytes: 4, Slots: 1}
		}
	case rowblock.Rows, rowblock.Staged:
		return rowblock.Shape{Bytes: g.LayoutOf(layer).RowBytes(), Slots: 1}
	case rowblock.Queries:
		return rowblock.Shape{Bytes: int(queryBytes(g, p, prompt))}
	case rowblock.Pages:
		if n := p.filePage(); n > 0 {
			return rowblock.Shape{Bytes: p.spilledSize(g.Layout, n), Slots: n}
		}
	}
	return rowblock.Shape{}
}

// ReadRows implements rowblock.Source: rows of LayerBlock, StepBlock or FileBlocks.
func (s *Store) ReadRows(dst []byte, b rowblock.Block) ([]byte, error) {
	return b.ReadEach(dst, s, s.read)
}

func (s *Store) read(dst []byte, at rowblock.Part) error {
	if at.Plane == rowblock.State {
		return s.State(at.Layer-s.g.Layers, at.Head).Read(dst, at.Slots.Hi)
	}
	t := s.table(at.Layer, at.Head)
	switch at.Plane {
	case rowblock.Index:
		if t.blocks != nil {
			binary.LittleEndian.PutUint32(dst, uint32(t.blocks[t.Index-s.heads.Lo]))
			return nil
		}
		s.promptIndex.ReadIndex(dst, at.Layer, at.Head)
		return nil
	case rowblock.Pages:
		return s.readPages(dst, t, at.Slots)
	case rowblock.Staged, rowblock.Records:
		if err := s.checkStaged(at.Slots); err != nil {
			return err
		}
	}
	size, of := at.Bytes/at.Slots.Len(), s.arena.Window()
	for pos := at.Slots.Lo; pos < at.Slots.Hi; pos++ { // a slot, or a position of the running step
		row, t, slot := dst[(pos-at.Slots.Lo)*size:][:size], t, pos
		if at.Plane&(rowblock.Positions|rowblock.Rows) != 0 {
			t, slot = s.dealt(t, pos)
		}
		switch at.Plane {
		case rowblock.Positions:
			binary.LittleEndian.PutUint32(row, uint32(int32(t.position(slot))))
		case rowblock.Numbers:
			binary.LittleEndian.PutUint32(row, math.Float32bits(t.Scores[slot]))
		case rowblock.Rows:
			block := t.rows()[slot/tensor.BlockSlots]
			if block == nil {
				return fmt.Errorf("%w: slot %d of layer %d, head %d is not in memory", rowblock.Err, slot, at.Layer, at.Head)
			}
			t.layout.ExportRow(row, of.Read(block), slot%tensor.BlockSlots)
		case rowblock.Staged:
			s.readStaged(row, s.table(at.Layer, at.Head), pos)
		case rowblock.Records:
			copy(row, s.states.ExportRecords(nil, pos))
		default:
			return fmt.Errorf("%w: a store has no plane %#x", rowblock.Err, uint32(at.Plane))
		}
	}
	return nil
}

// readStaged reads the row that the running step wrote for the token at pos.
func (s *Store) readStaged(row []byte, t *table, pos int) {
	l, slot, block, of := t.layout, pos, []byte(nil), s.arena.Window()
	if !t.rule.KeepsAll() {
		i := s.index(t.Layer, t.Index) * s.undo.per
		entries := s.undo.entries[i:][:s.undo.per]
		slot = int(entries[pos-s.tokens].slot) - 1
		if slot < 0 {
			panic(fmt.Sprintf("kvcache: position %d was not written in this step", pos))
		}
		for j := pos - s.tokens + 1; j < len(entries) && block == nil; j++ {
			if int(entries[j].slot)-1 == slot { // a later token of the step took the slot
				block = make([]byte, l.BlockBytes())
				rows, at := s.undo.row(t, j)
				l.LoadRow(block, slot%tensor.BlockSlots, of.Read(rows), at)
			}
		}
	}
	if block == nil {
		block = of.Read(t.rows()[slot/tensor.BlockSlots])
	}
	l.ExportRow(row, block, slot%tensor.BlockSlots)
}

// WriteRows implements rowblock.Sink: rows of PromptBlock or LayerBlock between Open and Seal, of
// StepBlock in a step. Writing the same rows again gives the same state.
func (s *Store) WriteRows(b rowblock.Block, body []byte) error { return b.WriteEach(body, s, s.write) }

func (s *Store) write(at rowblock.Part, src []byte) error {
	if at.Plane == rowblock.State {
		return s.writeState(at, src)
	}
	t := s.table(at.Layer, at.Head)
	slots := t.rule.Slots(s.prompt, s.pending)
	switch {
	case at.Plane == rowblock.Staged:
		return s.writeStaged(t, at.Slots, src)
	case at.Plane == rowblock.Records:
		if err := s.checkStaged(at.Slots); err != nil {
			return err
		}
		size := at.Bytes / at.Slots.Len()
		for pos := at.Slots.Lo; pos < at.Slots.Hi; pos, src = pos+1, src[size:] {
			s.states.ImportRecords(pos, src[:size])
		}
		return nil
	case s.sealed || s.pending == 0:
		return fmt.Errorf("%w: the store is not open", rowblock.Err)
	case at.Plane == rowblock.Queries:
		return s.writeQueries(t, src)
	case at.Plane == rowblock.Index:
		return s.writeIndex(t, src)
	case at.Slots.Lo < t.freed*tensor.BlockSlots || at.Slots.Hi > slots || int(blocksOf(at.Slots.Hi)) > len(t.rows()):
		return fmt.Errorf("%w: slots [%d,%d) of a store with %d", rowblock.Err, at.Slots.Lo, at.Slots.Hi, slots)
	case at.Plane == rowblock.Positions:
		return s.writePositions(t, at.Slots, src)
	}
	to := s.arena.Window()
	defer to.Close()
	for slot := at.Slots.Lo; slot < at.Slots.Hi; slot++ {
		row := src[(slot-at.Slots.Lo)*at.Bytes/at.Slots.Len():]
		switch at.Plane {
		case rowblock.Numbers:
			t.Scores[slot] = math.Float32frombits(binary.LittleEndian.Uint32(row))
		case rowblock.Rows:
			t.layout.ImportRow(to.Edit(t.rows()[slot/tensor.BlockSlots]), slot%tensor.BlockSlots, row)
			s.filled(t, slot)
		default:
			return fmt.Errorf("%w: a store takes no plane %#x", rowblock.Err, uint32(at.Plane))
		}
	}
	return nil
}

// writeState stores the recurrent state of a head, in a store that is open.
func (s *Store) writeState(at rowblock.Part, src []byte) error {
	if tokens := at.Slots.Hi; s.sealed || tokens != s.pending {
		return fmt.Errorf("%w: a recurrent state after %d tokens of a store that is open for %d", rowblock.Err, tokens, s.pending)
	}
	s.State(at.Layer-s.g.Layers, at.Head).Write(src, s.pending)
	return nil
}

func (s *Store) writePositions(t *table, slots tensor.Span, src []byte) error {
	for slot := slots.Lo; slot < slots.Hi; slot++ {
		pos := int32(binary.LittleEndian.Uint32(src[4*(slot-slots.Lo):]))
		if pos < 0 || int(pos) >= s.pending || t.rule.KeepsPrompt() && int(pos) != t.rule.ringPosition(s.prompt, s.pending, slot) {
			return fmt.Errorf("%w: slot %d carries position %d of %d", rowblock.Err, slot, pos, s.pending)
		}
	}
	for slot := slots.Lo; slot < slots.Hi && t.Positions != nil; slot++ {
		t.Positions[slot] = int32(binary.LittleEndian.Uint32(src[4*(slot-slots.Lo):]))
	}
	return nil
}

// writeIndex stores the index of a head. With rows that the index replaces, that of the selector
// has come too.
func (s *Store) writeIndex(t *table, src []byte) error {
	if s.divides(t) != nil {
		t.moved = int(int32(binary.LittleEndian.Uint32(src)))
		return nil
	}
	if err := s.promptIndex.WriteIndex(src, t.Layer, t.Index); err != nil || t.freed == 0 {
		return err
	}
	t.indexed = t.freed * tensor.BlockSlots
	for slot := range t.indexed {
		t.filled[slot/64] |= 1 << (slot % 64)
	}
	t.n = max(t.n, t.indexed)
	return nil
}

// filled marks a slot whose row has arrived between Open and Seal.
func (s *Store) filled(t *table, slot int) {
	s.updateHalf(t, slot)
	t.n = max(t.n, slot+1)
	t.filled[slot/64] |= 1 << (slot % 64)
}

func (s *Store) writeQueries(t *table, src []byte) error {
	q := make([]float32, len(src)/4)
	for i := range q {
		q[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
	return s.setQueries(t, q)
}

// setQueries keeps the queries of a head's observation window, charged until Seal.
func (s *Store) setQueries(t *table, q []float32) error {
	if t.queries == nil {
		if err := s.arena.Charge(4 * int64(len(q))); err != nil {
			return fmt.Errorf("queries of layer %d, head %d: %w", t.Layer, t.Index, err)
		}
		s.queryCharge += 4 * int64(len(q))
	}
	t.queries = q
	return nil
}

// writeStaged is Write of tokens whose rows come from another store of the same sequence.
func (s *Store) writeStaged(t *table, positions tensor.Span, src []byte) error {
	if err := s.checkStaged(positions); err != nil {
		return err
	}
	i, to := s.index(t.Layer, t.Index)*s.undo.per, s.arena.Window()
	for pos := positions.Lo; pos < positions.Hi; pos++ {
		slot := pos
		if !t.rule.KeepsAll() {
			if s.undo.entries[i+pos-s.tokens].slot > 0 {
				s.rewind(t, pos-s.tokens)
			}
			slot = s.stage(t, pos)
		}
		t.layout.ImportRow(to.Edit(t.rows()[slot/tensor.BlockSlots]), slot%tensor.BlockSlots, src[(pos-positions.Lo)*t.layout.RowBytes():])
		to.Close()
		s.updateHalf(t, slot)
		s.reindex(t, slot, slot+1)
		t.n = max(t.n, slot+1)
	}
	return nil
}

func (s *Store) checkStaged(positions tensor.Span) error {
	if positions.Lo < s.tokens || positions.Hi > s.tokens+s.staged {
		return fmt.Errorf("%w: positions [%d,%d), reserved are [%d,%d)", rowblock.Err, positions.Lo, positions.Hi, s.tokens, s.tokens+s.staged)
	}
	return nil
}

// Sealed reports whether the store is complete, so that tokens may be written.
func (s *Store) Sealed() bool { return s.sealed }

// Staged returns the number of reserved tokens beyond Tokens: those of the running step.
func (s *Store) Staged() int { return s.staged }

// Selection is the rows that a policy keeps of one layer of a prompt, as the owner receives them.
type Selection struct {
	From   *Store // a prefill store
	Policy *Policy
	Kept   func(head int) (Kept, *Statistics)
}

// RowShape implements rowblock.Shaper.
func (x Selection) RowShape(layer, head int, plane rowblock.Plane) rowblock.Shape {
	switch plane {
	case rowblock.State:
		return x.From.RowShape(layer, head, plane)
	case rowblock.Index:
		kept, _ := x.Kept(head)
		return rowblock.Shape{Bytes: len(kept.Index)}
	}
	return rowShape(x.From.g, layer, x.From.g.Rule(layer, x.Policy), x.From.tokens, plane)
}

// ReadRows implements rowblock.Source: rows of PromptBlock.
func (x Selection) ReadRows(dst []byte, b rowblock.Block) ([]byte, error) {
	return b.ReadEach(dst, x, func(dst []byte, at rowblock.Part) error {
		if at.Plane == rowblock.State {
			return x.From.read(dst, at)
		}
		t := x.From.table(at.Layer, at.Head)
		kept, seen := x.Kept(at.Head)
		switch at.Plane {
		case rowblock.Index:
			copy(dst, kept.Index)
			return nil
		case rowblock.Queries:
			for i, q := range seen.window(at.Bytes / 4) {
				binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(q))
			}
			return nil
		}
		size, of := at.Bytes/at.Slots.Len(), x.From.arena.Window()
		for i, pos := range kept.Positions[at.Slots.Lo:at.Slots.Hi] {
			row := dst[i*size:][:size]
			switch at.Plane {
			case rowblock.Positions:
				binary.LittleEndian.PutUint32(row, uint32(pos))
			case rowblock.Numbers:
				binary.LittleEndian.PutUint32(row, math.Float32bits(kept.Scores[at.Slots.Lo+i]))
			case rowblock.Rows:
				t.layout.ExportRow(row, of.Read(t.rows()[pos/tensor.BlockSlots]), int(pos)%tensor.BlockSlots)
			}
		}
		return nil
	})
}

// window returns the last n elements of the observed queries.
func (s *Statistics) window(n int) []float32 { return s.Queries[len(s.Queries)-n:] }
