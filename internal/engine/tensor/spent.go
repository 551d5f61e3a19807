package tensor

import (
	"sync"
	"time"
)

// Spent is where the time of a pool's threads went while they shared Runs; Work, Late,
// Absent, Uneven and End are of all threads together and add up to Threads times Wall. One
// Run of lookEvery is timed and counts for all.
type Spent struct {
	Runs   uint64        // that several threads could share
	Wall   time.Duration // of those, as their callers waited
	Work   time.Duration // from a thread's first task to the end of its last
	Late   time.Duration // from the beginning to a thread's first task: waking, or finding one
	Absent time.Duration // whole Runs of threads that came when nothing was left
	Uneven time.Duration // from the end of a thread's last task to that of the last of all
	End    time.Duration // from there until the caller went on
	Again  uint64        // tasks of products that were done again for a thread that was late; all are counted
}

// Sub is what was spent since o was taken.
func (s Spent) Sub(o Spent) Spent {
	return Spent{s.Runs - o.Runs, s.Wall - o.Wall, s.Work - o.Work, s.Late - o.Late, s.Absent - o.Absent, s.Uneven - o.Uneven, s.End - o.End, s.Again - o.Again}
}

// Add is both together.
func (s Spent) Add(o Spent) Spent {
	return Spent{s.Runs + o.Runs, s.Wall + o.Wall, s.Work + o.Work, s.Late + o.Late, s.Absent + o.Absent, s.Uneven + o.Uneven, s.End + o.End, s.Again + o.Again}
}

// lookEvery is odd and prime, so that Runs that follow each other in a pattern, as those of
// layers do, are all met. A Run that is timed reads the clock twice a thread, and its caller
// what each thread wrote: a microsecond or two with many.
const lookEvery = 13

// stopwatch times some of a pool's Runs.
type stopwatch struct {
	origin  time.Time
	looking bool // at the current Run; written before it begins
	began   time.Duration
	threads []lap

	mu  sync.Mutex
	sum Spent
}

// lap is a thread's part of the Run of a number.
type lap struct {
	run         uint64
	first, last time.Duration
	_           [40]byte
}

func (w *stopwatch) init(threads int) {
	w.origin, w.threads = time.Now(), make([]lap, threads)
}

func (w *stopwatch) now() time.Duration { return time.Since(w.origin) }

// start is called before a Run begins.
func (w *stopwatch) start(number uint64) {
	if w.looking = number%lookEvery == 0; w.looking {
		w.began = w.now()
	}
}

// enter and leave are called by a thread that holds a task of the Run.
func (w *stopwatch) enter(id int, number uint64) {
	if l := &w.threads[id]; w.looking && l.run != number {
		l.run, l.first = number, w.now()
	}
}

func (w *stopwatch) leave(id int) {
	if w.looking {
		w.threads[id].last = w.now()
	}
}

// stop is called when all tasks are done, by so many threads.
func (w *stopwatch) stop(number uint64, threads int) {
	if !w.looking {
		return
	}
	ended, last := w.now(), w.began
	for i := range w.threads {
		if l := &w.threads[i]; l.run == number {
			if l.last < l.first { // it is late, and what it does was done by another
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
	w.sum = w.sum.Add(Spent{lookEvery, lookEvery * wall, lookEvery * s.Work, lookEvery * s.Late, lookEvery * s.Absent, lookEvery * s.Uneven, lookEvery * s.End, 0})
}

// Spent is what the pool's threads did since its start.
func (p *Pool) Spent() Spent {
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	s := p.watch.sum
	s.Again = p.again.times.Load()
	return s
}
