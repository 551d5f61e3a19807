package layer

import "time"

// own measures the compute time that can differ between ranks: a rank projects and attends for the
// sequences that it owns. It uses wall-clock time, and a pause of the process must not count as
// work: a run of stages counts for at most twice its time in the step before.
type own struct {
	before []time.Duration // per run of stages, in the newest step
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

// Own returns the portion of Compute that other ranks may not have.
func (b *Batch) Own() time.Duration { return b.own.sum }
