package layer

import "time"

// own is the compute of a step that the ranks need not have alike: projections and attention are
// those of the sequences that a rank owns. It is measured by the clock, and a pause of the process
// must not pass for work: no run of stages counts for more than twice what it took in the step
// before.
type own struct {
	before []time.Duration // of each run of stages of the newest step
	at     int
	sum    time.Duration
}

func (o *own) begin() { o.at, o.sum = 0, 0 }

func (o *own) add(took time.Duration) {
	if o.at == len(o.before) {
		o.before = append(o.before, 0)
	}
	o.sum += min(took, 2*o.before[o.at])
	o.before[o.at] = took
	o.at++
}

// Own is, of Compute, what other ranks may not have had to do.
func (b *Batch) Own() time.Duration { return b.own.sum }
