package ui

import (
	"sync"
)

// Interrupts dispatches Ctrl-C. It ends the command unless the command has set a handler. A nil
// value has no handlers.
type Interrupts struct {
	mu      sync.Mutex
	handler func() bool
}

// Intercept sets f as the handler of Ctrl-C until the caller calls restore. f returns false if
// Ctrl-C must end the command.
func (i *Interrupts) Intercept(f func() bool) (restore func()) {
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

// Handled reports whether a handler accepted a Ctrl-C.
func (i *Interrupts) Handled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.handler != nil && i.handler()
}
