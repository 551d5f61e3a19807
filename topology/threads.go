package topology

// Threads are the compute threads of a node. Prompts use all of them. A decode step may be faster
// with fewer: products of a small model end before the last thread has started, and waiting threads
// occupy CPUs that messages need. The batcher tries while steps run how often halving Max helps
// (actors/batcher).
type Threads struct {
	Max int `json:"threads"`
	Min int `json:"fewest"` // in a decode step
}

// ThreadsOf returns the threads of each of several nodes on one machine: an equal part of the
// processors, and no fewer than a quarter of it. Of four processors or more a node leaves one to
// messages: if a message waits for a CPU, the step waits on all nodes.
func ThreadsOf(processors, nodes int) Threads {
	even, least := max(1, processors/max(1, nodes)), 1
	if nodes <= 1 {
		least = min(even, 2)
	}
	t := Threads{even, max(least, even/4)}
	if even >= 4 {
		t.Max--
	}
	return t
}

// Valid reports whether a node may have them.
func (t Threads) Valid() bool { return t.Min >= 1 && t.Min <= t.Max }

// MaxShift returns how often the number of threads can be halved; 0 for a node that does not report
// Min.
func (t Threads) MaxShift() (n int) {
	for half := (t.Max + 1) / 2; t.Min > 0 && half >= t.Min && half < t.Max; n++ {
		t.Max, half = half, (half+1)/2
	}
	return n
}

// Shifted returns the number of threads after halving it shift times, rounded up, or after MaxShift
// times if that is less.
func (t Threads) Shifted(shift int) int {
	for range min(shift, t.MaxShift()) {
		t.Max = (t.Max + 1) / 2
	}
	return t.Max
}
