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

// ShowStatus replaces the status line of a terminal; "" removes it. It cuts a text that would wrap, because only
// one row can be replaced.
func ShowStatus(w io.Writer, text string) {
	if width, _ := Size(w); width > 0 {
		text = Clip(text, width-1)
	}
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

// Size returns the columns and rows of a terminal, or 0 if they are unknown.
func Size(w any) (width, height int) {
	if c, ok := w.(*Console); ok {
		w = c.File
	}
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0
	}
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0, 0
	}
	return width, height
}

// Clip returns the first characters of a text.
func Clip(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:max(0, most)])
	}
	return text
}
