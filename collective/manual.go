package collective

import "time"

// ManualGroup is a Group without goroutines: its owner calls Work and advances its clock, so its
// behaviour depends on nothing but the calls. Simulations and replays use it. The operations are
// those of Group.
type ManualGroup struct{ *Group }

// NewManualGroup joins rank cfg.Rank to its group, like NewGroup. The transport must call the receive
// function from the owner's goroutine, which then calls Work.
func NewManualGroup(cfg Config, t Transport) (ManualGroup, error) {
	g, err := newGroup(cfg, t)
	if err != nil {
		return ManualGroup{}, err
	}
	g.manual = true
	t.Receive(g.receive)
	return ManualGroup{g}, nil
}

// Work sends the queued messages and replays early messages, until nothing is left. It must not be
// called from done.
func (m ManualGroup) Work() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drain()
}

// Advance moves the clock and checks the deadlines. As with the timer of a Group, one call counts for
// at most two periods (see Period), so that a pause of this process is not blamed on the peers.
func (m ManualGroup) Advance(d time.Duration) {
	m.mu.Lock()
	m.clock += int64(min(d, 2*m.period()))
	m.st.tick(m.clock)
	m.unlock()
}

// Period returns how often a Group checks its deadlines while operations are pending.
func (m ManualGroup) Period() time.Duration { return m.period() }

// Pending returns the number of operations that were started and are not done.
func (m ManualGroup) Pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.st.ops)
}
