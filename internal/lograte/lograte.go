// Package lograte limits the log lines of one kind: any client that can reach a listener can make it log
// errors at any rate.
package lograte

import (
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	burst    = 10               // lines of a kind in a window
	window   = 10 * time.Second // of a kind, from its first line on
	maxKinds = 256              // all further kinds share one limit
)

// Limiter limits the lines of each kind. The zero Limiter is ready, and its methods may be called
// concurrently.
type Limiter struct {
	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	began time.Time
	lines int // in this window
}

// Allow reports whether a line of a kind may be written now, how many of that kind were suppressed
// since the last written one, and whether it is the last of its window.
func (l *Limiter) Allow(of string, now time.Time) (ok bool, leftOut int, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]*kind{}
	}
	k := l.kinds[of]
	if k == nil {
		if len(l.kinds) >= maxKinds {
			of = ""
			k = l.kinds[of]
		}
		if k == nil {
			k = &kind{began: now}
			l.kinds[of] = k
		}
	}
	if now.Sub(k.began) >= window {
		leftOut = max(0, k.lines-burst)
		k.began, k.lines = now, 0
	}
	k.lines++
	return k.lines <= burst, leftOut, k.lines == burst
}

// Attrs returns the log attributes for a line that Allow admitted.
func Attrs(leftOut int, last bool) (out []any) {
	if leftOut > 0 {
		out = append(out, "left_out", leftOut)
	}
	if last {
		out = append(out, "more", "lines of this kind are left out and counted")
	}
	return out
}

// Kind reduces a line to its kind: it drops numbers and quoted text.
func Kind(line string) string {
	var b strings.Builder
	quoted := false
	for _, r := range line[:min(len(line), 200)] {
		switch {
		case r == '"':
			quoted = !quoted
		case quoted || unicode.IsDigit(r) || r > unicode.MaxASCII || r < ' ':
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
