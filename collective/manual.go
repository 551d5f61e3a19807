package collective

import "time"

// Manual is a Group whose owner does its work and moves its clock, in one
// goroutine: what it does depends on nothing but the calls. Simulations and
// replays use it; the operations are those of Group.
type Manual struct{ *Group }

// NewManual joins rank cfg.Rank to its group, like NewGroup. The transport calls
// the receive function from the owner's goroutine, and Work follows.
func NewManual(cfg Config, t Transport) (Manual, error) {
	g, err := newGroup(cfg, t)
	if err != nil {
		return Manual{}, err
	}
	g.manual = true
	t.Receive(g.receive)
	return Manual{g}, nil
}

// Work sends what is queued and replays what came early, until nothing is left.
// It must not be called from done.
func (m Manual) Work() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns()
}

// Advance moves the clock on and looks at the deadlines. As on a timer, no call
// counts for more than two periods (see Period): a pause of this process is not
// blamed on the peers.
func (m Manual) Advance(d time.Duration) {
	m.mu.Lock()
	m.clock += int64(min(d, 2*m.period()))
	m.st.tick(m.clock)
	m.leave()
}

// Period is how often a Group looks at its deadlines while operations are pending.
func (m Manual) Period() time.Duration { return m.period() }

// Pending is the number of operations that were started and are not done.
func (m Manual) Pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.st.ops)
}
