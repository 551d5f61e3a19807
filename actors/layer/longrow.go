package layer

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// longRows are tasks of one row each, with enough slots that several threads share a task: every run of slots
// (tensor.Runs) can be computed separately. Splitting does not change the bits.
type longRows struct {
	rows   []*longRow // the first n are in use
	n      int
	pieces []runPiece

	attend func(i int) // attends to one piece
}

// longRow is one token of a segment, for a group of heads.
type longRow struct {
	task  attendTask
	runs  tensor.Runs
	count int                 // number of runs of slots
	view  *tensor.AttnScratch // holds its blocks until all pieces are done
	out   []float32
}

type runPiece struct {
	row    *longRow
	lo, hi int
}

func (l *longRows) init() {
	l.attend = func(i int) {
		sc := scratch.Get().(*tensor.AttnScratch)
		defer scratch.Put(sc)
		p := l.pieces[i]
		p.row.runs.Attend(p.lo, p.hi, sc)
	}
}

func (l *longRows) reset() { l.n, l.pieces = 0, l.pieces[:0] }

func (l *longRows) add(t attendTask) *longRow {
	if l.n == len(l.rows) {
		l.rows = append(l.rows, new(longRow))
	}
	r := l.rows[l.n]
	r.task = t
	l.n++
	return r
}

// blocks estimates the number of blocks that a decode task reads. Every token of the task reads
// them again.
func (l *longRows) blocks(t attendTask) int {
	if t.s.Prefill {
		return 0
	}
	return t.n * t.s.Cache.Read(t.cache, t.unit)
}

// worthSplitting reports whether a task over this number of blocks, out of all tasks' blocks, would
// leave threads idle: it must be longer than one run and than a thread's share.
func worthSplitting(blocks, all, threads int) bool {
	return blocks > tensor.RunBlocks && blocks*threads > all
}

// mayBeLong reports whether a decode row, or the only row of a prompt, may read more than one run of slots. A head
// has at most one slot per token.
func mayBeLong(segments []Segment) bool {
	for i := range segments {
		if s := &segments[i]; (!s.Prefill || s.N == 1) && s.Start+s.N > tensor.RunBlocks*tensor.BlockSlots {
			return true
		}
	}
	return false
}

// begin views the slots of r and stores the queries of the given number of heads.
func (r *longRow) begin(b *Processor, score tensor.Score, index, head int, q, query []float32, heads int, out []float32) {
	r.view = scratch.Get().(*tensor.AttnScratch)
	r.out = out
	blocks, slots, valid := r.task.s.Cache.View(index, head, r.task.s.Start+r.task.first, query, r.view)
	r.count = r.runs.Begin(q, heads, score, b.Layout, blocks, slots, valid, r.view.Load)
	r.view.Load = nil
}

// beginPrompt is begin for a row of a prompt, which attends to all tokens up to its own.
func (r *longRow) beginPrompt(b *Processor, score tensor.Score, blocks [][]byte, q, out []float32) {
	r.view, r.out = scratch.Get().(*tensor.AttnScratch), out
	r.count = r.runs.Begin(q, b.Dims.group(), score, b.Layout, blocks, r.task.s.Start+1, nil, nil)
}

// split divides the rows into pieces of whole runs, about two pieces per thread.
func (l *longRows) split(threads int) {
	all := 0
	for _, r := range l.rows[:l.n] {
		all += r.count
	}
	step := max(1, all/(2*threads))
	for _, r := range l.rows[:l.n] {
		for lo := 0; lo < r.count; lo += step {
			l.pieces = append(l.pieces, runPiece{r, lo, min(lo+step, r.count)})
		}
	}
}

// fold combines the results of all pieces of the row.
func (r *longRow) fold() {
	r.runs.Fold(r.out)
	scratch.Put(r.view)
	r.view, r.out = nil, nil
}
