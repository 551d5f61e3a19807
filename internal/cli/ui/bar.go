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
	// barLineInterval is the time between two lines of a bar without a terminal.
	barLineInterval = time.Minute
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

// bar is a progress bar in the status line of standard error, if that is a terminal. Otherwise it prints
// a line with the percentage every minute.
type bar struct {
	e        *Env
	name     string
	terminal bool
	mu       sync.Mutex
	last     string
	lineAt   time.Time // of the last line; without a terminal
}

// NewBar returns a bar with a name. If show is false, the bar prints nothing.
func NewBar(e *Env, name string, show bool) *bar {
	if !show {
		return &bar{}
	}
	return &bar{e: e, name: name, terminal: IsTerminal(e.Stderr), lineAt: time.Now()}
}

// Set shows the progress. It may be called concurrently.
func (b *bar) Set(done, total int64) {
	if b.e == nil {
		return
	}
	text := fmt.Sprintf("%s %d%%", BarText(b.name, done, total), Percent(done, total))
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.terminal {
		if time.Since(b.lineAt) >= barLineInterval {
			b.lineAt = time.Now()
			fmt.Fprintf(b.e.Stderr, "%s %d%%\n", b.name, Percent(done, total))
		}
		return
	}
	if text != b.last {
		b.last = text
		ShowStatus(b.e.Stderr, text)
	}
}

// End removes the bar.
func (b *bar) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last != "" {
		b.last = ""
		ShowStatus(b.e.Stderr, "")
	}
}
