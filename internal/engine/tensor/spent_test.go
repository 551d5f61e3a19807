package tensor

import (
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// The parts of the threads' time add up, and each cause is attributed correctly.
func TestSpent(t *testing.T) {
	const threads, runs = 3, 40 * workers.SampleEvery
	spend := func(n int, f func(i int)) workers.Spent {
		p := NewPool(threads)
		defer p.Close()
		for range runs {
			p.Run(n, f)
		}
		return p.Spent()
	}
	busy := func(d time.Duration) {
		for began := time.Now(); time.Since(began) < d; {
		}
	}
	check := func(name string, s workers.Spent) {
		t.Helper()
		if s.Runs != runs || s.Wall <= 0 {
			t.Errorf("%s: %d runs in %v, want %d", name, s.Runs, s.Wall, runs)
		}
		if sum := s.Work + s.Late + s.Absent + s.Uneven + s.End; sum != threads*s.Wall {
			t.Errorf("%s: the parts add up to %v, the threads' time is %v", name, sum, threads*s.Wall)
		}
		for _, d := range []time.Duration{s.Work, s.Late, s.Absent, s.Uneven, s.End} {
			if d < 0 {
				t.Errorf("%s: below zero: %+v", name, s)
			}
		}
	}
	one := spend(2, func(i int) { busy(time.Duration(i) * 20 * time.Microsecond) })
	check("one long task", one)
	if one.Uneven+one.Absent+one.Late < one.Work/2 {
		t.Errorf("one thread of three works, and the others lose %v compared with %v", one.Uneven+one.Absent+one.Late, one.Work)
	}
	many := spend(300, func(int) { busy(time.Microsecond) })
	check("many short tasks", many)
	if many.Work <= one.Work {
		t.Errorf("300 us of work count as %v, 20 as %v", many.Work, one.Work)
	}
	p := NewPool(1)
	defer p.Close()
	for range runs {
		p.Run(5, func(int) {})
	}
	if s := p.Spent(); s != (workers.Spent{}) {
		t.Errorf("a thread alone shares nothing, and yet %+v", s)
	}
}
