//go:build !race

package tensor

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/workers"
)

// lateKernels are those of the active implementation, except that one call on a worker thread waits
// until late is closed. The caller waits for that call to start.
func lateKernels(p *Pool) (k *kernel.Set, late chan struct{}) {
	var one atomic.Bool
	took, late := make(chan struct{}), make(chan struct{})
	return slowKernels(p, func(caller bool) {
		if !caller && one.CompareAndSwap(false, true) {
			close(took)
			select {
			case <-late:
			case <-time.After(time.Minute): // the test failed before it closed late
			}
		} else if caller {
			<-took // so that a worker takes part
		}
	}), late
}

// slowKernels are those of the active implementation; before is called at the start of each call.
func slowKernels(p *Pool, before func(caller bool)) *kernel.Set {
	copied, own := *kernel.Active, &p.mat.scratch(0).args
	slow := func(f func(*kernel.TileArgs)) func(*kernel.TileArgs) {
		if f == nil {
			return nil
		}
		return func(a *kernel.TileArgs) {
			before(a == own)
			f(a)
		}
	}
	for dt := range copied.Tile {
		for m := range copied.Tile[dt] {
			for c, f := range copied.Tile[dt][m] {
				copied.Tile[dt][m][c] = slow(f)
			}
		}
		copied.Rising[dt] = slow(copied.Rising[dt])
	}
	return &copied
}

// A thread that is delayed in the middle of a product does not delay the others. When it continues
// it changes nothing: neither the product's result, nor its memory's later contents.
func TestLateThread(t *testing.T) {
	was := kernel.Active
	defer func() { kernel.Active = was }()
	for _, dt := range []DType{F32, BF16, Q8_0, Q4_0} {
		for _, n := range []int{1, 2, 16, 96, 200} {
			t.Run(fmt.Sprint(dt, " of ", n, " tokens"), func(t *testing.T) {
				const rows, cols = 2000, 512
				r := rng(uint64(n))
				w := newWeight(t, dt, normal(r, rows*cols), rows, cols, 0, Units(cols))
				x, other := normal(r, n*cols), normal(r, n*cols)
				p := NewPool(minBackupThreads)
				defer p.Close()
				kernel.Active = was
				want, wantOther := make([]float32, n*rows), make([]float32, n*rows)
				p.MatMul(want, rows, w, x, cols, n)
				p.MatMul(wantOther, rows, w, other, cols, n)

				p.settle() // no thread is late from an earlier product
				kernels, late := lateKernels(p)
				kernel.Active = kernels
				y, free := make([]float32, n*rows), make(chan error, 1)
				times := p.backups.repeated.Load()
				p.MatMul(y, rows, w, x, cols, n)
				sameBits(t, "done again", y, want)
				if p.backups.repeated.Load() == times {
					t.Error("nothing was done again")
				}
				copy(x, other)
				for range 100 { // the same memory, and other threads' tasks
					p.MatMul(y, rows, w, x, cols, n)
				}
				p.Run(10, func(int) {})
				go func() { free <- w.Close() }()
				select {
				case <-free:
					t.Error("a weight was freed while a thread was reading it")
				case <-time.After(5 * time.Millisecond):
				}
				close(late)
				select {
				case err := <-free:
					if err != nil {
						t.Error(err)
					}
				case <-time.After(time.Minute):
					t.Fatal("a weight without readers is not freed")
				}
				sameBits(t, "of the next product", y, wantOther)
			})
		}
	}
}

// Products of all kinds in the same memory, while threads are delayed by up to some milliseconds at
// random, have the bits that one thread gives.
func TestThreadsLateAtRandom(t *testing.T) {
	was := kernel.Active
	defer func() { kernel.Active = was }()
	const cols = 512
	p, one := NewPool(minBackupThreads), NewPool(1)
	defer p.Close()
	defer one.Close()
	r := rng(3)
	var w [4]*Weight
	for i, rows := range []int{2000, 1024, 40, 2000} {
		w[i] = newWeight(t, Q8_0, normal(r, rows*cols), rows, cols, 0, Units(cols))
	}
	slow := slowKernels(p, func(caller bool) {
		if !caller && rand.IntN(200) == 0 {
			time.Sleep(rand.N(4 * time.Millisecond))
		}
	})
	y, want := make([]float32, 200*5064), make([]float32, 200*5064)
	for round := range 300 {
		n := []int{1, 2, 7, 16, 96, 200}[r.IntN(6)]
		x := normal(r, n*cols)
		multiply := func(p *Pool, y []float32) {
			at, many := y, []Product(nil)
			for _, w := range w {
				many = append(many, Product{Y: at, LdY: w.Rows, W: w, R1: w.Rows})
				at = at[n*w.Rows:]
			}
			switch round % 3 {
			case 1:
				p.MatMulMany(many, x, cols, n)
				return
			case 2:
				a, b := many[0], many[3]
				then := func(r0, r1, t0, t1 int) {
					for i := t0; i < t1; i++ {
						Add(a.Y[i*a.LdY+r0:i*a.LdY+r1], b.Y[i*b.LdY+r0:i*b.LdY+r1])
					}
				}
				if p == one {
					p.MatMulMany([]Product{a, b}, x, cols, n)
					then(0, a.R1, 0, n)
					return
				}
				a.Then = then
				p.MatMulMany([]Product{a, b}, x, cols, n)
				return
			}
			var groups []Group
			for i, m := range many {
				groups = append(groups, Group{Y: m.Y, LdY: m.LdY, W: m.W, T0: n * i / 4, T1: n})
			}
			p.MatMulGroups(groups, x, cols)
		}
		clear(want)
		clear(y)
		kernel.Active = was
		multiply(one, want)
		kernel.Active = slow
		multiply(p, y)
		sameBits(t, fmt.Sprintf("round %d, %d tokens", round, n), y, want)
	}
	if p.backups.repeated.Load() == 0 {
		t.Error("nothing was done again")
	}
}

// A thread that returns after its Run has ended finds nothing to do, even if it held a task.
func TestAttemptOfAnOldRun(t *testing.T) {
	p := NewPool(minBackupThreads)
	defer p.Close()
	const rows, cols = 4096, 512
	w := newWeight(t, Q8_0, normal(rng(1), rows*cols), rows, cols, 0, Units(cols))
	y, x := make([]float32, rows), normal(rng(2), cols)
	p.MatMul(y, rows, w, x, cols, 1)
	p.backups.enabled = true // for a product that has started since
	if p.attempt(1, 50, p.run.Load(), false) {
		t.Error("a task of a product that has ended was stored")
	}
	p.shares.Split(6, 10)
	own := workers.Packed(7, 0, 5)
	p.shares[0].Rest.Store(own)
	if i, ok := p.shares.Steal(0, 6); ok || p.shares[0].Rest.Load() != own {
		t.Errorf("task %d of an ended Run, share %x, want %x", i, p.shares[0].Rest.Load(), own)
	}
}

// Finished tasks of a Run count only for that Run.
func TestTellOfAnOldRun(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	p.left.Store(7<<workers.ShareBits | 2)
	if p.report(6, 2, true) || p.left.Load() != 7<<workers.ShareBits|2 {
		t.Error("a thread of an ended Run took tasks off another")
	}
	if p.report(7, 1, true) || !p.report(7, 1, false) {
		t.Error("the last task is not the last")
	}
}
