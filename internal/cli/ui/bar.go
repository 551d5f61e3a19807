package ui

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	BarAfter     = 500 * time.Millisecond
	LineInterval = 5 * time.Second
	// statusLineInterval is the time between two lines of a StatusLine without a terminal.
	statusLineInterval = time.Minute
)

// BarText returns a progress bar of one line after a name. A total of 0 gives an empty bar.
func BarText(name string, done, total int64) string {
	const width = 24
	full := int(width * Percent(done, total) / 100)
	return fmt.Sprintf("%s [%s%s]", name, strings.Repeat("=", full), strings.Repeat(" ", width-full))
}

// Percent returns the share of total that is done, rounded down, in 0 to 100.
func Percent(done, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return 100 * max(0, min(done, total)) / total
}

// StatusLine shows the progress of long work in the status line of standard error, if that is a terminal. Otherwise it
// prints a line every minute. Its methods may be called concurrently.
type StatusLine struct {
	e        *Env
	terminal bool
	mu       sync.Mutex
	last     string
	lineAt   time.Time // of the last line; without a terminal
}

// NewStatusLine returns an empty line. If show is false, it prints nothing.
func NewStatusLine(e *Env, show bool) *StatusLine {
	if !show {
		return &StatusLine{}
	}
	return &StatusLine{e: e, terminal: IsTerminal(e.Stderr), lineAt: time.Now()}
}

// Set shows the text.
func (l *StatusLine) Set(text string) {
	if l.e == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.terminal && text != l.last:
		l.last = text
		ShowStatus(l.e.Stderr, text)
	case !l.terminal && time.Since(l.lineAt) >= statusLineInterval:
		l.lineAt = time.Now()
		fmt.Fprintln(l.e.Stderr, text)
	}
}

// End removes the line from the terminal.
func (l *StatusLine) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != "" {
		l.last = ""
		ShowStatus(l.e.Stderr, "")
	}
}

// Bar is a progress bar in a StatusLine. Without a terminal it is a percentage.
type Bar struct {
	*StatusLine
	name string
}

// NewBar returns a bar with a name. If show is false, the bar prints nothing.
func NewBar(e *Env, name string, show bool) *Bar { return &Bar{NewStatusLine(e, show), name} }

// Set shows the progress.
func (b *Bar) Set(done, total int64) {
	text := b.name
	if b.terminal {
		text = BarText(b.name, done, total)
	}
	b.StatusLine.Set(fmt.Sprintf("%s %d%%", text, Percent(done, total)))
}
