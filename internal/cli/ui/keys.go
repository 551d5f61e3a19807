package ui

import (
	"os"

	"golang.org/x/term"
)

// WatchKeys switches a terminal to raw mode and calls pressed with each key. stop restores the
// mode. In raw mode Ctrl-C is a key and not a signal, and output needs \r\n. If in is not a
// terminal, WatchKeys does nothing and live is false.
func WatchKeys(in any, pressed func(key byte)) (stop func(), live bool) {
	f, ok := in.(*os.File)
	if !ok || !IsTerminal(f) {
		return func() {}, false
	}
	before, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return func() {}, false
	}
	go func() { // a read of a terminal cannot be cancelled: the goroutine ends with the process
		var b [1]byte
		for {
			if n, err := f.Read(b[:]); err != nil || n == 0 {
				return
			}
			pressed(b[0])
		}
	}()
	return func() { _ = term.Restore(int(f.Fd()), before) }, true // the terminal may be gone
}

const (
	CtrlC = 3
	CtrlD = 4
)
