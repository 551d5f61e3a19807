package tensor

import (
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
)

// RunBlocks is the number of blocks in a run, counted in the list of blocks that is read. The sums
// of attention over slots are cut into runs. Each run is a softmax of its own, from its own start,
// and the runs are folded in order. So threads can share one long sequence, and a sequence of one
// run has the bits of one chain (docs/decisions/canonical-arithmetic.md).
const (
	RunBlocks = 16
	RunSlots  = RunBlocks * BlockSlots
)

// LoadRun sets dst to the blocks of one run of a list: RunBlocks blocks, fewer in the last run. Blocks may
// be stored in the scratch; they are then valid until its next use. Slots outside the list's mask are
// undefined. Calls may be concurrent, and may repeat a run, each with its own scratch.
type LoadRun = func(run int, dst [][]byte, s *AttnScratch)

// runState is the state of attention's rows after some slots.
type runState struct {
	o   []float32      // [rows][VDim], not yet divided by sum
	max []float32      // [rows]
	sum []kernel.Lanes // [rows]
}

// reset sets the state before any slot.
func (a *runState) reset() {
	clear(a.o)
	clear(a.sum)
	for i := range a.max {
		a.max[i] = kernel.NegInf
	}
}

// stateFloats returns the size of a runState: whole cache lines, since threads write adjacent states.
func stateFloats(rows, vdim int) int { return (rows*(len(kernel.Lanes{})+vdim)+rows+15)/16*16 + 16 }

// twoStates places two states in m, with adjacent o.
func twoStates(a, b *runState, m []float32, rows, vdim int) {
	sums := unsafe.Slice((*kernel.Lanes)(unsafe.Pointer(&m[0])), 2*rows)
	a.sum, b.sum = sums[:rows:rows], sums[rows:]
	m = m[len(sums)*len(kernel.Lanes{}):]
	a.o, b.o = m[:rows*vdim:rows*vdim], m[rows*vdim:][:rows*vdim:rows*vdim]
	m = m[2*rows*vdim:]
	a.max, b.max = m[:rows:rows], m[rows:][:rows:rows]
}

// rows returns the state of the rows [r0, r1).
func (a *runState) rows(r0, r1, vdim int) runState {
	return runState{o: a.o[r0*vdim : r1*vdim], max: a.max[r0:r1], sum: a.sum[r0:r1]}
}

// none reports whether row r has seen no slot.
func (a *runState) none(r int) bool { return a.max[r] == kernel.NegInf && a.sum[r] == (kernel.Lanes{}) }

// fold folds the next run b into a and resets b.
func (a *runState) fold(b *runState, vdim int, args *kernel.FoldArgs) {
	*args = kernel.FoldArgs{
		O: unsafe.Pointer(&a.o[0]), Sum: unsafe.Pointer(&a.sum[0]), Max: unsafe.Pointer(&a.max[0]),
		RunO: unsafe.Pointer(&b.o[0]), RunSum: unsafe.Pointer(&b.sum[0]), RunMax: unsafe.Pointer(&b.max[0]),
		Rows: uintptr(len(a.max)), VDim: uintptr(vdim),
	}
	kernel.Active.Fold(args)
	*args = kernel.FoldArgs{}
}

// divide writes the rows [r0, r1), one of each head of score, divided by their sums.
func (a *runState) divide(out []float32, ldo, vdim, r0, r1 int, score Score) {
	for r := r0; r < r1; r++ {
		o := out[(r-r0)*ldo:][:vdim]
		if a.none(r) {
			clear(o)
			continue
		}
		copy(o, a.o[r*vdim:])
		kernel.Active.ScaleBy(o, 1/(a.sum[r].Sum()+score.sink(r-r0, a.max[r])))
	}
}

// endRun folds the current run into the previous ones and starts the next.
func (s *AttnScratch) endRun(l KVLayout) { s.folds(l).fold(&s.runState, l.VDim, &s.join) }

// passLoaded loads one run of a list of n slots, and computes its attention. valid is the list's mask, not
// nil.
func (s *AttnScratch) passLoaded(load LoadRun, run int, l KVLayout, q []float32, g, n int, valid []uint64, score Score) {
	n = min(n-run*RunSlots, RunSlots)
	blocks := s.run[:(n+BlockSlots-1)/BlockSlots]
	load(run, blocks, s)
	s.pass(l, blocks, q, g, 0, n, n, valid[run*RunBlocks:], score)
}

// folds returns the state into which runs are folded.
func (s *AttnScratch) folds(l KVLayout) *runState {
	if !s.folded {
		s.before.reset()
		s.folded = true
	}
	return &s.before
}

// Runs is attention of one token whose runs are computed separately, by several threads. The zero
// value is ready. Its memory, one state per run, is reused.
type Runs struct {
	memory []float32 // of states
	states []runState
	join   kernel.FoldArgs
	q      []float32
	g, n   int
	score  Score
	l      KVLayout
	blocks [][]byte
	valid  []uint64
	load   LoadRun
}

// Begin has the arguments of [Attend], which must not change until Fold. It returns the number of runs.
// load loads the blocks; nil: they are in memory.
func (r *Runs) Begin(q []float32, g int, score Score, l KVLayout, blocks [][]byte, n int, valid []uint64, load LoadRun) int {
	checkSlots(l, blocks, n, g, valid, load)
	r.load = load
	r.q, r.g, r.n, r.score, r.l, r.blocks, r.valid = q[:g*l.KDim], g, n, score, l, blocks, valid
	runs := (n + RunSlots - 1) / RunSlots
	if need := runs * 2 * stateFloats(g, l.VDim); len(r.memory) < need {
		r.memory = lines(need)
	}
	for len(r.states) < runs {
		r.states = append(r.states, runState{})
	}
	var unused runState
	for i, size := 0, 2*stateFloats(g, l.VDim); i < runs; i++ {
		twoStates(&r.states[i], &unused, r.memory[i*size:][:size], g, l.VDim)
	}
	return runs
}

// Attend computes the runs [lo, hi). It may be called concurrently for different runs, each call
// with its own scratch.
func (r *Runs) Attend(lo, hi int, s *AttnScratch) {
	s.begin(r.l, r.g)
	if r.l.Latent {
		s.pack(r.l, r.q, r.g)
	}
	own := s.runState
	for i := lo; i < hi; i++ {
		s.runState = r.states[i]
		s.reset()
		if r.load != nil {
			s.passLoaded(r.load, i, r.l, r.q, r.g, r.n, r.valid, r.score)
			continue
		}
		s.pass(r.l, r.blocks, r.q, r.g, i*RunSlots, min(r.n, (i+1)*RunSlots), r.n, r.valid, r.score)
	}
	s.runState = own
}

// Fold writes the result of Attend after all runs have been computed.
func (r *Runs) Fold(out []float32) {
	if r.n == 0 {
		clear(out[:r.g*r.l.VDim])
		return
	}
	runs := r.states[:(r.n+RunSlots-1)/RunSlots]
	for i := 1; i < len(runs); i++ {
		runs[0].fold(&runs[i], r.l.VDim, &r.join)
	}
	runs[0].divide(out, r.l.VDim, r.l.VDim, 0, r.g, r.score)
	r.q, r.blocks, r.valid, r.load = nil, nil, nil, nil
}
