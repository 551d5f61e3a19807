package overlap

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// network has the times of a step: to read the weights, to compute a row, and to wait for the network.
type network struct{ read, row, wait float64 }

func (w network) step(p *plan.Plan) (micros, waited float64) {
	n := float64(max(1, p.MicroBatches))
	compute := w.read*n + w.row*float64(rowsOf(p))
	wait := max(0, w.wait-compute*(n-1)/n) // the other half computes meanwhile
	return compute + wait, wait
}

func done(c *Chooser, p *plan.Plan, w network) (usual bool) {
	micros, waited := w.step(p)
	return c.Done(p, micros, waited)
}

func decode(rows int) *plan.Plan {
	return &plan.Plan{Decode: make([]plan.Run, rows, rows+1)}
}

func prompt(rows int) *plan.Plan {
	return &plan.Plan{Chunks: []plan.Run{{Tokens: make([]int32, rows)}}}
}

func filled(p *plan.Plan) *plan.Plan {
	for i := range p.Decode {
		p.Decode[i].Tokens = make([]int32, 1)
	}
	return p
}

// run takes steps and returns the number of them with two micro-batches, and that of the last one.
func run(c *Chooser, w network, steps int, plans ...func() *plan.Plan) (two, last int) {
	for i := range steps {
		p := filled(plans[i%len(plans)]())
		c.Plan(p, true)
		if last = max(1, p.MicroBatches); last == 2 {
			two++
		}
		done(c, p, w)
	}
	return two, last
}

// The chooser finds the faster number for each kind of steps, and tries nothing where steps do not wait.
func TestChoice(t *testing.T) {
	for name, c := range map[string]struct {
		w    network
		rows func() *plan.Plan
		want int
	}{
		"waits as long as it computes":       {network{100, 50, 900}, func() *plan.Plan { return decode(16) }, 2},
		"weights take longer than the wait":  {network{900, 5, 300}, func() *plan.Plan { return decode(16) }, 1},
		"no wait":                            {network{10, 50, 10}, func() *plan.Plan { return decode(16) }, 1},
		"a prompt":                           {network{900, 50, 9000}, func() *plan.Plan { return prompt(256) }, 2},
		"one row, which cannot be divided":   {network{1, 1, 9000}, func() *plan.Plan { return decode(1) }, 1},
		"decode rows that are almost enough": {network{900, 20, 910}, func() *plan.Plan { return decode(9) }, 1},
	} {
		x := New(0, 2, 0)
		two, last := run(&x, c.w, 200, c.rows)
		if last != c.want || x.Last() != c.want {
			t.Errorf("%s: %d micro-batches, want %d", name, last, c.want)
		}
		if name == "no wait" && two > 0 {
			t.Errorf("%s: %d steps of a trial", name, two)
		}
		if c.want == 1 && two > 2*(turn+skipped) {
			t.Errorf("%s: %d steps were tried", name, two)
		}
	}
}

// Kinds of steps are independent, and a kind is tried again after many steps.
func TestKinds(t *testing.T) {
	x := New(0, 2, 0)
	w := network{100, 50, 900}
	plans := []func() *plan.Plan{func() *plan.Plan { return decode(16) }, func() *plan.Plan { return decode(2) }}
	run(&x, w, 400, plans...)
	if _, last := run(&x, w, 1, plans[0]); last != 2 {
		t.Errorf("%d micro-batches for 16 rows", last)
	}
	w = network{900, 5, 10} // the network is better now
	if _, last := run(&x, w, retryAfter+200, plans[0]); last != 1 {
		t.Errorf("%d micro-batches after the network has changed", last)
	}
}

// All steps have a fixed number, or the largest that the nodes support. During other trials, nothing is
// measured.
func TestFixed(t *testing.T) {
	for _, c := range [][3]int{{2, 2, 2}, {2, 1, 1}, {1, 2, 1}, {2, 0, 1}} {
		x, p := New(c[0], c[1], 0), filled(decode(4))
		if x.Plan(p, true); max(1, p.MicroBatches) != c[2] || x.Last() != c[2] {
			t.Errorf("fixed %d, nodes support %d: %d", c[0], c[1], p.MicroBatches)
		}
	}
	x := New(2, 2, 0)
	one := filled(decode(1))
	if x.Plan(one, true); one.MicroBatches > 1 {
		t.Error("one row is divided")
	}
	x = New(0, 2, 0)
	for range 200 {
		p := filled(decode(16))
		if x.Plan(p, false); p.MicroBatches > 1 || !done(&x, p, network{100, 50, 900}) {
			t.Fatal("a trial during another one")
		}
	}
}

// Steps of a trial with the other number than usual are reported, so that no estimate uses their times.
func TestUsual(t *testing.T) {
	x, w, other := New(0, 2, 0), network{900, 5, 300}, 0
	for range 100 {
		p := filled(decode(16))
		x.Plan(p, true)
		if done(&x, p, w) != (p.MicroBatches < 2) {
			t.Fatal("wrong report")
		}
		other += p.MicroBatches / 2
	}
	if other == 0 {
		t.Fatal("nothing was tried")
	}
}

// Prompts that are read layer by layer have steps whose times repeat with every layer: the later the tokens, the
// longer the step. Turns of a trial have whole layers, so that they compare the same tokens. The later layers of SwiftKV
// have a trial of their own.
func TestSweeps(t *testing.T) {
	const rows, layers, later = 64, 16, 8
	for _, steps := range []int{1, 2, 3, 8, 13, 32, 100} { // of a layer
		for want, of := range map[int]float64{1: 1.01, 2: 0.95} { // time with two micro-batches, divided by that with one
			x, usual := New(0, 2, later), [2]int{}
			for i := range 8 * layers * steps { // eight prompts
				w := plan.Sweep{Seq: uint64(i / (layers * steps)), From: i / steps % layers, Start: i % steps * rows, Tokens: make([]int32, rows)}
				if w.Start+rows == steps*rows && steps > 1 {
					w.Tokens = w.Tokens[:9]
				}
				p := &plan.Plan{Sweeps: []plan.Sweep{w}}
				x.Plan(p, true)
				n, micros := max(1, p.MicroBatches), float64(len(w.Tokens))*float64(100+w.Start)
				part, times := w.From/later, of
				if part == 1 {
					times = 0.95 * 1.01 / of // the other number is faster
				}
				if n == 2 {
					micros *= times
				}
				if x.Done(p, micros, 0.3*micros) && len(w.Tokens) == rows {
					usual[part] = n
				}
			}
			if usual != [2]int{want, 3 - want} {
				t.Errorf("%d steps of a layer, two micro-batches take %v of the time of one: %d are chosen", steps, of, usual)
			}
		}
	}
}
