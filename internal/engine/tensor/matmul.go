package tensor

import (
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

const (
	chunkTok   = 96 // maximum of tokens in a task: their tree stacks are kept together
	stackGap   = 8  // tokens between two levels of the stacks, see treeStack
	treeLevels = 6  // a binary tree over 16 units never holds more finished nodes
	// Below this number of multiply-adds, handing work to other threads costs more than it saves.
	soloWork = 1 << 16
	// Prefetch distance for three and more tokens in one pass where fewer need none: they read four
	// panels in pairs, which the CPU's prefetchers do not follow.
	prefetchFar = 64 << 10
	// A tile has one prefetch per cache line of its weights, scales excluded.
	lineBytes = 64
	// Maximum columns of one kernel call, so that it stays below 0.3 ms.
	maxCallCols = 16 << 10
	// Groups in a task of one token, and the tasks that each thread should still get.
	risingGroups   = 4
	tasksPerThread = 8
	// Groups that a thread should have; with fewer, half groups become tasks. With few large tasks,
	// all threads wait for the last one. (Small groups lose more between two calls, and AMD's
	// prefetchers lose their lead.)
	fewGroups, fewLargeGroups = 2, 5
	largeGroup                = 128 << 10
)

// matmul is the matrix product in progress; Pool.mu guards it.
type matmul struct {
	threads  []*matScratch
	task     func(worker, i int)
	rounding func(worker, t int)

	jobs   []job
	njobs  int
	then   func(r0, r1, t0, t1 int) // see Product: jobs are pairs whose tasks alternate
	pairs  []pair
	serial uint64
	x      []float32
	ldx, n int
	padded []float32

	quantized []byte         // the quantized tokens, if the weight is quantized
	from      unsafe.Pointer // first token: its float32 or its quantized blocks
	stride    int            // bytes from token to token
}

// maxProducts is the maximum number of matrices in MatMulMany.
const maxProducts = 4

// job is one matrix of the product in progress.
type job struct {
	w      *Weight
	one    [1][]float32
	y      [][]float32 // per node
	ldy    int
	r0, r1 int            // rows
	t0, n  int            // tokens [t0, t0+n)
	grain  int            // panels per task
	span   int            // maximum of tokens per task
	first  int            // number of the first task
	from   unsafe.Pointer // first token of all: its float32 or its quantized blocks
	stride int            // bytes from token to token
}

// pair counts the stored tasks of a pair in a product with a serial number. It has its own cache
// line.
type pair struct {
	half atomic.Uint64
	_    [56]byte
}

// Product is one matrix of MatMulMany: the rows [R0, R1) of W into Y, as in MatMulRows.
type Product struct {
	Y      []float32
	LdY    int
	W      *Weight
	R0, R1 int

	// Then may be set in the first of two products of the same rows. It is called once for rows
	// [r0, r1) and tokens [t0, t1) of both products as soon as they are stored, on the thread that
	// stored the last of them. So work on single elements or blocks of the results needs no Run of
	// its own. r0 is a multiple of BlockWidth if R0 is. r1 is one too, or it is R1.
	Then func(r0, r1, t0, t1 int)
}

// matScratch is the memory of one thread; threads do not share cache lines.
type matScratch struct {
	_     [64]byte
	args  kernel.TileArgs
	stack *treeStack
	out   []float32 // of a task that may be repeated: [chunkTok][GroupRows]
	claim claim     // of that task; when another thread has it, the rest is skipped
	_     [64]byte
}

// treeStack holds finished nodes of some tokens, in whole cache lines: unaligned it costs narrow
// quantized matrices 3 to 10 % of their time. Levels are not a multiple of 4 KiB apart, because a
// load would then falsely seem to depend on a store to another level.
type treeStack [treeLevels][chunkTok + stackGap][kernel.GroupRows]float32

func newMatScratch() *matScratch {
	floats := int(unsafe.Sizeof(treeStack{}) / 4)
	return &matScratch{stack: (*treeStack)(unsafe.Pointer(&lines(floats)[0]))}
}

func (m *matmul) init(threads int) {
	m.threads = make([]*matScratch, threads)
	m.jobs = make([]job, maxProducts)
	m.task, m.rounding = m.multiply, m.round
}

// MatMul computes y[t*ldy+r] = sum over k of W[r][k]*x[t*ldx+k] for n tokens and all rows r. The
// weight must own all units of its columns. Each element's bits depend only on its row and its
// token.
func (p *Pool) MatMul(y []float32, ldy int, w *Weight, x []float32, ldx, n int) {
	p.MatMulRows(y, ldy, w, 0, w.Rows, x, ldx, n)
}

// MatMulRows is MatMul for the rows [r0, r1) only: y[t*ldy+r]; other elements of y are unchanged.
// r0 is a multiple of RowGrain.
func (p *Pool) MatMulRows(y []float32, ldy int, w *Weight, r0, r1 int, x []float32, ldx, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mat.jobs[0].set(Product{Y: y, LdY: ldy, W: w, R0: r0, R1: r1}, n)
	p.mat.njobs = 1
	p.matmul(x, ldx, n)
}

// MatMulMany is MatMulRows for several matrices of one type and width that multiply the same
// tokens. The tokens are rounded once, and the threads synchronise once. At most 4 matrices.
func (p *Pool) MatMulMany(products []Product, x []float32, ldx, n int) {
	if len(products) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mat.setAll(products, n)
	p.matmul(x, ldx, n)
}

// setAll checks and sets products of the same n tokens.
func (m *matmul) setAll(products []Product, n int) {
	if len(products) > maxProducts {
		panic(fmt.Sprintf("tensor: MatMulMany of %d matrices, at most %d", len(products), maxProducts))
	}
	for i, q := range products {
		if first := products[0].W; !sameTokens(q.W.Type, first.Type) || q.W.Cols != first.Cols {
			panic(fmt.Sprintf("tensor: MatMulMany of %v with %d columns and %v with %d", first.Type, first.Cols, q.W.Type, q.W.Cols))
		}
		m.jobs[i].set(q, n)
	}
	m.njobs, m.then = len(products), products[0].Then
	if m.then != nil && (len(products) != 2 || products[0].R0 != products[1].R0 || products[0].R1 != products[1].R1) {
		panic("tensor: Product.Then requires two products with the same rows")
	}
}

// set checks and sets a product of n tokens.
func (j *job) set(q Product, n int) {
	w := q.W
	switch {
	case w.UnitLo != 0 || w.UnitHi != Units(w.Cols):
		panic(fmt.Sprintf("tensor: MatMul needs all %d units of the weight, it has [%d,%d)", Units(w.Cols), w.UnitLo, w.UnitHi))
	case q.R0 < 0 || q.R0%RowGrain != 0 || q.R1 > w.Rows || q.R0 > q.R1:
		panic(fmt.Sprintf("tensor: MatMulRows of rows [%d,%d) of %d", q.R0, q.R1, w.Rows))
	case n > 0 && (q.LdY < q.R1 || len(q.Y) < (n-1)*q.LdY+q.R1):
		panic(fmt.Sprintf("tensor: MatMul of %d tokens and rows up to %d into %d elements, stride %d", n, q.R1, len(q.Y), q.LdY))
	}
	j.one[0] = q.Y
	j.w, j.y, j.ldy, j.r0, j.r1, j.t0, j.n = w, j.one[:], q.LdY, q.R0, q.R1, 0, n
}

// MatMulPartial multiplies a weight that owns only the units [UnitLo, UnitHi): y[i][t*Rows+r]
// becomes the value of the i-th node of Subtrees(UnitLo, UnitHi, Units(Cols)). x[t*ldx] is the
// first column of those units.
func (p *Pool) MatMulPartial(y [][]float32, w *Weight, x []float32, ldx, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mat.setPartial(y, w, n)
	p.matmul(x, ldx, n)
}

// setPartial checks and sets a product of n tokens whose weight owns some units.
func (m *matmul) setPartial(y [][]float32, w *Weight, n int) {
	if len(y) != len(w.nodes) || slices.ContainsFunc(y, func(y []float32) bool { return len(y) < n*w.Rows }) {
		panic(fmt.Sprintf("tensor: MatMulPartial of %d tokens and %d rows into %d parts for %d nodes", n, w.Rows, len(y), len(w.nodes)))
	}
	j := &m.jobs[0]
	j.w, j.y, j.ldy, j.r0, j.r1, j.t0, j.n, m.njobs = w, y, w.Rows, 0, w.Rows, 0, n, 1
}

// matmul multiplies the jobs that are set by tokens x.
func (p *Pool) matmul(x []float32, ldx, n int) {
	m := &p.mat
	w := m.jobs[0].w
	k := w.span.Len()
	if n == 0 || m.rows() == 0 || k == 0 {
		m.then = nil
		return
	}
	if ldx < k || len(x) < (n-1)*ldx+k {
		panic(fmt.Sprintf("tensor: MatMul of %d tokens and %d columns from %d elements, stride %d", n, k, len(x), ldx))
	}
	m.x, m.ldx, m.n = x, ldx, n
	if k != w.padded {
		m.pad(k, w.padded)
	}
	m.from, m.stride = unsafe.Pointer(&m.x[0]), m.ldx*4
	if kernel.Quantized(w.Type) {
		m.quantize(p, w)
	}
	p.multiply()
}

// rows returns the number of rows of all jobs.
func (m *matmul) rows() (n int) {
	for _, j := range m.jobs[:m.njobs] {
		n += j.r1 - j.r0
	}
	return n
}

// multiply runs the tasks of the jobs that are set, on prepared tokens.
func (p *Pool) multiply() {
	m := &p.mat
	w, rows, work := m.jobs[0].w, m.rows(), 0
	for i := range m.jobs[:m.njobs] {
		j := &m.jobs[i]
		work += (j.r1 - j.r0) * j.n * w.span.Len()
	}
	tasks := m.cut(p.Threads(), (rows+kernel.PanelRows-1)/kernel.PanelRows)
	if m.then != nil {
		if m.serial++; len(m.pairs) < tasks/2 {
			m.pairs = make([]pair, tasks/2)
		}
	}
	if work < soloWork {
		for i := range tasks {
			m.multiply(0, i)
		}
	} else if p.backups.enabled = p.canBackUp(tasks); p.backups.enabled {
		p.share(tasks, nil)
	} else {
		p.dispatch(tasks, m.task)
	}
	for i := range m.jobs[:m.njobs] {
		m.jobs[i] = job{}
	}
	m.x, m.from, m.then = nil, nil, nil
}

// cut divides the jobs into tasks for a number of threads, and returns the number of tasks.
func (m *matmul) cut(threads, panels int) (tasks int) {
	w, grain, span := m.jobs[0].w, kernel.MaxTilePanels, chunkTok
	if m.n > span {
		if m.tasks(grain, span) < tasksPerThread*threads {
			span /= 2
		}
		for m.tasks(grain, span) > workers.MaxTasks {
			grain *= 2
		}
		return m.tasks(grain, span)
	}
	few := fewGroups
	if kernel.PrefetchAhead > 0 && kernel.MaxTilePanels*w.panel >= largeGroup {
		few = fewLargeGroups
	}
	switch {
	case panels <= threads && m.then == nil: // Then needs whole blocks
		grain = 1
	case panels < few*kernel.MaxTilePanels*threads:
		grain = max(1, kernel.MaxTilePanels/2)
	}
	if m.n == 1 && kernel.Active.Rising[w.Type] != nil { // fewer calls, but leave some tasks of each thread for stealing
		grain *= max(1, min(risingGroups, panels/(kernel.MaxTilePanels*tasksPerThread*threads)))
	}
	return m.tasks(grain, span)
}

// tasks divides the jobs into tasks of grain panels and span tokens. Successive tasks share
// weights.
func (m *matmul) tasks(grain, span int) (n int) {
	for i := range m.jobs[:m.njobs] {
		j := &m.jobs[i]
		j.grain, j.span, j.first, j.from, j.stride = grain, span, n, m.from, m.stride
		if m.then != nil && i%2 == 1 {
			j.first = m.jobs[i-1].first
		}
		n += ((j.r1-j.r0+kernel.PanelRows-1)/kernel.PanelRows + grain - 1) / grain * j.chunks()
	}
	return n
}

// chunks returns the number of tasks that share weights.
func (j *job) chunks() int { return (j.n + j.span - 1) / j.span }

// pad copies the tokens to rows of whole blocks: if an axis is not a multiple of 32, its last block
// is filled with zeros on both sides of the product.
func (m *matmul) pad(k, ld int) {
	if need := m.n * ld; cap(m.padded) < need {
		m.padded = make([]float32, need)
	}
	m.padded = m.padded[:m.n*ld]
	for t := range m.n {
		row := m.padded[t*ld:][:ld]
		clear(row[copy(row, m.x[t*m.ldx:][:k]):])
	}
	m.x, m.ldx = m.padded, ld
}

// quantize rounds the tokens to quantized blocks, once for all rows.
func (m *matmul) quantize(p *Pool, w *Weight) {
	m.stride = w.padded / BlockWidth * kernel.QuantBlockBytes
	if need := m.n * m.stride; cap(m.quantized) < need {
		m.quantized = make([]byte, need)
	}
	m.quantized = m.quantized[:m.n*m.stride]
	if m.n < manyTokens {
		for t := range m.n {
			m.round(0, t)
		}
	} else {
		p.dispatch(m.n, m.rounding)
	}
	m.from = unsafe.Pointer(&m.quantized[0])
}

// manyTokens is the number of tokens from which rounding uses several threads.
const manyTokens = 8

func (m *matmul) round(_, t int) {
	w := m.jobs[0].w
	kernel.Active.Quantize(m.quantized[t*m.stride:][:m.stride], m.x[t*m.ldx:][:w.padded], quantBlockStartOf(w.Type))
}

// job returns the job of task i, which is the last one that starts at or before it, and the task's
// number within the job.
func (m *matmul) job(i int) (j *job, task int) {
	each := 1
	if m.then != nil {
		each = 2
	}
	lo, hi := 0, m.njobs/each
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; m.jobs[mid*each].first <= i {
			lo = mid
		} else {
			hi = mid
		}
	}
	task = i - m.jobs[lo*each].first
	return &m.jobs[lo*each+task%each], task / each
}

// stored calls Then for rows and tokens of two products when their later task i is stored.
func (m *matmul) stored(i int, j *job, first, last, t, tokens int) {
	if m.then != nil && m.pairs[i/2].half.Swap(m.serial) == m.serial {
		m.then(first*kernel.PanelRows, min(last*kernel.PanelRows, j.r1), j.t0+t, j.t0+t+tokens)
	}
}

// multiply is one task: grain panels and span tokens of the job, all units.
func (m *matmul) multiply(worker, i int) {
	s := m.scratch(worker)
	j, task := m.job(i)
	t, tokens := j.tokens(task)
	first, last := j.panels(task)
	for at := first; at < last; {
		panels, groups := j.call(at, last)
		row := at * kernel.PanelRows
		rows := min(panels*groups*kernel.PanelRows, j.r1-row)
		s.args.Groups = uintptr(groups)
		for node := range j.w.nodes {
			y := j.y[node][t*j.ldy+row:]
			if rows == panels*groups*kernel.PanelRows { // whole panels are stored in place
				j.group(s, at, panels, t, tokens, node, target{unsafe.Pointer(&y[0]), j.ldy * 4})
				continue
			}
			j.group(s, at, panels, t, tokens, node, target{unsafe.Pointer(&s.stack[0]), kernel.GroupRows * 4})
			for t := range tokens {
				copy(y[t*j.ldy:][:rows], s.stack[0][t][:rows])
			}
		}
		at += panels * groups
	}
	m.stored(i, j, first, last, t, tokens)
}

// scratch returns a thread's scratch.
func (m *matmul) scratch(worker int) *matScratch {
	if m.threads[worker] == nil {
		m.threads[worker] = newMatScratch()
	}
	return m.threads[worker]
}

// panels returns the panels [first, last) of the job's task i.
func (j *job) panels(i int) (first, last int) {
	first = j.r0/kernel.PanelRows + i/j.chunks()*j.grain
	return first, min(first+j.grain, (j.r1+kernel.PanelRows-1)/kernel.PanelRows)
}

// tokens returns the first token of the job's task i, and the number of tokens.
func (j *job) tokens(i int) (t, n int) {
	t = i % j.chunks() * j.span
	return t, min(j.span, j.n-t)
}

// call returns how many of the panels [first, last) the next kernel call takes. With one token it
// may take several groups of them.
func (j *job) call(first, last int) (panels, groups int) {
	panels = min(last-first, kernel.MaxTilePanels-first%kernel.MaxTilePanels)
	panels = 1 << (bits.Len(uint(panels)) - 1)
	if j.n == 1 && panels == kernel.MaxTilePanels && kernel.Active.Rising[j.w.Type] != nil {
		whole := (min(last*kernel.PanelRows, j.r1) - first*kernel.PanelRows) / kernel.GroupRows
		return panels, max(1, min(whole, maxCallCols/j.w.padded))
	}
	return panels, 1
}

// group computes one tree node for a group of panels and a chunk of tokens. Few tokens pass over
// the weights once, all units in one call. More tokens take several passes over as many units as
// fit in the cache.
func (j *job) group(s *matScratch, panel, panels, t0, tokens, node int, dst target) {
	w := j.w
	steps := w.steps[node]
	a := &s.args
	a.Panel, a.LdX = uintptr(w.panel), uintptr(j.stride)
	a.Level = unsafe.Sizeof(s.stack[0])
	most := maxCallCols
	if tokens > kernel.Active.Tokens(w.Type, panels) {
		most = kernel.PassBytes / (panels * w.column)
	}
	at := UnitSpan(w.Cols, w.nodes[node].Lo).Lo - w.span.Lo
	depth := 0
	for i := 0; i < len(steps); {
		run, cols := 1, int(steps[i].K)
		for i+run < len(steps) && cols+int(steps[i+run].K) <= most {
			cols += int(steps[i+run].K)
			run++
		}
		out := dst
		next := depth
		for _, s := range steps[i : i+run] {
			next += 1 - int(s.Merges)
		}
		if i+run < len(steps) {
			out = target{unsafe.Pointer(&s.stack[next-1]), kernel.GroupRows * 4}
		}
		j.units(s, steps[i:i+run], panel, panels, j.t0+t0, tokens, at, cols, unsafe.Pointer(&s.stack[depth]), out)
		at += cols
		i += run
		depth = next
	}
}

// target is the destination of tokens' results, and the bytes from token to token.
type target struct {
	at unsafe.Pointer
	ld int
}

// units computes successive units for all tokens of a chunk, a few tokens per pass over the
// weights. Without prefetches the times of memory and arithmetic add up. So each call in each of n
// passes prefetches its share of the next weights.
func (j *job) units(s *matScratch, steps []kernel.Step, panel, panels, t0, tokens, at, cols int, stack unsafe.Pointer, out target) {
	k, a, w := kernel.Active, &s.args, j.w
	a.Steps, a.NSteps = &steps[0], uintptr(len(steps))
	a.LdOut = uintptr(out.ld)
	at0, width := w.group(panel)
	advance := w.advance(width)
	from := unsafe.Add(unsafe.Pointer(unsafe.SliceData(w.data)), at0+at/w.chunk*advance)
	x := at * 4
	if kernel.Quantized(w.Type) {
		x = at / BlockWidth * kernel.QuantBlockBytes
	}
	a.Panel, a.Advance, a.Table = uintptr(w.chunk*w.column), uintptr(advance), kernel.Tables[w.Type]
	first := panel % kernel.MaxTilePanels
	all := cols / w.chunk * advance // bytes of these units; the next weights follow them
	most := k.Tokens(w.Type, panels)
	passes := (tokens + most - 1) / most
	least, more := tokens/passes, tokens%passes // the last passes take one token more
	spread := kernel.PrefetchAhead > 0 && k.Spread[w.Type] && least >= kernel.SpreadTokens
	a.PrefetchStep, a.PrefetchGap = uintptr(advance/passes), lineBytes
	ahead, further := kernel.PrefetchAhead, 0
	switch {
	case passes > 1:
		ahead, further = all, all/passes
	case tokens > 2 && (ahead == 0 || spread):
		ahead = prefetchFar
	}
	weights := unsafe.Add(from, first*w.chunk*w.column)
	scales := unsafe.Add(from, width*w.chunk*w.column+first*w.scales)
	c := least
	step, f := k.Pick(w.Type, panels, c)
	if rising := k.Rising[w.Type]; rising != nil && tokens == 1 && panels == kernel.MaxTilePanels {
		f = rising
		a.Gap = uintptr(kernel.MaxTilePanels*w.panel - all)
	}
	for pass, t := 0, 0; pass < passes; pass++ {
		if pass == passes-more {
			c++
			step, f = k.Pick(w.Type, panels, c)
		}
		a.X = unsafe.Add(j.from, (t0+t)*j.stride+x)
		a.Tokens, a.Panels = c, step
		share := all / passes * step / panels // share of the next weights per call
		if spread {
			a.PrefetchStep = uintptr(share * w.chunk / cols)
			a.PrefetchGap = a.PrefetchStep / uintptr(w.chunk*step*w.column/lineBytes)
		}
		for p := 0; p < panels; p += step { // panels and step are powers of two
			a.W = unsafe.Add(weights, p*w.chunk*w.column)
			a.Scales = unsafe.Add(scales, p*w.scales)
			a.Prefetch = uintptr(a.W) + uintptr(ahead)
			if spread {
				a.Prefetch = uintptr(from) + uintptr(ahead+p/step*share)
			}
			a.Stack = unsafe.Add(stack, (t*kernel.GroupRows+p*kernel.PanelRows)*4)
			a.Out = unsafe.Add(out.at, t*out.ld+p*kernel.PanelRows*4)
			call(f, a)
			if s.claim.lost() {
				return
			}
		}
		ahead += further
		t += c
	}
}

// call runs a tile kernel. Assembly cannot be preempted by the scheduler or the garbage collector;
// this frame, entered every few microseconds, can.
//
//go:noinline
func call(f func(*kernel.TileArgs), a *kernel.TileArgs) { f(a) }
