package cli

import "sync"

// interrupts is a person's Ctrl-C: it ends the command, unless the command takes it while it
// does something. A nil one is never taken.
type interrupts struct {
	mu   sync.Mutex
	take func() bool
}

// during has f called in place of the command's end, until the caller calls what it gets. f
// returns false for a Ctrl-C that is to end the command.
func (i *interrupts) during(f func() bool) (over func()) {
	if i == nil {
		return func() {}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.take
	i.take = f
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.take = before
	}
}

// taken tells that somebody has taken a Ctrl-C.
func (i *interrupts) taken() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.take != nil && i.take()
}
