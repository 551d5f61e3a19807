package tensor

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Backup tasks (Dean and Ghemawat, MapReduce, section 3.6). On a host that is shared, a
// processor may be taken away for milliseconds in the midst of a task of microseconds, and all
// threads wait for it. So whoever waits too long does tasks of a product again that another has
// begun: the bits are the same, and whoever is first claims the task and stores it. The late
// thread finds its task claimed and drops what it has, maybe long after the product has ended:
// so it computes into memory of its own, from what it has copied before.

const (
	maxTwice = 4096 // tasks of a product that may be done twice
	// Of fewer threads one is seldom late. And claims take time, a tenth of products that take
	// 10 us: each thread should have so many bytes of weights to read.
	enoughThreads, enoughBytes = 4, 128 << 10
	// Who waits does tasks again after as long as a task takes in the mean, and no sooner than
	// this. It gives up when their thread comes, so to be early costs a call of a kernel.
	leastPatience = 15 * time.Microsecond
)

// again is what of a Run may be done twice.
type again struct {
	twice bool // its tasks may
	tasks int
	began time.Time
	times atomic.Uint64 // tasks that were done again

	// Of each task: the number of the Run that stored it last, twice, and one more once it is
	// stored.
	claims []atomic.Uint64
}

// claim is a task that a thread computes, and did not store yet.
type claim struct {
	task   *atomic.Uint64
	number uint64
	again  bool // another has begun it
}

// lost says that the thread that had begun the task has stored it meanwhile, or is about to.
// Only who does it again looks: its memory is written by all.
func (c *claim) lost() bool { return c.again && c.task.Load() >= c.number<<1 }

// twice says whether the tasks of the product in progress may be done twice.
func (p *Pool) twice(tasks int) bool {
	m, size := &p.mat, 0
	for _, j := range m.jobs[:m.njobs] {
		if len(j.w.nodes) != 1 {
			return false
		}
		size += (j.r1 - j.r0) / panelRows * j.w.panel
	}
	return !raceDetector && tasks > 1 && tasks <= maxTwice && p.Threads() >= enoughThreads && size >= enoughBytes*p.Threads()
}

// begin notes what a Run of n tasks is held against.
func (a *again) begin(n int) {
	if !a.twice {
		return
	}
	if a.claims == nil {
		a.claims = make([]atomic.Uint64, maxTwice)
	}
	a.tasks, a.began = n, time.Now()
}

// due says whether who waits since then has waited long enough.
func (a *again) due(since time.Time, threads int) bool {
	task := float64(since.Sub(a.began)) * float64(threads) / float64(max(threads, a.tasks))
	return time.Since(since) > leastPatience+time.Duration(task)
}

// attempt does a task of a product and says whether it stored it. The Run may end at any moment,
// and another begin: until the task is claimed nothing is written that others see, and nothing is
// read but the copy of the job, its tokens and its weights.
func (p *Pool) attempt(worker, task int, number uint64, anew bool) bool {
	m := &p.mat
	job, at := m.job(task)
	j := *job
	if p.over.Load() >= number {
		return false
	}
	c := &p.again.claims[task]
	before := c.Load()
	if before >= number<<1 {
		return false
	}
	s := m.scratch(worker)
	if s.out == nil {
		s.out = lines(chunkTok * groupRows)
	}
	first, last := j.panels(at)
	t, tokens := j.tokens(at)
	s.claim = claim{c, number, anew}
	j.part(s, first, last, t, tokens)
	s.claim = claim{}
	if !c.CompareAndSwap(before, number<<1) {
		return false
	}
	rows := min(last*panelRows, j.r1) - first*panelRows
	for i := range tokens {
		copy(j.y[0][(t+i)*j.ldy+first*panelRows:][:rows], s.out[i*groupRows:])
	}
	m.stored(task, &j, first, last, t, tokens)
	c.Store(number<<1 | 1)
	return true
}

// part computes a task's panels [first, last) and tokens into s.out.
func (j *job) part(s *matScratch, first, last, t, tokens int) {
	for at := first; at < last && tokens > 0 && !s.claim.lost(); {
		panels, groups := j.call(at, last)
		if s.claim.again { // look often whether the other comes
			groups = 1
		}
		s.args.groups = uintptr(groups)
		j.group(s, at, panels, t, tokens, 0, target{unsafe.Pointer(&s.out[(at-first)*panelRows]), groupRows * 4})
		at += panels * groups
	}
}

// backup does what is left of a Run's tasks, and returns when all are stored.
func (p *Pool) backup(number uint64) {
	for i := range p.again.tasks {
		if p.attempt(0, i, number, true) {
			p.again.times.Add(1)
		}
	}
	for i := range p.again.claims[:p.again.tasks] {
		for p.again.claims[i].Load() != number<<1|1 { // another stores it: a microsecond
			yield()
		}
	}
}

// pools are those that have workers.
var pools struct {
	sync.Mutex
	all map[*Pool]bool
}

func register(p *Pool) {
	if len(p.workers) == 0 {
		return
	}
	pools.Lock()
	defer pools.Unlock()
	if pools.all == nil {
		pools.all = map[*Pool]bool{}
	}
	pools.all[p] = true
}

func unregister(p *Pool) {
	pools.Lock()
	defer pools.Unlock()
	delete(pools.all, p)
}

// settle returns when no thread is at work any more for a product that has ended: before
// memory goes back to the system from which a late one may read.
func settle() {
	pools.Lock()
	defer pools.Unlock()
	for p := range pools.all {
		p.settle()
	}
}

func (p *Pool) settle() {
	for _, w := range p.workers {
		for n := w.busy.Load(); n != 0 && n <= p.over.Load(); n = w.busy.Load() {
			time.Sleep(20 * time.Microsecond)
		}
	}
}
