// Package owntime measures the compute time that can differ between ranks: a rank projects and
// attends for the sequences that it owns.
package owntime

import "time"

// Meter sums the time of the runs of stages in a step. It uses wall-clock time, and a pause of the
// process must not count as work: a run counts for at most twice its time in the step before.
type Meter struct {
	Sum    time.Duration
	before []time.Duration // per run of stages, in the newest step
	at     int
}

// Begin starts a step.
func (m *Meter) Begin() { m.at, m.Sum = 0, 0 }

// Add counts the next run of stages.
func (m *Meter) Add(took time.Duration) {
	if m.at == len(m.before) {
		m.before = append(m.before, 0)
	}
	m.Sum += min(took, 2*m.before[m.at])
	m.before[m.at] = took
	m.at++
}
