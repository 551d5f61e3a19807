package workers

import (
	"sync"
	"time"
)

// Spent is how a pool's threads spent their time in shared Runs. Work, Late, Absent, Uneven and End
// are summed over all threads and add up to Threads times Wall. One in SampleEvery Runs is timed
// and extrapolated.
type Spent struct {
	Runs   uint64        // Runs that several threads could share
	Wall   time.Duration // duration of those, as seen by their callers
	Work   time.Duration // from a thread's first task to the end of its last
	Late   time.Duration // from the start to a thread's first task: waking up, or finding a task
	Absent time.Duration // whole Runs of threads that found nothing to do
	Uneven time.Duration // from the end of a thread's last task to the end of the last task of all
	End    time.Duration // from there until the caller continued
	Again  uint64        // tasks of products that were repeated for a late thread; all are counted
}

// Sub returns the time spent since o was taken.
func (s Spent) Sub(o Spent) Spent {
	return Spent{s.Runs - o.Runs, s.Wall - o.Wall, s.Work - o.Work, s.Late - o.Late, s.Absent - o.Absent,
		s.Uneven - o.Uneven, s.End - o.End, s.Again - o.Again}
}

// Add returns the sum of both.
func (s Spent) Add(o Spent) Spent {
	return Spent{s.Runs + o.Runs, s.Wall + o.Wall, s.Work + o.Work, s.Late + o.Late, s.Absent + o.Absent,
		s.Uneven + o.Uneven, s.End + o.End, s.Again + o.Again}
}

// SampleEvery is an odd prime, so that Runs in a repeating pattern, like those of layers, are all
// sampled. A sampled Run reads the clock twice per thread, and its caller reads each thread's
// result. That takes one or two microseconds with many threads.
const SampleEvery = 13

// Stopwatch times some of a pool's Runs.
type Stopwatch struct {
	origin   time.Time
	sampling bool // the current Run is sampled; written before it starts
	began    time.Duration
	threads  []lap

	mu  sync.Mutex
	sum Spent
}

// lap is a thread's part of the Run with a number.
type lap struct {
	run         uint64
	first, last time.Duration
	_           [40]byte
}

func (w *Stopwatch) Init(threads int) {
	w.origin, w.threads = time.Now(), make([]lap, threads)
}

func (w *Stopwatch) now() time.Duration { return time.Since(w.origin) }

// Start begins to time a Run, if it is one of those that are sampled. Call it before the Run starts.
func (w *Stopwatch) Start(number uint64) {
	if w.sampling = number%SampleEvery == 0; w.sampling {
		w.began = w.now()
	}
}

// Enter and Leave are called by a thread that holds a task of the Run.
func (w *Stopwatch) Enter(id int, number uint64) {
	if l := &w.threads[id]; w.sampling && l.run != number {
		l.run, l.first = number, w.now()
	}
}

func (w *Stopwatch) Leave(id int) {
	if w.sampling {
		w.threads[id].last = w.now()
	}
}

// Stop ends the timing of a Run that a number of threads computed. Call it when all tasks are done.
func (w *Stopwatch) Stop(number uint64, threads int) {
	if !w.sampling {
		return
	}
	ended, last := w.now(), w.began
	for i := range w.threads {
		if l := &w.threads[i]; l.run == number {
			if l.last < l.first { // it is late, and another thread has done its task
				l.last = ended
			}
			last = max(last, l.last)
		}
	}
	wall := ended - w.began
	s := Spent{Runs: 1, Wall: wall}
	for i := range threads {
		l := &w.threads[i]
		if l.run != number {
			s.Absent += wall
			continue
		}
		s.Late += l.first - w.began
		s.Work += l.last - l.first
		s.Uneven += last - l.last
		s.End += ended - last
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sum = w.sum.Add(Spent{SampleEvery, SampleEvery * wall, SampleEvery * s.Work, SampleEvery * s.Late, SampleEvery * s.Absent,
		SampleEvery * s.Uneven, SampleEvery * s.End, 0})
}

// Spent returns the measurements since Init.
func (w *Stopwatch) Spent() Spent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sum
}
