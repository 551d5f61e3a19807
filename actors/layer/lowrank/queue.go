package lowrank

import "github.com/shoal-llm/shoal/internal/engine/tensor"

// Queue collects the products of matrices that read the same input, and computes those of all adapters
// together: one parallel region for all A, one for all B, one for the sums. The zero Queue is ready.
// It reuses its memory.
type Queue struct {
	jobs   []job
	groups []tensor.Group
	t      []float32 // (rows of all jobs, ld): s (A x), padded with zeros
	ld     int
	d      []float32 // of each job (rows, r1): B t
	rows   []jobRow  // all rows of all jobs
	add    func(i int)

	nodes [][]float32 // Partial: per tree node, A x of all its rows
	views [][]float32
	sum   []float32 // the sum of the nodes of all ranks
}

// job is the product of one adapter's rows.
type job struct {
	pair   *Pair
	lo, hi int // rows of x and y
	r0, r1 int // rows of B
	y      []float32
	ldy    int
	t, d   int // first row in Queue.t, first element in Queue.d
}

type jobRow struct{ job, row int32 }

// Add queues rows [r0, r1) of a matrix of a layer for the rows [lo, hi) of the step. Element r of row t
// is added to y[t*ldy+r]. r0 is a multiple of tensor.RowGrain.
func (q *Queue) Add(all []Rows, layer int, m Matrix, lo, hi, r0, r1 int, y []float32, ldy int) {
	if r0 >= r1 {
		return
	}
	for _, rows := range all {
		p := rows.Adapter.Layers[layer][m]
		if from, to := max(lo, rows.Lo), min(hi, rows.Hi); p != nil && from < to {
			q.jobs = append(q.jobs, job{pair: p, lo: from, hi: to, r0: r0, r1: r1, y: y, ldy: ldy})
		}
	}
}

// Run computes the queued products. Row t of their input is at x[t*ldx:].
func (q *Queue) Run(pool *tensor.Pool, x []float32, ldx int) {
	if len(q.jobs) == 0 {
		return
	}
	q.place()
	for _, dt := range [...]tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		q.groups = q.groups[:0]
		for i := range q.jobs {
			if j := &q.jobs[i]; j.pair.A.Type == dt && q.sharedWith(i) < 0 {
				q.groups = append(q.groups, tensor.Group{Y: q.t[j.t*q.ld:], LdY: q.ld, W: j.pair.A, T0: j.lo, T1: j.hi})
			}
		}
		pool.MatMulGroups(q.groups, x, ldx)
	}
	for i := range q.jobs {
		if j := &q.jobs[i]; q.sharedWith(i) < 0 {
			tensor.Scale(q.t[j.t*q.ld:(j.t+j.hi-j.lo)*q.ld], j.pair.Scale)
		}
	}
	q.finish(pool)
}

// sharedWith returns the earlier job with the same A x as job i, or -1.
func (q *Queue) sharedWith(i int) int {
	if j := &q.jobs[i]; j.pair.Fused {
		for k := range q.jobs[:i] {
			if o := &q.jobs[k]; o.pair.A == j.pair.A && o.lo == j.lo && o.hi == j.hi {
				return k
			}
		}
	}
	return -1
}

// place gives every job its memory.
func (q *Queue) place() {
	t, d := 0, 0
	q.ld, q.rows = 0, q.rows[:0]
	for i := range q.jobs {
		j := &q.jobs[i]
		n := j.hi - j.lo
		q.ld = max(q.ld, Padded(j.pair.Rank))
		if o := q.sharedWith(i); o >= 0 {
			j.t = q.jobs[o].t
		} else {
			j.t, t = t, t+n
		}
		j.d, d = d, d+n*j.r1
		for r := range n {
			q.rows = append(q.rows, jobRow{int32(i), int32(r)})
		}
	}
	q.t, q.d = grow(q.t, t*q.ld), grow(q.d, d)
	clear(q.t)
}

// minParallelRows is the number of rows from which the sums are divided among threads.
const minParallelRows = 4

// finish multiplies q.t by B and adds the products.
func (q *Queue) finish(pool *tensor.Pool) {
	for left := len(q.jobs); left > 0; {
		q.groups = q.groups[:0]
		var of *tensor.Weight // the jobs of one call have its type and its columns
		for i := range q.jobs {
			j := &q.jobs[i]
			b := j.pair.B
			if j.t < 0 || of != nil && (b.Type != of.Type || b.Cols != of.Cols) {
				continue
			}
			of, left = b, left-1
			q.groups = append(q.groups, tensor.Group{Y: q.d[j.d:], LdY: j.r1, W: b, T0: j.t, T1: j.t + j.hi - j.lo, R0: j.r0, R1: j.r1})
			j.t = -1
		}
		pool.MatMulGroups(q.groups, q.t, q.ld)
	}
	if q.add == nil {
		q.add = func(i int) {
			j, row := &q.jobs[q.rows[i].job], int(q.rows[i].row)
			at := (j.lo + row) * j.ldy
			tensor.Add(j.y[at+j.r0:at+j.r1], q.d[j.d+row*j.r1+j.r0:j.d+(row+1)*j.r1])
		}
	}
	if len(q.rows) < minParallelRows {
		for i := range q.rows {
			q.add(i)
		}
	} else {
		pool.Run(len(q.rows), q.add)
	}
	clear(q.jobs)
	q.jobs = q.jobs[:0]
}

// Partial computes this rank's tree nodes of A x for a matrix whose columns are divided among the ranks.
// x[t*ldx] is the first of this rank's columns of row t. nodes is their number. Nodes returns them, and
// the sum over all ranks goes to Total.
func (q *Queue) Partial(pool *tensor.Pool, all []Rows, layer int, m Matrix, nodes int, x []float32, ldx int) {
	n := 0
	for _, rows := range all {
		if p := rows.Adapter.Layers[layer][m]; p != nil {
			n += (rows.Hi - rows.Lo) * p.Rank
		}
	}
	for len(q.nodes) < nodes {
		q.nodes, q.views = append(q.nodes, nil), append(q.views, nil)
	}
	q.nodes, q.sum = q.nodes[:nodes], grow(q.sum, n)
	for i := range q.nodes {
		q.nodes[i] = grow(q.nodes[i], n)
	}
	at := 0
	for _, rows := range all {
		p := rows.Adapter.Layers[layer][m]
		if p == nil {
			continue
		}
		size := (rows.Hi - rows.Lo) * p.Rank
		if p.A != nil && nodes > 0 {
			for i := range q.nodes {
				q.views[i] = q.nodes[i][at : at+size]
			}
			pool.MatMulPartial(q.views[:nodes], p.A, x[rows.Lo*ldx:], ldx, rows.Hi-rows.Lo)
		}
		at += size
	}
}

// Nodes returns the result of the last Partial.
func (q *Queue) Nodes() [][]float32 { return q.nodes }

// Total returns the memory for the sum of all ranks' nodes. It is empty if no row needs one.
func (q *Queue) Total() []float32 { return q.sum }

// RunSummed computes the queued products of the matrix of the last Partial, for all rows of its list or
// some of them, after Total has been filled.
func (q *Queue) RunSummed(pool *tensor.Pool, all []Rows, layer int, m Matrix) {
	if len(q.jobs) == 0 {
		return
	}
	q.place()
	at := 0
	for _, rows := range all {
		p := rows.Adapter.Layers[layer][m]
		if p == nil {
			continue
		}
		for i := range q.jobs {
			j := &q.jobs[i]
			if j.lo < rows.Lo || j.hi > rows.Hi || j.pair != p {
				continue
			}
			for t := j.lo; t < j.hi; t++ {
				row := q.t[(j.t+t-j.lo)*q.ld:][:p.Rank]
				copy(row, q.sum[at+(t-rows.Lo)*p.Rank:])
				tensor.Scale(row, p.Scale)
			}
		}
		at += (rows.Hi - rows.Lo) * p.Rank
	}
	q.finish(pool)
}

func grow(s []float32, n int) []float32 {
	if cap(s) < n {
		return make([]float32, n)
	}
	return s[:n]
}
