package cli

import "sync"

// interrupts is a person's Ctrl-C: it ends the command, unless the command takes it while it
// does something. A nil one is never taken.
type interrupts struct {
	mu      sync.Mutex
	handler func() bool
}

// intercept has f called in place of the command's end, until the caller calls what it gets. f
// returns false for a Ctrl-C that is to end the command.
func (i *interrupts) intercept(f func() bool) (restore func()) {
	if i == nil {
		return func() {}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.handler
	i.handler = f
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.handler = before
	}
}

// handled tells that somebody has taken a Ctrl-C.
func (i *interrupts) handled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.handler != nil && i.handler()
}
