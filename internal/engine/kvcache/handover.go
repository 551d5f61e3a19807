package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Open prepares an empty store for a sequence with prompt tokens at the end of prefill and tokens
// in its cache. These are equal unless a sequence moves between owners while it decodes. It
// allocates every block that the rows need, all or nothing. The adopted heads will come from a
// prefill store on the same arena by Adopt and need none. They must be empty unless the policy
// keeps every token.
func (s *Store) Open(prompt, tokens int, adopted tensor.Span) error {
	switch {
	case s.sealed || s.pending > 0:
		return errors.New("kvcache: Open of a store that is in use")
	case prompt < 1 || tokens < prompt:
		return fmt.Errorf("kvcache: Open with a prompt of %d and %d tokens", prompt, tokens)
	case adopted.Hi > adopted.Lo && !s.policy.KeepsAll():
		return fmt.Errorf("kvcache: policy %s moves rows, so no head can be adopted", s.policy.Name())
	}
	return s.open(prompt, tokens, false, func(t *table) bool {
		return t.Index >= adopted.Lo && t.Index < adopted.Hi && s.adopts(t, prompt)
	})
}

// adopts reports whether a table takes over the prompt's blocks without a copy. It does not in
// layers with a window. Under a policy that factorises its keys, layers that keep all rows do not
// either, so that such a store shares nothing.
func (s *Store) adopts(t *table, prompt int) bool {
	return t.rule.KeepsAll() && (s.policy.Adopts(s.g, prompt) || !t.rule.Adopts(s.g, prompt))
}

// OpenMoved is Open for a sequence that another owner exports layer by layer with ExportLayer.
func (s *Store) OpenMoved(prompt, tokens int) error {
	if s.sealed || s.pending > 0 || prompt < 1 || tokens < prompt {
		return fmt.Errorf("kvcache: OpenMoved of a store that is in use, or with a prompt of %d and %d tokens", prompt, tokens)
	}
	return s.open(prompt, tokens, true, func(*table) bool { return false })
}

func (s *Store) open(prompt, tokens int, moved bool, adopted func(*table) bool) error {
	s.prompt = prompt
	undo := 0 // tokens to undo
	if s.overwrites(tokens) {
		undo = 1
	}
	err := s.openFactors(moved, adopted)
	if err == nil {
		err = s.openStates(-1)
	}
	if err == nil {
		err = s.grow(tokens, undo, adopted)
	}
	if err != nil {
		s.dropFactors()
		s.dropStates()
		for i := range s.tables {
			s.tables[i].planes[rowsPlane].blocks, s.tables[i].freed = nil, 0
		}
		s.prompt = 0
		return fmt.Errorf("opening a sequence of %d prompt tokens: %w", prompt, err)
	}
	s.pending = tokens
	for i := range s.tables {
		t := &s.tables[i]
		t.Prompt, t.filled = prompt, make([]uint64, (t.rule.Slots(prompt, tokens)+63)/64)
	}
	return nil
}

// Adopt takes over the blocks of one KV head, all layers, from a prefill store on the same arena
// without a copy. Both stores hold them until one is released or writes. from must hold exactly the
// prompt. Layers with a window are left to Keep.
func (s *Store) Adopt(from *Store, head int) error {
	switch {
	case !s.policy.KeepsAll():
		return fmt.Errorf("kvcache: policy %s moves rows, so no head can be adopted", s.policy.Name())
	case from.arena != s.arena:
		return errors.New("kvcache: Adopt from another arena: export the rows and import them")
	case from.tokens != s.pending || s.pending != s.prompt || from.staged != 0:
		return fmt.Errorf("kvcache: Adopt from a store with %d tokens (and %d not committed), the prompt has %d", from.tokens, from.staged, s.prompt)
	}
	for layer := range s.g.Layers {
		to, own := s.table(layer, head), from.table(layer, head)
		if !to.rule.KeepsAll() {
			continue
		}
		if !s.adopts(to, s.prompt) {
			for slot := range own.n {
				to.filled[slot/64] |= 1 << (slot % 64)
			}
			for i, b := range own.rows() {
				copy(to.rows()[i], b)
			}
			to.n = own.n
			continue
		}
		if len(to.rows()) > 0 {
			return fmt.Errorf("kvcache: layer %d, head %d has blocks already: name it in Open's adopted heads", layer, head)
		}
		s.shares, from.shares = true, true
		to.planes[rowsPlane].blocks, to.n = s.arena.Retain(own.rows()), own.n
		for slot := range to.n {
			to.filled[slot/64] |= 1 << (slot % 64)
		}
	}
	return nil
}

// Keep copies the kept rows of one head of one layer from a prefill store of the same socket.
func (s *Store) Keep(from *Store, layer, head int, kept Kept) error {
	to, own := s.table(layer, head), from.table(layer, head)
	if s.pending != s.prompt || s.sealed {
		return errors.New("kvcache: Keep needs a store that was opened for a prompt")
	}
	if want := to.rule.Slots(s.prompt, s.prompt); len(kept.Positions) != want {
		return fmt.Errorf("kvcache: %d kept slots, policy %s has %d after a prompt of %d", len(kept.Positions), to.rule.Spec(), want, s.prompt)
	}
	for slot, pos := range kept.Positions {
		if pos < 0 || pos >= int32(own.n) {
			return fmt.Errorf("kvcache: kept position %d of a prompt of %d", pos, own.n)
		}
		if next := slot + 4; next < len(kept.Positions) { // an Arranger keeps rows in any order
			if pos := kept.Positions[next]; pos >= 0 && pos < int32(own.n) {
				to.layout.Fetch(own.rows()[pos/tensor.BlockSlots], int(pos)%tensor.BlockSlots)
			}
		}
		to.layout.CopySlot(to.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots, own.rows()[pos/tensor.BlockSlots], int(pos)%tensor.BlockSlots)
		s.updateHalf(to, slot)
		s.fill(to, slot, pos, scoreOf(kept, slot))
	}
	return nil
}

// RowBytes is the size of one row of a layer, which has rule p, as Export writes it: position (int32),
// number (float32, only under scored policies and Arrangers, see Arranger), key and value, little
// endian.
func RowBytes(g Geometry, layer int, p *Policy) int {
	size := 4 + g.LayoutOf(layer).RowBytes()
	if p.numbered() {
		size += 4
	}
	return size
}

// Export appends the rows of the prompt positions in kept to dst. kept is a complete result of
// Policy.Keep, or a run of its slots. s is a prefill store, p the rule of the layer.
func (s *Store) Export(dst []byte, p *Policy, layer, head int, kept Kept) []byte {
	t, size := s.table(layer, head), RowBytes(s.g, layer, p)
	for i, pos := range kept.Positions {
		at := len(dst)
		dst = append(dst, make([]byte, size)...)
		s.exportRow(dst[at:], p, t, int(pos), int(pos), scoreOf(kept, i))
	}
	return dst
}

// ExportSlots appends the rows of slots [lo, hi) of the owner's store, to move or copy the sequence
// to another owner.
func (s *Store) ExportSlots(dst []byte, layer, head, lo, hi int) []byte {
	t := s.table(layer, head)
	size, note := RowBytes(s.g, layer, t.rule), func(int) float32 { return 0 }
	if a := t.rule.Arranger; a != nil {
		note = a.notes(t, s)
	}
	for slot := lo; slot < hi; slot++ {
		at := len(dst)
		dst = append(dst, make([]byte, size)...)
		score := note(slot)
		if t.Scores != nil {
			score = t.Scores[slot]
		}
		s.exportRow(dst[at:], t.rule, t, slot, s.Position(layer, head, slot), score)
	}
	return dst
}

func (s *Store) exportRow(dst []byte, p *Policy, t *table, slot, pos int, score float32) {
	binary.LittleEndian.PutUint32(dst, uint32(int32(pos)))
	dst = dst[4:]
	if p.numbered() {
		binary.LittleEndian.PutUint32(dst, math.Float32bits(score))
		dst = dst[4:]
	}
	t.layout.ExportRow(dst, t.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots)
}

// Import writes rows (a whole number of them, as from Export) into the slots from first on. It
// checks all rows before it writes any. Errors wrap ErrRows. Importing the same rows again gives
// the same state.
func (s *Store) Import(layer, head, first int, rows []byte) error {
	if layer < 0 || layer >= s.g.Layers || head < s.heads.Lo || head >= s.heads.Hi {
		return fmt.Errorf("%w: layer %d, head %d of %d layers and heads [%d,%d)", ErrRows, layer, head, s.g.Layers, s.heads.Lo, s.heads.Hi)
	}
	t := s.table(layer, head)
	size, slots := RowBytes(s.g, layer, t.rule), t.rule.Slots(s.prompt, s.pending)
	n := len(rows) / size
	switch {
	case s.sealed || s.pending == 0:
		return fmt.Errorf("%w: the store is not open", ErrRows)
	case len(rows)%size != 0:
		return fmt.Errorf("%w: %d bytes are not whole rows of %d", ErrRows, len(rows), size)
	case first < t.freed*tensor.BlockSlots || first > slots || n > slots-first || int(blocksOf(first+n)) > len(t.rows()):
		return fmt.Errorf("%w: slots [%d,%d) of a store with %d", ErrRows, first, first+n, slots)
	}
	for i := range n {
		pos := int32(binary.LittleEndian.Uint32(rows[i*size:]))
		if pos < 0 || int(pos) >= s.pending || t.rule.KeepsAll() && int(pos) != first+i {
			return fmt.Errorf("%w: slot %d carries position %d of %d", ErrRows, first+i, pos, s.pending)
		}
	}
	for i := range n {
		row, slot, score := rows[i*size:(i+1)*size], first+i, float32(0)
		pos := int32(binary.LittleEndian.Uint32(row))
		row = row[4:]
		if t.rule.numbered() {
			score = math.Float32frombits(binary.LittleEndian.Uint32(row))
			row = row[4:]
		}
		t.layout.ImportRow(t.rows()[slot/tensor.BlockSlots], slot%tensor.BlockSlots, row)
		s.updateHalf(t, slot)
		s.fill(t, slot, pos, score)
	}
	return nil
}

func (s *Store) fill(t *table, slot int, pos int32, score float32) {
	if t.Positions != nil {
		t.Positions[slot] = pos
	}
	if t.Scores != nil {
		t.Scores[slot] = score
	}
	if a := t.rule.Arranger; a != nil {
		a.note(t, s, slot, score)
	}
	t.n = max(t.n, slot+1)
	t.filled[slot/64] |= 1 << (slot % 64)
}

// Seal ends the hand-over. Every slot of every head must have been filled. Afterwards tokens may be
// written, the first at position Tokens.
func (s *Store) Seal() error {
	return s.SealOn(inOrder, nil)
}

// inOrder calls f with each of 0 to n-1.
func inOrder(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// SealOn is Seal with parallel index building. run calls f with each of 0 to n-1, in any order and
// possibly concurrently. ropes rotate the keys of each layer.
func (s *Store) SealOn(run func(n int, f func(i int)), ropes Ropes) error {
	if s.sealed || s.pending == 0 {
		return errors.New("kvcache: Seal of a store that is not open")
	}
	for i := range s.tables {
		t, filled := &s.tables[i], 0
		slots := t.rule.Slots(s.prompt, s.pending)
		for _, w := range t.filled {
			filled += bits.OnesCount64(w)
		}
		if filled < slots {
			return fmt.Errorf("kvcache: hand-over is not complete: layer %d, head %d has %d of %d slots", t.Layer, t.Index, filled, slots)
		}
	}
	if err := s.statesArrived(); err != nil {
		return err
	}
	for i := range s.tables {
		t := &s.tables[i]
		t.filled = nil
		t.countEvicted(s.pending)
	}
	run(len(s.tables), func(i int) { s.extendIndex(&s.tables[i], s.tables[i].indexed, s.tables[i].n) })
	s.factorise(run, ropes)
	for x := ClusteringOf(s.g, s.prompt, s.policy); s.indexed < x.Pieces-x.Before; {
		if err := s.Index(s.indexed, run); err != nil {
			return err
		}
	}
	s.calibration, s.indexed = nil, 0
	for i := range s.tables {
		s.tables[i].queries = nil
	}
	s.arena.Uncharge(s.queryCharge)
	s.queryCharge = 0
	s.tokens, s.pending, s.sealed = s.pending, 0, true
	return nil
}

// QueryBytes is the size of what ExportQueries appends for one head of a layer under rule p.
func QueryBytes(g Geometry, p *Policy, prompt int) int { return int(queryBytes(g, p, prompt)) }

// ExportQueries appends the queries of an observation that rule p of the layer sends to the owner.
func ExportQueries(dst []byte, p *Policy, s *Statistics) []byte {
	if p.Needs.Queries {
		for _, x := range s.Queries[len(s.Queries)-min(p.Needs.Window, s.Prompt)*s.Group*s.Layout.KDim:] {
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(x))
		}
	}
	return dst
}

// ImportQueries stores, before Seal, what ExportQueries wrote for a head. scale is the factor of
// their products with keys. The queries are charged until Seal. Errors wrap ErrRows and ErrBudget.
func (s *Store) ImportQueries(layer, head int, score tensor.Score, in []byte) error {
	t := s.table(layer, head)
	if want := QueryBytes(s.g, t.rule, s.prompt); len(in) != want || s.pending == 0 {
		return fmt.Errorf("%w: %d bytes of queries, want %d before Seal", ErrRows, len(in), want)
	}
	if len(in) == 0 {
		return nil
	}
	if t.queries == nil { // a cache that moves has none
		if err := s.arena.Charge(int64(len(in))); err != nil {
			return fmt.Errorf("queries of layer %d, head %d: %w", layer, head, err)
		}
		s.queryCharge += int64(len(in))
	}
	t.queries, t.score = make([]float32, len(in)/4), score
	for i := range t.queries {
		t.queries[i] = math.Float32frombits(binary.LittleEndian.Uint32(in[4*i:]))
	}
	return nil
}

func scoreOf(k Kept, slot int) float32 {
	if k.Scores == nil {
		return 0
	}
	return k.Scores[slot]
}
