package tensor

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// Backup tasks (Dean and Ghemawat, MapReduce, section 3.6). On a shared host, a CPU may be taken
// away for milliseconds in the middle of a task of microseconds, while all threads wait for it. So
// a thread that waits too long repeats tasks of a product that another thread has started. The bits
// are the same; the first thread to finish claims the task and stores the result. The late thread
// finds its task claimed and discards its result, perhaps long after the product has ended. So it
// computes into its own memory, from inputs that it copied before.

const (
	maxBackupTasks = 4096 // tasks of a product that may be repeated
	// With fewer threads one is seldom late. Claims take a tenth of the time of a 10 us product, so
	// each thread must have this many bytes of weights to read.
	minBackupThreads, minBackupBytes = 4, 128 << 10
	// A waiting thread repeats tasks after the mean duration of a task, and not sooner than this. It
	// stops when the late thread returns, so starting early costs only a kernel call.
	minBackupDelay = 15 * time.Microsecond
)

// backups is the state of a Run's backup tasks.
type backups struct {
	enabled  bool // its tasks may be repeated
	tasks    int
	began    time.Time
	repeated atomic.Uint64 // tasks that were repeated

	// claims holds for each task twice the number of the Run that stored it last, plus one once it
	// is stored.
	claims []atomic.Uint64
}

// claim is a task that a thread computes and has not stored yet.
type claim struct {
	task     *atomic.Uint64
	number   uint64
	repeated bool // this thread repeats it
}

// lost reports whether another thread has stored the task, or is about to. Only a repeating thread
// checks, since all threads write the claims' memory.
func (c *claim) lost() bool { return c.repeated && c.task.Load() >= c.number<<1 }

// canBackUp reports whether the tasks of the current product may be repeated.
func (p *Pool) canBackUp(tasks int) bool {
	m, size := &p.mat, 0
	for _, j := range m.jobs[:m.njobs] {
		if len(j.w.nodes) != 1 {
			return false
		}
		size += (j.r1 - j.r0) / kernel.PanelRows * j.w.panel
	}
	return !raceDetector && tasks > 1 && tasks <= maxBackupTasks && p.Threads() >= minBackupThreads && size >= minBackupBytes*p.Threads()
}

// begin records the start of a Run of n tasks.
func (a *backups) begin(n int) {
	if !a.enabled {
		return
	}
	if a.claims == nil {
		a.claims = make([]atomic.Uint64, maxBackupTasks)
	}
	a.tasks, a.began = n, time.Now()
}

// due reports whether a thread that waits since then must start repeating tasks.
func (a *backups) due(since time.Time, threads int) bool {
	task := float64(since.Sub(a.began)) * float64(threads) / float64(max(threads, a.tasks))
	return time.Since(since) > minBackupDelay+time.Duration(task)
}

// attempt does a task of a product and reports whether it stored the result. The Run may end at any
// moment and another one start. So until the task is claimed, attempt writes nothing that others
// see and reads only its copy of the job, its tokens and its weights.
func (p *Pool) attempt(worker, task int, number uint64, repeated bool) bool {
	m := &p.mat
	job, at := m.job(task)
	j := *job
	if p.over.Load() >= number {
		return false
	}
	c := &p.backups.claims[task]
	before := c.Load()
	if before >= number<<1 {
		return false
	}
	s := m.scratch(worker)
	if s.out == nil {
		s.out = lines(chunkTok * kernel.GroupRows)
	}
	first, last := j.panels(at)
	t, tokens := j.tokens(at)
	s.claim = claim{c, number, repeated}
	j.part(s, first, last, t, tokens)
	s.claim = claim{}
	if !c.CompareAndSwap(before, number<<1) {
		return false
	}
	rows := min(last*kernel.PanelRows, j.r1) - first*kernel.PanelRows
	for i := range tokens {
		copy(j.y[0][(t+i)*j.ldy+first*kernel.PanelRows:][:rows], s.out[i*kernel.GroupRows:])
	}
	m.stored(task, &j, first, last, t, tokens)
	c.Store(number<<1 | 1)
	return true
}

// part computes a task's panels [first, last) and tokens into s.out.
func (j *job) part(s *matScratch, first, last, t, tokens int) {
	for at := first; at < last && tokens > 0 && !s.claim.lost(); {
		panels, groups := j.call(at, last)
		if s.claim.repeated { // check often whether the other thread has returned
			groups = 1
		}
		s.args.Groups = uintptr(groups)
		j.group(s, at, panels, t, tokens, 0, target{unsafe.Pointer(&s.out[(at-first)*kernel.PanelRows]), kernel.GroupRows * 4})
		at += panels * groups
	}
}

// backup does the remaining tasks of a Run, and returns when all are stored.
func (p *Pool) backup(number uint64) {
	for i := range p.backups.tasks {
		if p.attempt(0, i, number, true) {
			p.backups.repeated.Add(1)
		}
	}
	for i := range p.backups.claims[:p.backups.tasks] {
		for p.backups.claims[i].Load() != number<<1|1 { // another thread is storing it: a microsecond
			workers.Yield()
		}
	}
}

// pools are the pools with workers.
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

// settle returns when no thread works for a product that has ended. It must precede the release of
// memory that a late thread may read.
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
