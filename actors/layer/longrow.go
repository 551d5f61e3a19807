package layer

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// longRows are decode tasks over so many slots that several threads share each: its runs
// (tensor.Runs) are tasks of their own. Cut or not, the bits are the same.
type longRows struct {
	rows   []*longRow // the first n are in use
	n      int
	pieces []runPiece

	attend func(i int) // of a piece
}

// longRow is one token of some heads of one segment.
type longRow struct {
	task  attendTask
	runs  tensor.Runs
	count int                 // of runs
	view  *tensor.AttnScratch // of its blocks, until they are read
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

// blocks are those that a task of decode reads of a head, about: with several tokens as
// often.
func (l *longRows) blocks(index, head int, t attendTask) int {
	if t.s.Prefill {
		return 0
	}
	return t.n * t.s.Cache.Read(index, head)
}

// worthCutting says whether a task over so many blocks, of all tasks' blocks, would leave
// threads idle: it is longer than a run, and than a thread's share.
func worthCutting(blocks, all, threads int) bool {
	return blocks > tensor.RunBlocks && blocks*threads > all
}

// begin views the slots of r and takes the queries of `heads` heads.
func (r *longRow) begin(b *Processor, index, head int, q, query []float32, heads int, out []float32) {
	r.view = scratch.Get().(*tensor.AttnScratch)
	r.out = out
	blocks, slots, valid := r.task.s.Cache.View(index, head, r.task.s.Start+r.task.first, query, r.view)
	r.count = r.runs.Begin(q, heads, b.Dims.score(), b.Layout, blocks, slots, valid)
}

// cut makes the pieces: about two a thread, of whole runs.
func (l *longRows) cut(threads int) {
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

// fold ends the row, when its pieces have been attended to.
func (r *longRow) fold() {
	r.runs.Fold(r.out)
	scratch.Put(r.view)
	r.view, r.out = nil, nil
}
