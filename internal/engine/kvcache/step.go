package kvcache

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/window"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Reserve allocates every block that a step needs to take the sequence to upTo tokens, all or
// nothing. Afterwards Write of the positions [Tokens, upTo) cannot fail. Reserving less than before
// has no effect. Errors are memory.ErrBudget and memory.ErrMemory.
func (s *Store) Reserve(upTo int) (err error) {
	if !s.sealed {
		return fmt.Errorf("kvcache: reserve before the hand-over is complete (Open, fill, Seal)")
	}
	if upTo <= s.tokens+s.staged {
		return nil
	}
	if err := s.states.Open(s.tokens); err != nil {
		return err
	}
	records := s.states.Reserved()
	defer func() {
		if err != nil {
			s.states.TrimTo(records)
		}
	}()
	if err := s.states.Reserve(upTo - s.tokens); err != nil {
		return err
	}
	staged, undo := upTo-s.tokens, 0
	if s.overwrites(upTo) {
		undo = staged
	}
	if err := s.grow(upTo, undo, s.absent); err != nil {
		return fmt.Errorf("reserving tokens [%d,%d): %w", s.tokens, upTo, err)
	}
	if err := s.unshare(); err != nil {
		s.trimTo(s.tokens + s.staged)
		return fmt.Errorf("copying shared blocks for token %d: %w", s.tokens, err)
	}
	scores := s.scoreBytes(staged)
	if err := s.arena.Charge(scores - s.undo.charge); err != nil {
		s.trimTo(s.tokens + s.staged)
		return fmt.Errorf("keeping scores of %d tokens: %w", staged, err)
	}
	s.staged, s.undo.charge = staged, scores
	if s.evicts() {
		s.extend(staged)
	}
	return nil
}

// overwrites reports whether in some table a token up to tokens takes the slot of another.
func (s *Store) overwrites(tokens int) bool {
	for i := 0; i < len(s.tables); i += s.heads.Len() { // all heads of a layer have one rule
		if overwrites(s.tables[i].rule, s.prompt, tokens) {
			return true
		}
	}
	return false
}

// evicts reports whether some table does not keep every token.
func (s *Store) evicts() bool {
	for i := 0; i < len(s.tables); i += s.heads.Len() {
		if !s.tables[i].rule.KeepsAll() {
			return true
		}
	}
	return false
}

// grow allocates space for tokens in the tables, except for rows that will be adopted, and for the
// undo log of a number of tokens.
func (s *Store) grow(tokens, undo int, adopted func(*table) bool) error {
	want, charge := s.undoNeed(undo), int64(0)
	if want[0] <= len(s.undo.blocks[0]) && want[1] <= len(s.undo.blocks[1]) && s.hasRoom(tokens) {
		return nil
	}
	need := func(t *table, j int) int {
		if p := &t.planes[j]; p.size > 0 && (j != rowsPlane || !adopted(t)) {
			return max(0, p.room(t.rule.planeSlots(j, s.prompt, tokens))-len(p.blocks))
		}
		return 0
	}
	all := max(0, want[0]-len(s.undo.blocks[0])) + max(0, want[1]-len(s.undo.blocks[1]))
	for i := range s.tables {
		t := &s.tables[i]
		charge += int64(need(t, rowsPlane)) * tableBytes(t.rule)
		for j := range t.planes {
			all += need(t, j)
		}
	}
	if all == 0 {
		return nil
	}
	if err := s.arena.Charge(charge); err != nil {
		return err
	}
	got, err := s.arena.AllocEach(func(yield func(size int)) {
		for class, n := range want {
			for range n - len(s.undo.blocks[class]) {
				yield([2]tensor.KVLayout{s.g.Layout, s.g.Local}[class].BlockBytes())
			}
		}
		for i := range s.tables {
			for j := range s.tables[i].planes {
				for range need(&s.tables[i], j) {
					yield(s.tables[i].planes[j].size)
				}
			}
		}
	})
	if err != nil {
		s.arena.Uncharge(charge)
		return err
	}
	s.charge += charge
	s.changes++
	take := func(to *[][]byte, n int) {
		if n > 0 {
			*to, got = append(*to, got[:n]...), got[n:]
		}
	}
	for class, n := range want {
		take(&s.undo.blocks[class], n-len(s.undo.blocks[class]))
	}
	for i := range s.tables {
		t, before := &s.tables[i], len(got)
		for j := range t.planes {
			take(&t.planes[j].blocks, need(t, j))
		}
		if len(got) < before {
			s.resizeTable(t)
		}
	}
	return nil
}

// hasRoom reports whether the trimmed tables have space for a number of tokens, by one head of each layer.
func (s *Store) hasRoom(tokens int) bool {
	if s.trimmed != s.changes+1 {
		return false
	}
	for i := 0; i < len(s.tables); i += s.heads.Len() {
		t := &s.tables[i]
		if t.blocks != nil { // after Divide each head has its own rule
			return false
		}
		for j := range t.planes {
			if p := &t.planes[j]; p.room(t.rule.planeSlots(j, s.prompt, tokens)) > p.room(t.rule.planeSlots(j, s.prompt, s.tokens)) {
				return false
			}
		}
	}
	return true
}

func (s *Store) resizeTable(t *table) {
	if t.rule.KeepsPrompt() {
		return
	}
	slots := len(t.rows()) * tensor.BlockSlots
	for len(t.Positions) < slots {
		t.Positions = append(t.Positions, -1)
	}
	t.Positions = t.Positions[:slots]
	if t.rule.Scored() {
		t.Scores = resize(t.Scores, slots)
	}
	if t.rule.cachePositions {
		t.offsets = resize(t.offsets, slots)
	}
}

// resize cuts x to n elements, or appends zeros.
func resize[T any](x []T, n int) []T {
	if len(x) >= n {
		return x[:n]
	}
	return append(x, make([]T, n-len(x))...)
}

// Write stores the key (KDim) and value (VDim) of the token at position pos in the slot that the
// policy assigns. pos must be reserved and not committed. Writing it again before Commit undoes the
// step's writes from pos on.
func (s *Store) Write(layer, head, pos int, k, v []float32) {
	s.WriteRun(layer, head, pos, 1, k, len(k), v, len(v))
}

// WriteRun evicts and inserts m tokens at once, in place (EQUIP, appendix D.5). It is Write for the
// positions from pos on, with key and value of the i-th at k[i*ldk:] and v[i*ldv:]. Tokens of a
// step never take each other's slots while the policy has others, so any number of them may be
// committed.
func (s *Store) WriteRun(layer, head, pos, m int, k []float32, ldk int, v []float32, ldv int) {
	i := s.index(layer, head)
	if pos < s.tokens || m < 0 || m > s.tokens+s.staged-pos {
		panic(fmt.Sprintf("kvcache: write of positions [%d,%d), reserved are [%d,%d)", pos, pos+m, s.tokens, s.tokens+s.staged))
	}
	t := &s.tables[i]
	keeps, to, saved := t.rule.KeepsAll(), s.arena.Window(), s.arena.Window()
	if !keeps && m > 0 && s.undo.entries[i*s.undo.per+pos-s.tokens].slot > 0 {
		s.rewind(t, pos-s.tokens)
	}
	for j := 0; j < m; {
		slot, n, old, at := pos+j, m-j, []byte(nil), 0
		if keeps {
			n = min(n, tensor.BlockSlots-slot%tensor.BlockSlots)
		} else {
			slot, n, old, at = s.stageRun(t, slot, n)
		}
		if old != nil {
			old = saved.Edit(old)
		}
		t.layout.PutRun(to.Edit(t.rows()[slot/tensor.BlockSlots]), slot%tensor.BlockSlots, n, k[j*ldk:], ldk, v[j*ldv:], ldv, old, at)
		to.Close()
		saved.Close()
		for i := range n {
			s.updateHalf(t, slot+i)
		}
		s.reindex(t, slot, slot+n)
		if t.n < slot+n {
			t.n = slot + n
		}
		j += n
	}
}

// ParallelWrite reports whether several threads may write n reserved tokens of a head, from pos on, by
// calls of WriteRun that share no block of rows. If so, it has prepared the head for that, and all n
// tokens must be written.
func (s *Store) ParallelWrite(layer, head, pos, n int) bool {
	t := s.table(layer, head)
	if !t.rule.KeepsAll() || t.rule.Selector != nil || pos < s.tokens || pos+n > s.tokens+s.staged {
		return false
	}
	t.n = max(t.n, pos+n)
	return true
}

// WriteElsewhere records that a device writes n reserved tokens of every head of a layer, from pos on. It
// gives place the slot of token i of a head, unless the layer keeps all tokens, and the row of a block in
// row form where the device saves the row that it replaces there (nil: it saves none). It returns false for a
// policy whose slots a device does not write. Before a token of a Scored policy, that before is observed.
func (s *Store) WriteElsewhere(layer, pos, n int, place func(head, i, slot int, old []byte, at int)) bool {
	if pos < s.tokens || pos+n > s.tokens+s.staged {
		return false
	}
	together, _ := s.BatchedDecode(layer, pos, n)
	var r restored
	for head := s.heads.Lo; head < s.heads.Hi; head++ {
		t := s.table(layer, head)
		switch {
		case t.rule.Selector != nil || t.offsets != nil:
			return false
		case t.rule.KeepsAll():
			t.n = max(t.n, pos+n)
			continue
		}
		entries := s.undo.entries[s.index(layer, head)*s.undo.per+pos-s.tokens:][:n]
		if entries[0].slot > 0 {
			s.unwrite(t, pos-s.tokens, &r)
		}
		for i := range entries {
			slot, old, at := s.assign(t, pos+i)
			if t.window > 0 && together { // the row that the ring replaces has left every window, also after a rollback
				entries[i].old, old = -1, nil
			}
			place(head, i, slot, old, at)
			t.n = max(t.n, slot+1)
		}
	}
	s.restore(&r)
	return true
}

// Commit makes the first n tokens of the running step durable and discards the others. n = 0 is
// Rollback.
func (s *Store) Commit(n int) {
	if n < 0 || n > s.staged {
		panic(fmt.Sprintf("kvcache: commit of %d tokens, %d are reserved", n, s.staged))
	}
	if n < s.staged {
		s.rollback(n)
		s.states.Restore(s.tokens + n)
	}
	s.states.Settle(n, inOrder)
	s.tokens += n
	for i := 0; i < len(s.tables); i += s.heads.Len() { // all heads of a layer have one rule
		if s.tables[i].rule.Scored() {
			settleScores(s.tables[i:][:s.heads.Len()], n > 0)
		}
	}
	s.arena.Uncharge(s.undo.charge)
	s.staged, s.undo.charge = 0, 0
	s.undo.clear()
	s.states.Trim()
	s.trimTo(s.tokens)
}

// settleScores adds the attention of the step's last token to the scores of a layer's heads, if any token stays.
func settleScores(heads []table, stays bool) {
	for i := range heads {
		t := &heads[i]
		if len(t.attention) > 0 {
			if stays {
				t.rule.scored.Observe(&t.Head, t.attention)
			}
			t.attention = t.attention[:0]
		}
		t.before = nil
	}
}

// Rollback returns to the state of the last Commit: it restores overwritten rows, and frees the memory
// of the step.
func (s *Store) Rollback() { s.Commit(0) }

// Observe records the attention of the newest written token's query to each slot, summed over the
// query heads of the group, for Scored policies. It takes effect at Commit, or when the next token
// of the step is written. The slice is copied.
func (s *Store) Observe(layer, head int, attention []float32) {
	t := s.table(layer, head)
	if !t.rule.Scored() {
		return
	}
	t.attention = append(t.attention[:0], attention...)
}

// scoreBytes returns the size of the scores that keepScores stores in a step of several tokens.
func (s *Store) scoreBytes(staged int) (bytes int64) {
	if staged < 2 {
		return 0
	}
	for i := range s.tables {
		if t := &s.tables[i]; t.rule.Scored() {
			bytes += int64(staged) * 4 * int64(len(t.rows())*tensor.BlockSlots)
		}
	}
	return bytes
}

// BatchedDecode reports how the n tokens of a step from pos on may attend in a layer. If a policy
// evicts, a token may take a slot that another one still reads. Then each must be written, viewed
// and observed before the next. Otherwise all may be written first (together). If the views differ
// only in the newest slots, one view serves all tokens (causal): the i-th one reads all but its
// last n-1-i slots.
func (s *Store) BatchedDecode(layer, pos, n int) (together, causal bool) {
	t := s.table(layer, s.heads.Lo)
	switch {
	case n == 1:
		return true, false
	case t.window > 0:
		return n <= window.Slots(t.window)-t.window+1, false
	case t.rule.Scored() || t.rule.Slots(s.prompt, pos+n)-t.rule.Slots(s.prompt, pos) < n:
		return false, false
	}
	return true, t.rule.Selector == nil
}

// trimTo frees the blocks beyond the given number of tokens, so that ResidentBytes stays exact
// after a rollback. It also frees blocks of a prompt that have left a layer's window and ring.
func (s *Store) trimTo(tokens int) {
	undo := 0
	if s.overwrites(tokens) {
		undo = max(1, tokens-s.tokens)
	}
	for class, want := range s.undoNeed(undo) {
		if of := &s.undo.blocks[class]; want < len(*of) {
			s.arena.Release((*of)[want:])
			*of = (*of)[:want]
		}
	}
	if s.trimmed == s.changes+1 { // nothing has changed since a trim to the committed tokens
		return
	}
	rings := false
	for i := range s.tables {
		t := &s.tables[i]
		rings = rings || t.ring > 0
		if behind := (s.tokens - t.ring) / tensor.BlockSlots; t.ring > 0 && behind > t.freed && !s.absent(t) {
			s.arena.Release(t.rows()[t.freed:behind])
			clear(t.rows()[t.freed:behind])
			t.freed = behind
		}
		for j := range t.planes {
			p := &t.planes[j]
			want := p.room(t.rule.planeSlots(j, s.prompt, tokens))
			extra := len(p.blocks) - want
			if extra <= 0 {
				continue
			}
			s.arena.Release(p.blocks[want:])
			p.blocks = p.blocks[:want]
			s.changes++
			if j == rowsPlane {
				s.resizeTable(t)
				free := int64(extra) * tableBytes(t.rule)
				s.arena.Uncharge(free)
				s.charge -= free
			}
		}
	}
	if !rings && tokens == s.tokens { // of a running step, blocks beyond the committed tokens stay
		s.trimmed = s.changes + 1
	}
}
