// Package overlap chooses the number of micro-batches of each step. With two of them one computes while the
// other waits for the network, but the weights are read twice. The bits are the same. The faster number
// depends on the model, the rows, the nodes and the network, so this package measures: where steps wait, it tries
// both numbers and keeps the faster one (docs/decisions/passes.md).
package overlap

import (
	"math/bits"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/plan"
)

const (
	// worthTrying is the share of a step's time from which waiting is worth a trial. Overlap saves at most
	// the wait, and a second reading of the weights costs about as much as this share at least.
	worthTrying = 0.15
	// better is the share of the time with one number below which the other replaces it.
	better = 0.97
	// turn is the least number of measured steps of one number in a turn of a trial.
	turn = 6
	// skipped is the number of steps after a change that are not measured.
	skipped = 1
	// rounds is the number of turns of a trial, which alternate between the numbers.
	rounds = 4
	// known is the number of steps of a kind after which its share of waiting is known.
	known = 8
	// retryAfter is the number of steps after which a kind of steps is tried again.
	retryAfter = 1024
)

// Chooser chooses for one batcher.
type Chooser struct {
	fixed int // number of micro-batches of every step; 0: chosen for each kind of steps
	most  int // largest number that the nodes support
	kinds map[kindOf]*kind
	kind  *kind // of the plan in flight; nil: its time is not used
	last  int   // number of the newest plan
	swept swept // of the newest plan with a sweep
	later int   // see kvcache.Geometry
}

// swept names the layers that read a prompt.
type swept struct {
	seq  uint64
	from int
}

// New returns a chooser for nodes that support up to most micro-batches. fixed is the number for all
// steps, or 0. later is the first of SwiftKV's later layers; 0: the model has none.
func New(fixed, most, later int) Chooser {
	return Chooser{fixed: min(fixed, max(1, most)), most: most, later: later, last: 1}
}

// Last returns the number of micro-batches of the newest plan.
func (c *Chooser) Last() int { return c.last }

// kindOf names a kind of steps: with prompts or without, the rows in powers of two, and the mean position of
// decode rows in powers of four from 1024 on. Steps with sweeps are one kind, since their passes have equally many
// rows. Sweeps through SwiftKV's later layers are a kind of their own.
type kindOf struct {
	prompts, sweeps, later bool
	rows, back             int
}

// kind holds the measurements of one kind of steps. Times are microseconds of a row.
type kind struct {
	best  int          // number of micro-batches
	turns int          // completed turns of the current trial; rounds: no trial
	trial [2][]float64 // times of the trial, with one and with two
	now   []float64    // times of the current turn
	after int          // steps since the number changed
	since int          // steps since the last trial
	share float64      // smoothed share of waiting in steps with one micro-batch; -1: not known
}

func (c *Chooser) of(p *plan.Plan) *kind {
	o := kindOf{prompts: len(p.Chunks)+len(p.Sweeps) > 0}
	n, sum := rowsOf(p), 0
	for i := range p.Decode {
		sum += p.Decode[i].Start
	}
	if o.sweeps = len(p.Sweeps) > 0; o.sweeps {
		o.later = c.later > 0 && p.Sweeps[0].From >= c.later
	} else {
		o.rows = bits.Len(uint(n))
	}
	if !o.prompts {
		o.back = (bits.Len(uint(sum/len(p.Decode)/1024)) + 1) / 2
	}
	k := c.kinds[o]
	if k == nil {
		k = &kind{best: 1, turns: rounds, since: retryAfter - known, share: -1}
		if c.kinds == nil {
			c.kinds = map[kindOf]*kind{}
		}
		c.kinds[o] = k
	}
	return k
}

// rowsOf returns the number of rows of a plan's passes, with those of sweeps.
func rowsOf(p *plan.Plan) int {
	n := p.Tokens() * p.PassCount()
	for i := range p.Sweeps {
		n += len(p.Sweeps[i].Tokens)
	}
	return n
}

// Plan sets the number of micro-batches of a plan. steady means that nothing else about such steps is being
// tried at the moment, so that their times can be compared.
func (c *Chooser) Plan(p *plan.Plan, steady bool) {
	c.kind = nil
	begins := c.begins(p)
	n := c.fixed
	if rowsOf(p)/p.PassCount() < 2 {
		n = 1
	} else if n == 0 {
		n = 1
		if c.most > 1 {
			k := c.of(p)
			n = k.best
			if steady && len(p.Index)+len(p.Copy)+len(p.Spill) == 0 {
				n, c.kind = k.next(begins), k
			}
		}
	}
	c.last = n
	if n > 1 {
		p.MicroBatches = n
	}
}

// begins reports whether a turn of a trial may begin or end before a plan. The later the tokens of a sweep, the longer
// its step takes, so a turn has all sweeps of some layers.
func (c *Chooser) begins(p *plan.Plan) bool {
	if len(p.Sweeps) == 0 {
		return true
	}
	now := swept{p.Sweeps[0].Seq, p.Sweeps[0].From}
	was := c.swept
	c.swept = now
	return now != was
}

// next returns the number to use in the next step of this kind, before which a turn may begin or end.
func (k *kind) next(begins bool) int {
	if begins && len(k.now) >= turn {
		k.turned(k.tried())
	}
	if k.turns < rounds {
		return k.tried()
	}
	if k.since++; begins && k.since > retryAfter && (k.best > 1 || k.share >= worthTrying) {
		k.turns, k.since, k.after, k.trial = 0, 0, 0, [2][]float64{}
		return k.tried()
	}
	return k.best
}

// tried returns the number of the current turn of a trial. The second pair of turns is in the opposite order,
// because steps become slower as sequences grow.
func (k *kind) tried() int { return 1 + (k.turns+k.turns/2)%2 }

// Done records the microseconds of the plan in flight, and those that its slowest node waited for the others.
// It reports whether the plan had the usual number of micro-batches for its kind.
func (c *Chooser) Done(p *plan.Plan, micros, waited float64) (usual bool) {
	k := c.kind
	c.kind = nil
	if k == nil || micros <= 0 {
		return true
	}
	n := max(1, p.MicroBatches)
	if n == 1 {
		k.share = smoothed(k.share, min(1, waited/micros))
	}
	if k.turns == rounds {
		return true
	}
	if k.after++; k.after > skipped {
		k.now = append(k.now, micros/float64(rowsOf(p)))
	}
	return n == k.best
}

// turned ends the turn of a number.
func (k *kind) turned(n int) {
	k.trial[n-1] = append(k.trial[n-1], k.now...)
	k.now, k.after = k.now[:0], 0
	if k.turns++; k.turns == rounds {
		k.choose()
	}
}

// choose ends a trial.
func (k *kind) choose() {
	other := 3 - k.best
	if median(k.trial[other-1]) < better*median(k.trial[k.best-1]) {
		k.best = other
	}
	k.trial = [2][]float64{}
}

func median(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }

func smoothed(was, now float64) float64 {
	if was < 0 {
		return now
	}
	return was + (now-was)/8
}
