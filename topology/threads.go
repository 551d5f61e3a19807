package topology

// Threads are the compute threads of a node. Prompts are read by all of them; a step that decodes
// may be faster with fewer, as products of a small model end before the last thread has begun, and
// threads that wait for work hold processors that messages need. Which number serves best is found
// while steps run (actors/batcher): the most, halved so often.
type Threads struct {
	Most   int `json:"threads"`
	Fewest int `json:"fewest"` // of a step
}

// ThreadsOf are those of each of so many nodes of one machine: an even part of the processors, and
// no fewer than a quarter of it. Of four processors or more a node leaves one to messages: a step
// that waits for a message behind threads that wait for work has waited for all nodes.
func ThreadsOf(processors, nodes int) Threads {
	even, least := max(1, processors/max(1, nodes)), 1
	if nodes <= 1 {
		least = min(even, 2)
	}
	t := Threads{even, max(least, even/4)}
	if even >= 4 {
		t.Most--
	}
	return t
}

// Valid says that a node may have them.
func (t Threads) Valid() bool { return t.Fewest >= 1 && t.Fewest <= t.Most }

// Halvings is how often there may be half as many; never, of a node that does not say.
func (t Threads) Halvings() (n int) {
	for half := (t.Most + 1) / 2; t.Fewest > 0 && half >= t.Fewest && half < t.Most; n++ {
		t.Most, half = half, (half+1)/2
	}
	return n
}

// Halved is how many there are after so many halvings, or as many as there may be.
func (t Threads) Halved(times int) int {
	for range min(times, t.Halvings()) {
		t.Most = (t.Most + 1) / 2
	}
	return t.Most
}
