package ui

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/term"
)

// Console is standard error. While it shows a status line, it writes other lines above it.
type Console struct {
	File   *os.File
	mu     sync.Mutex
	status string
}

// Write writes p above the status line.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status == "" {
		return c.File.Write(p)
	}
	if _, err := c.File.Write(slices.Concat([]byte(clearLine), p, []byte(c.status))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ShowStatus replaces the status line of a terminal; "" removes it.
func ShowStatus(w io.Writer, text string) {
	if c, ok := w.(*Console); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.status, w = text, c.File
	}
	fmt.Fprint(w, clearLine, text)
}

const clearLine = "\r\x1b[K"

// IsTerminal reports whether w is a terminal, or a Console on one.
func IsTerminal(w any) bool {
	if c, ok := w.(*Console); ok {
		w = c.File
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	return term.IsTerminal(int(f.Fd()))
}
