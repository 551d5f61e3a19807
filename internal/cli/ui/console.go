package ui

import (
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"golang.org/x/term"
)

// Console is standard error. While it shows progress bars or a status line, it writes other
// lines above them, so that a log line does not break a bar.
type Console struct {
	File   *os.File
	mu     sync.Mutex
	bars   *mpb.Progress
	status string
}

// Write writes p above the progress bars or the status line.
func (c *Console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bars != nil {
		if n, err := c.bars.Write(p); err == nil {
			return n, nil
		} // the bars have ended
	}
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

// ShowBars starts an area for progress bars on a terminal. HideBars removes it after every bar
// has ended.
func ShowBars(w io.Writer) *mpb.Progress {
	c, ok := w.(*Console)
	if !ok {
		return mpb.New(mpb.WithOutput(w), mpb.WithWidth(barWidth))
	}
	bars := mpb.New(mpb.WithOutput(c.File), mpb.WithWidth(barWidth))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bars = bars
	return bars
}

// HideBars waits until all bars have ended and removes their area.
func HideBars(w io.Writer, bars *mpb.Progress) {
	bars.Wait()
	if c, ok := w.(*Console); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.bars == bars {
			c.bars = nil
		}
	}
}

const barWidth = 48

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
