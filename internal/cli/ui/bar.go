package ui

import (
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const (
	BarAfter     = 500 * time.Millisecond
	LineInterval = 5 * time.Second
)

// bar is a progress bar on standard error, if that is a terminal.
type bar struct {
	on       io.Writer
	progress *mpb.Progress
	bar      *mpb.Bar
}

// NewBar returns a bar with a name. If show is false, the bar prints nothing.
func NewBar(e *Env, name string, show bool) *bar {
	if !show || !IsTerminal(e.Stderr) {
		return &bar{}
	}
	p := ShowBars(e.Stderr)
	return &bar{on: e.Stderr, progress: p, bar: p.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(name+" ")), mpb.AppendDecorators(decor.Percentage()))}
}

func (b *bar) Set(done, total int64) {
	if b.bar != nil {
		b.bar.SetTotal(total, false)
		b.bar.SetCurrent(done)
	}
}

func (b *bar) End() {
	if b.bar != nil {
		b.bar.SetTotal(-1, true)
		HideBars(b.on, b.progress)
	}
}
