package cli

import "sync"

// interrupts is a person's Ctrl-C: the first one ends the command, unless the command takes
// it for less while it does something. A nil one is never taken.
type interrupts struct {
	mu   sync.Mutex
	take func()
}

// during has f called in place of the command's end, until the caller calls what it gets.
func (i *interrupts) during(f func()) (over func()) {
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
	if i.take == nil {
		return false
	}
	i.take()
	return true
}
