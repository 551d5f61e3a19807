package tensor

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// AttnScratch is the working memory of one attending goroutine. The zero value is ready. It grows
// on demand and is then reused without allocation.
type AttnScratch struct {
	_      [64]byte
	tile   kernel.TileArgs
	step   kernel.Step
	soft   kernel.SoftmaxArgs
	values kernel.ValuesArgs
	whole  kernel.AttendArgs

	states   []float32 // memory of the next two
	runState           // of the current run
	before   runState  // of the runs before it, if folded
	folded   bool
	join     kernel.FoldArgs

	q      []float32               // [rows][KDim], if the tokens are not adjacent
	s      []([BlockSlots]float32) // [rows] scores, then probabilities
	mask   []uint64                // see Mask
	blocks [][]byte                // see Blocks
	ahead  []byte                  // the next block, which is prefetched; nil: none
	After  []byte                  // the block that the caller reads next, prefetched after the last one; nil: none
	Load   LoadRun                 // loads the blocks of the view in this scratch; nil: they are in memory. Attend resets it
	run    [RunBlocks][]byte       // a loaded run
	stream bool                    // rows read a block in memory order
	row    []float32               // see Row
	kept   []([BlockSlots]float32) // [blocks][rows] scores, see mass
	pages  []float32               // see ScorePages
	list   [][]byte                // see Gather
	masks  [][]uint64              // see Masks
	bits   []uint64                // of masks
	chosen chosenSlots             // see AttendChosen
	keys   []uint32                // see Chosen
	places []int32                 // see Chosen
	tops   []float32               // see Tops

	// For latent layouts:
	packed  []float32                              // see pack
	widened []float32                              // [64][KDim]
	wide    []float32                              // the current block: widened, or its own rows
	bySlot  *[BlockSlots][kernel.GroupRows]float32 // scores of a group of rows
	_       [64]byte
}

// attnRows bounds the (query, head) rows that walk the cache together in prefill, so that their
// queries, scores and outputs stay in the L2 cache.
const attnRows = 48

// Attend computes attention of one query token for g query heads that share one KV head: q
// [g][KDim], out [g][VDim], over the slots [0, n) in runs (see RunBlocks). valid is nil or has a
// bit per slot. Slots with a clear bit contribute nothing, and a block without set bits may be nil.
// score weighs each product with a key. A query without valid slots gives zeros.
//
// The g heads share every read of the cache. With s.Load, one run of blocks is loaded at a time.
func Attend(out, q []float32, g int, score Score, l KVLayout, blocks [][]byte, n int, valid []uint64, s *AttnScratch) {
	load := s.Load
	s.Load = nil
	checkSlots(l, blocks, n, g, valid, load)
	s.begin(l, g)
	q = q[:g*l.KDim]
	if l.Latent {
		s.pack(l, q, g)
	}
	if load == nil {
		s.pass(l, blocks, q, g, 0, n, n, valid, score)
	}
	for run := 0; load != nil && run*RunSlots < n; run++ {
		if run > 0 {
			s.endRun(l)
		}
		s.passLoaded(load, run, l, q, g, n, valid, score)
	}
	s.end(l).divide(out, l.VDim, l.VDim, 0, g, score)
}

// pass attends to the slots [first, end) of n. first is the start of a run.
func (s *AttnScratch) pass(l KVLayout, blocks [][]byte, q []float32, g, first, end, n int, valid []uint64, score Score) {
	s.stream = kernel.PrefetchAhead == 0 && g <= streamRows && !l.Latent
	whole, picked := pickAttend(kernel.Active.Attend, l, g), pickAttend(kernel.Active.Picked, l, g)
	if score.Cap != 0 { // the kernels of whole blocks do not cap
		whole, picked = nil, nil
	}
	if valid == nil {
		picked = nil
	}
	for b := first / BlockSlots; picked != nil && b < first/BlockSlots+pickedAhead; b++ {
		s.fetchPicked(l, blocks, b, n, valid)
	}
	for b := first / BlockSlots; b*BlockSlots < end; {
		if b%RunBlocks == 0 && b*BlockSlots > first {
			s.endRun(l)
		}
		if whole != nil {
			if m := wholeBlocks(b, end, valid); m > 0 {
				s.attendWhole(whole, l, blocks, q, b, m, n, score)
				b += m
				continue
			}
		}
		mask := prefixMask(n - b*BlockSlots)
		if valid != nil {
			mask &= valid[b]
		}
		if mask != 0 {
			if picked != nil {
				s.fetchPicked(l, blocks, b+pickedAhead, n, valid)
				s.attendPicked(picked, l, &blocks[b], q, 0, mask, score)
				b++
				continue
			}
			if next := b + 1; valid != nil && next*BlockSlots < n && !isPrefix(valid[next]) {
				s.ahead = nil
				s.fetchSome(l, blocks[next], valid[next])
			} else {
				s.ahead = s.next(l, blocks, b, n)
			}
			s.scoreSome(l, blocks[b], q, 0, g, mask)
			s.soften(l, blocks[b], 0, g, mask, score)
			s.accumulate(l, blocks[b], 0, g, mask)
		}
		b++
	}
	s.ahead, s.stream = nil, false
}

// next returns the block to prefetch while b is read; nil: none.
func (s *AttnScratch) next(l KVLayout, blocks [][]byte, b, n int) []byte {
	switch b++; {
	case l.Latent:
	case b*BlockSlots < n:
		return blocks[b]
	case len(s.After) >= l.BlockBytes():
		return s.After
	}
	return nil
}

// wholeBlocks returns the end of the successive blocks from b on, at most attendBlocks, in which all
// slots are valid.
func wholeBlocks(b, n int, valid []uint64) int {
	end := min(n/BlockSlots, b+attendBlocks)
	for i := b; i < end && valid != nil; i++ {
		if valid[i] != ^uint64(0) {
			end = i
		}
	}
	return max(0, end-b)
}

// attendBlocks bounds a kernel call, during which the garbage collector must wait for the thread.
const attendBlocks = 256

// attendWhole attends to the m whole blocks from b on in one kernel call.
func (s *AttnScratch) attendWhole(f func(*kernel.AttendArgs), l KVLayout, blocks [][]byte, q []float32, b, m, n int, score Score) {
	a := s.attendArgs(l, q, 0, score)
	a.Block = uintptr(l.BlockBytes())
	if kernel.PrefetchAhead > 0 { // also prefetch blocks that are adjacent in memory
		a.Block = ^uintptr(0)
	}
	a.Left, a.Run, a.Columns = uintptr(RunBlocks-b%RunBlocks), RunBlocks, uintptr(len(s.o))
	if m > int(a.Left) {
		before := s.folds(l)
		a.BeforeO, a.Columns = unsafe.Pointer(&before.o[0]), a.Columns*2
		a.BeforeSum, a.BeforeMax = unsafe.Pointer(&before.sum[0]), unsafe.Pointer(&before.max[0])
	}
	a.Blocks, a.N = unsafe.Pointer(&blocks[b]), uintptr(m)
	after := s.next(l, blocks, b+m-1, n)
	if len(after) < l.BlockBytes() {
		after = blocks[b+m-1]
	}
	a.After = unsafe.Pointer(&after[0])
	f(a)
	*a = kernel.AttendArgs{}
}

// pickedAhead is how many blocks ahead selected slots are prefetched.
const pickedAhead = 2

// fetchPicked prefetches the valid slots of block b, if it exists and some slots are invalid.
func (s *AttnScratch) fetchPicked(l KVLayout, blocks [][]byte, b, n int, valid []uint64) {
	if b*BlockSlots < n && valid[b] != ^uint64(0) {
		s.fetchSome(l, blocks[b], valid[b])
	}
}

// attendPicked attends to the slots of a block in mask in one kernel call, for the rows from r0 on.
func (s *AttnScratch) attendPicked(f func(*kernel.AttendArgs), l KVLayout, block *[]byte, q []float32, r0 int, mask uint64, score Score) {
	a := s.attendArgs(l, q, r0, score)
	a.Blocks, a.Valid = unsafe.Pointer(block), mask
	f(a)
	*a = kernel.AttendArgs{}
}

// attendArgs sets the arguments of a kernel that do not depend on the blocks, for the rows from r0 on.
func (s *AttnScratch) attendArgs(l KVLayout, q []float32, r0 int, score Score) *kernel.AttendArgs {
	a := &s.whole
	a.Q, a.O, a.P = unsafe.Pointer(&q[r0*l.KDim]), unsafe.Pointer(&s.o[r0*l.VDim]), unsafe.Pointer(&s.s[r0])
	a.Sum, a.Max = unsafe.Pointer(&s.sum[r0]), unsafe.Pointer(&s.max[r0])
	a.KDim, a.VDim, a.Scale = uintptr(l.KDim), uintptr(l.VDim), score.kernelScale()
	a.Panel, a.Scales = uintptr(kernel.PanelRows*l.KDim*l.elem()), uintptr(l.scalesAt())
	return a
}

// pickAttend returns the widest kernel for g heads; nil: none.
func pickAttend(kernels map[DType]kernel.AttendKernels, l KVLayout, g int) func(*kernel.AttendArgs) {
	all, ok := kernels[l.Type]
	if !ok || l.Latent || g > kernel.AttendRows {
		return nil
	}
	for i := len(all) - 1; i >= 0; i-- {
		if f := all[i][g-1]; f != nil && l.VDim%(32<<i) == 0 {
			return f
		}
	}
	return nil
}

// streamRows is the number of rows up to which scores are computed a panel of slots at a time, so
// that the CPU's prefetcher can follow. More rows take four panels at once, since arithmetic then
// dominates.
const streamRows = 2

// AttendCausal is Attend for nq successive tokens. Token i has its queries at q[i*ldq:] as
// [g][KDim], attends to the slots [0, first+i] and writes out[i*ldo:] as [g][VDim]. With window > 0 it
// attends to the last window of these slots, and with window < 0 to those of its chunk, from the last
// multiple of -window on. Blocks outside of all windows may be nil. The bits are those of
// nq calls of Attend; the cache is read once per few tokens.
func AttendCausal(out []float32, ldo int, q []float32, ldq int, nq, first, window, g int, score Score,
	l KVLayout, blocks [][]byte, s *AttnScratch) {
	checkAttend(l, blocks, windowStart(first, window), first+nq, g)
	step := l.TokensTogether(g)
	for i, n := 0, 0; i < nq; i += n {
		from := 0
		if n = min(step, nq-i); window < 0 {
			from = windowStart(first+i, window)
			n = min(n, from-window-first-i)
		}
		s.causal(out[i*ldo:], ldo, q[i*ldq:], ldq, n, first+i, from, max(window, 0), g, score, l, blocks)
	}
}

// TokensTogether returns the number of tokens of g query heads that walk the cache together in
// AttendCausal.
func (l KVLayout) TokensTogether(g int) int {
	if l.Latent {
		return max(1, latentRows/g)
	}
	return max(1, attnRows/g)
}

// gather copies the queries of nq tokens to adjacent memory.
func (s *AttnScratch) gather(l KVLayout, q []float32, ldq, nq, g int) {
	width := g * l.KDim
	if need := nq * width; cap(s.q) < need {
		s.q = make([]float32, need)
	}
	s.q = s.q[:nq*width]
	for i := range nq {
		copy(s.q[i*width:][:width], q[i*ldq:])
	}
	if l.Latent {
		s.pack(l, s.q, nq*g)
	}
}

// causal is AttendCausal for tokens that walk the cache together. None of them attends to slots before
// from.
func (s *AttnScratch) causal(out []float32, ldo int, q []float32, ldq int, nq, first, from, window, g int,
	score Score, l KVLayout, blocks [][]byte) {
	s.begin(l, nq*g)
	s.gather(l, q, ldq, nq, g)
	for b := max(from, windowStart(first, window)) / BlockSlots; b*BlockSlots < first+nq; b++ {
		if b%RunBlocks == 0 {
			s.endRun(l)
		}
		// Token i attends to first+i+1-b*BlockSlots slots of this block: the first tokens possibly to
		// none, those from full on to all. A window masks the first hidden+i slots: tokens from full to
		// whole attend to all slots, and those from stop on to none.
		seen := first + 1 - b*BlockSlots
		some := min(nq, max(0, 1-seen))
		full := min(nq, max(0, BlockSlots-seen))
		whole, stop, hidden := nq, nq, 0
		if window > 0 {
			hidden = seen - window
			whole = max(full, min(nq, 1-hidden))
			stop = max(some, min(nq, BlockSlots-hidden))
		}
		outside := prefixMask(max(0, from-b*BlockSlots))
		if outside != 0 {
			whole = full
		}
		s.score(l, blocks[b], s.q, some*g, stop*g, min(BlockSlots, seen+stop-1))
		for i := some; i < stop; i++ {
			if i >= full && i < whole {
				continue
			}
			mask := prefixMask(seen+i) &^ outside
			if window > 0 {
				mask &^= prefixMask(max(0, hidden+i))
			}
			s.soften(l, blocks[b], i*g, (i+1)*g, mask, score)
			s.accumulate(l, blocks[b], i*g, (i+1)*g, mask)
		}
		if all := min(whole, stop); full < all {
			s.soften(l, blocks[b], full*g, all*g, prefixMask(BlockSlots), score)
			s.accumulate(l, blocks[b], full*g, all*g, prefixMask(BlockSlots))
		}
	}
	state := s.end(l)
	for i := range nq {
		state.divide(out[i*ldo:], l.VDim, l.VDim, i*g, (i+1)*g, score)
	}
}

// windowStart returns the first slot in the window of a token at slot first, and so of any later token.
func windowStart(first, window int) int {
	switch {
	case window > 0:
		return max(0, first+1-window)
	case window < 0:
		return first - first%-window
	}
	return 0
}

// checkSlots is checkAttend for the valid slots among [0, n).
func checkSlots(l KVLayout, blocks [][]byte, n, g int, valid []uint64, load LoadRun) {
	if valid != nil && len(valid) < (n+63)/64 {
		panic(fmt.Sprintf("tensor: validity of %d slots in %d words", n, len(valid)))
	}
	if g < 1 || n > len(blocks)*BlockSlots {
		panic(fmt.Sprintf("tensor: attention of %d heads over %d slots in %d blocks", g, n, len(blocks)))
	}
	if err := l.Validate(); err != nil {
		panic(err)
	}
	for i := range (n + BlockSlots - 1) / BlockSlots {
		if load == nil && (valid == nil || valid[i] != 0) {
			l.check(blocks[i], 0)
		}
	}
}

func checkAttend(l KVLayout, blocks [][]byte, start, n, g int) {
	if err := l.Validate(); err != nil {
		panic(err)
	}
	if g < 1 || n > len(blocks)*BlockSlots {
		panic(fmt.Sprintf("tensor: attention of %d heads over %d slots in %d blocks", g, n, len(blocks)))
	}
	for i := start / BlockSlots; i*BlockSlots < n; i++ {
		l.check(blocks[i], 0)
	}
}

// prefixMask has the lowest n of 64 bits set.
func prefixMask(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<n - 1
}

func (s *AttnScratch) begin(l KVLayout, rows int) {
	if cap(s.s) < rows {
		s.s = make([][BlockSlots]float32, rows)
	}
	s.s, s.folded = s.s[:rows], false
	if need := 2 * stateFloats(rows, l.VDim); len(s.states) < need {
		s.states = lines(need)
	}
	twoStates(&s.runState, &s.before, s.states, rows, l.VDim)
	s.reset()
}

// score computes q.k of the rows [r0, r1) and at least the first n slots into s.s. Slots beyond n
// and invalid slots are undefined.
func (s *AttnScratch) score(l KVLayout, block []byte, q []float32, r0, r1, n int) {
	if l.Latent {
		s.scoreLatent(l, block, r0, r1, 0, n)
		return
	}
	panels := (n + kernel.PanelRows - 1) / kernel.PanelRows
	if panels == 3 {
		panels = 4
	}
	s.scorePanels(l, block, q, r0, r1, 0, panels)
}

// scoreSome is score for the slots in mask. It does not read panels without any of them.
func (s *AttnScratch) scoreSome(l KVLayout, block []byte, q []float32, r0, r1 int, mask uint64) {
	if isPrefix(mask) {
		s.score(l, block, q, r0, r1, bits.Len64(mask))
		return
	}
	step := 1
	if !l.Latent {
		step = kernel.PanelRows
	}
	for lo := 0; mask>>lo != 0; {
		lo += bits.TrailingZeros64(mask>>lo) / step * step
		hi := lo
		for hi < BlockSlots && mask>>hi&prefixMask(step) != 0 {
			hi += step
		}
		if l.Latent {
			s.scoreLatent(l, block, r0, r1, lo, hi)
		} else {
			s.scorePanels(l, block, q, r0, r1, lo/kernel.PanelRows, hi/kernel.PanelRows)
		}
		lo = hi
	}
}

// isPrefix reports whether the bits of mask are the lowest ones.
func isPrefix(mask uint64) bool { return mask&(mask+1) == 0 }

// fetchSome prefetches the bytes that attention to the slots in mask will read.
func (s *AttnScratch) fetchSome(l KVLayout, block []byte, mask uint64) {
	const line = 64
	fetch := func(lo, hi int) {
		if lo &^= line - 1; lo < hi {
			kernel.Active.Fetch(&block[lo], min((hi+line-1)&^(line-1), len(block))-lo)
		}
	}
	panel, value, key := kernel.PanelRows*l.KDim*l.elem(), l.VDim*l.elem(), l.KDim*l.elem()
	for p := 0; p < BlockSlots/kernel.PanelRows && !l.Latent; p++ {
		if mask>>(p*kernel.PanelRows)&prefixMask(kernel.PanelRows) != 0 {
			fetch(p*panel, (p+1)*panel)
		}
	}
	for mask != 0 {
		lo := bits.TrailingZeros64(mask)
		run := bits.TrailingZeros64(^(mask >> lo))
		mask &^= prefixMask(run) << lo
		if l.Latent {
			fetch(lo*key, (lo+run)*key)
		} else {
			fetch(l.valuesAt()+lo*value, l.valuesAt()+(lo+run)*value)
		}
	}
}

// scorePanels is score for the panels [begin, end) of a layout that is not latent.
func (s *AttnScratch) scorePanels(l KVLayout, block []byte, q []float32, r0, r1, begin, end int) {
	a := &s.tile
	a.Panel, a.Advance = uintptr(kernel.PanelRows*l.KDim*l.elem()), uintptr(kernel.PanelRows*kernel.TileColumns*l.elem())
	a.LdX, a.LdOut = uintptr(l.KDim)*4, BlockSlots*4
	s.step.K = uintptr(l.KDim)
	a.Steps, a.NSteps = &s.step, 1
	for r := r0; r < r1; {
		left := (r1 - r + kernel.MaxTileTokens - 1) / kernel.MaxTileTokens
		c := (r1 - r) / left
		most := end
		if s.stream && r == r0 {
			most = 1
		}
		for p := begin; p < end; {
			step, f := kernel.Active.Pick(l.Type, min(most, end-p), c)
			a.W = unsafe.Pointer(&block[p*int(a.Panel)])
			a.X = unsafe.Pointer(&q[r*l.KDim])
			a.Out = unsafe.Pointer(&s.s[r][p*kernel.PanelRows])
			a.Prefetch, a.PrefetchStep = uintptr(a.W), 0
			if s.ahead != nil && r == r0 {
				a.Prefetch, a.PrefetchStep = uintptr(unsafe.Pointer(&s.ahead[p*int(a.Panel)])), a.Advance
				if kernel.Active.Spread[l.Type] && c >= kernel.SpreadTokens {
					a.PrefetchStep, a.PrefetchGap = a.Advance*uintptr(step), lineBytes
				}
			}
			a.Panels, a.Tokens = step, c
			f(a)
			p += step
		}
		r += c
	}
}

// scaledApart reports whether rows are read as integers, so that scores and probabilities must be
// multiplied by the rows' scales.
func (l KVLayout) scaledApart() bool { return l.Type == Int8 && !l.Latent }

// soften turns the scores of the rows [r0, r1) into probabilities relative to the largest score so
// far, and rescales the previous sums.
func (s *AttnScratch) soften(l KVLayout, block []byte, r0, r1 int, mask uint64, score Score) {
	if r0 == r1 {
		return
	}
	a := &s.soft
	a.S, a.Sum, a.Max, a.O = &s.s[r0], &s.sum[r0], &s.max[r0], &s.o[r0*l.VDim]
	a.VDim, a.Rows, a.Valid, a.Scale = uintptr(l.VDim), uintptr(r1-r0), mask, score.kernelScale()
	if l.scaledApart() {
		a.Keys, a.Values = l.scales(block, 0), l.scales(block, 1)
	}
	if score.Cap != 0 {
		for r := r0; r < r1; r++ {
			if a.Keys != nil {
				kernel.Active.Mul64(&s.s[r], a.Keys)
			}
			score.Of(s.s[r][:])
		}
		a.Keys = nil
	}
	kernel.Active.Softmax(a)
	*a = kernel.SoftmaxArgs{}
}

// accumulate adds the values of the slots in mask to the rows [r0, r1), one run of adjacent slots
// after the other.
func (s *AttnScratch) accumulate(l KVLayout, block []byte, r0, r1 int, mask uint64) {
	a := &s.values
	dt, e, ldv := l.Type, l.elem(), l.VDim
	var values []byte
	if l.Latent { // widened by score
		dt, e, ldv = F32, 4, l.KDim
		values = unsafe.Slice((*byte)(unsafe.Pointer(&s.wide[0])), 4*len(s.wide))
	} else {
		values = block[l.valuesAt():]
	}
	a.LdV, a.LdO = uintptr(ldv*e), uintptr(l.VDim)*4
	for mask != 0 {
		lo := bits.TrailingZeros64(mask)
		run := bits.TrailingZeros64(^(mask >> lo))
		mask &^= prefixMask(run) << lo
		a.Slots = uintptr(run)
		for r := r0; r < r1; {
			left := (r1 - r + kernel.MaxTileTokens - 1) / kernel.MaxTileTokens
			c := (r1 - r) / left
			if s.stream && r == r0 && l.VDim > 64 {
				c = min(c, wholeRows)
			}
			a.P = unsafe.Pointer(&s.s[r][lo])
			for col := 0; col < l.VDim; {
				cols, f := kernel.Active.PickValues(dt, l.VDim-col, c)
				a.V = unsafe.Pointer(&values[(lo*ldv+col)*e])
				a.O = unsafe.Pointer(&s.o[r*l.VDim+col])
				a.Prefetch = a.V
				if s.ahead != nil && r == r0 {
					a.Prefetch = unsafe.Pointer(&s.ahead[l.valuesAt()+(lo*l.VDim+col)*e])
				}
				a.Rows, a.Cols = c, cols
				f(a)
				col += cols
			}
			r += c
		}
	}
}

// wholeRows is the maximum number of rows for the kernels of 128 value columns.
const wholeRows = 2

// end ends the last run and returns the state that remains to be divided.
func (s *AttnScratch) end(l KVLayout) *runState {
	if !s.folded {
		return &s.runState
	}
	s.endRun(l)
	return &s.before
}
