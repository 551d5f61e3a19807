package tensor

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Backup tasks (Dean and Ghemawat, MapReduce, section 3.6). On a host that is shared, a
// processor may be taken away for milliseconds in the midst of a task of microseconds, and all
// threads wait for it. So whoever waits too long does parts of a product again that another has
// begun: the bits are the same, and whoever is first claims the part and stores it. The late
// thread finds its part claimed and drops what it has, maybe long after the product has ended:
// so it computes into memory of its own, from what it has copied before.

const (
	maxParts = 4096 // of a product whose parts may be done twice
	// Of fewer threads one is seldom late. And claims take time, a tenth of products that take
	// 10 us: each thread should have so many bytes of weights to read.
	enoughThreads, enoughBytes = 4, 128 << 10
	// Who waits does parts again after as long as a task takes in the mean, and no sooner than
	// this. It gives up when their thread comes, so to be early costs a call of a kernel.
	leastPatience = 15 * time.Microsecond
)

// again is what of a Run may be done twice.
type again struct {
	chunks int // of tokens of each task, 0: nothing may
	tasks  int
	began  time.Time
	times  atomic.Uint64 // parts that were done again

	// Of part task*chunks+chunk: the number of the Run that stored it last, twice, and one
	// more once it is stored.
	claims []atomic.Uint64
}

// claim is a part that a thread computes, and did not store yet.
type claim struct {
	part   *atomic.Uint64
	number uint64
	again  bool // another has begun it
}

// lost says that the thread that had begun the part has stored it meanwhile, or is about to.
// Only who does it again looks: its memory is written by all.
func (c *claim) lost() bool { return c.again && c.part.Load() >= c.number<<1 }

// twice says into how many parts, of a chunk of tokens each, a task of the product in progress is
// cut that may be done twice; 0: they may not.
func (p *Pool) twice(tasks int) (chunks int) {
	m, size := &p.mat, 0
	for _, j := range m.jobs[:m.njobs] {
		if len(j.w.nodes) != 1 {
			return 0
		}
		size += (j.r1 - j.r0) / panelRows * j.w.panel
		chunks = max(chunks, (j.n+chunkTok-1)/chunkTok)
	}
	if raceDetector || tasks < 2 || p.Threads() < enoughThreads || size < enoughBytes*p.Threads() || tasks*chunks > maxParts {
		return 0
	}
	return chunks
}

// begin notes what a Run of n tasks is held against.
func (a *again) begin(n int) {
	if a.chunks == 0 {
		return
	}
	if a.claims == nil {
		a.claims = make([]atomic.Uint64, maxParts)
	}
	a.tasks, a.began = n, time.Now()
}

// due says whether who waits since then has waited long enough.
func (a *again) due(since time.Time, threads int) bool {
	task := float64(since.Sub(a.began)) * float64(threads) / float64(max(threads, a.tasks))
	return time.Since(since) > leastPatience+time.Duration(task)
}

// attempt does what is left of a task of a product and says how many parts it stored. The
// Run may end at any moment, and another begin: until a part is claimed nothing is written
// that others see, and nothing is read but the copy of the job, its tokens and its weights.
func (p *Pool) attempt(worker, task int, number uint64, anew bool) (done int) {
	m, chunks := &p.mat, p.again.chunks
	j := *m.job(task)
	if p.over.Load() >= number {
		return 0
	}
	s := m.scratch(worker)
	if s.out == nil {
		s.out = lines(chunkTok * groupRows)
	}
	first, last := j.panels(task)
	rows := min(last*panelRows, j.r1) - first*panelRows
	for c := range chunks {
		part := &p.again.claims[task*chunks+c]
		before := part.Load()
		if before >= number<<1 {
			continue
		}
		t := c * chunkTok
		tokens := min(chunkTok, j.n-t)
		s.claim = claim{part, number, anew}
		j.part(s, first, last, t, tokens)
		s.claim = claim{}
		if !part.CompareAndSwap(before, number<<1) {
			continue
		}
		for i := range tokens {
			copy(j.y[0][(t+i)*j.ldy+first*panelRows:][:rows], s.out[i*groupRows:])
		}
		part.Store(number<<1 | 1)
		done++
	}
	return done
}

// part computes the panels [first, last) of a chunk of tokens into s.out.
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

// backup does what is left of a Run's parts, and returns when all are stored.
func (p *Pool) backup(number uint64) {
	for i := range p.again.tasks {
		p.again.times.Add(uint64(p.attempt(0, i, number, true)))
	}
	parts := p.again.claims[:p.again.tasks*p.again.chunks]
	for i := range parts {
		for parts[i].Load() != number<<1|1 { // another stores it: a microsecond
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
