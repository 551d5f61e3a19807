package ui

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"unicode"

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

// TextWriter returns a writer for text that others wrote, such as the answer of a model. Before a terminal it
// replaces control characters, except line breaks and tabs, by U+FFFD: they could change the terminal or its
// clipboard. Each write is whole characters.
func TextWriter(w io.Writer) io.Writer {
	if !IsTerminal(w) {
		return w
	}
	return textWriter{w}
}

type textWriter struct{ w io.Writer }

func (t textWriter) Write(p []byte) (int, error) {
	shown := bytes.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, bytes.ReplaceAll(p, []byte("\r\n"), []byte("\n")))
	if _, err := t.w.Write(shown); err != nil {
		return 0, err
	}
	return len(p), nil
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
