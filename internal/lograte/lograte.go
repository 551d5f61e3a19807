// Package lograte bounds how many lines of one kind a log takes: whoever can send to a
// listener can make it complain, as fast as he likes.
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
	maxKinds = 256              // the others are one kind
)

// Limiter counts the lines of each kind. The zero Limiter is ready; its methods may be
// called from any goroutine.
type Limiter struct {
	mu    sync.Mutex
	kinds map[string]*kind
}

type kind struct {
	began time.Time
	lines int // in this window
}

// Allow tells whether a line of a kind may be written now, how many of that kind were
// left out since the last one that was, and whether it is the last of its window.
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

// Attrs are those of a line that Allow let through.
func Attrs(leftOut int, last bool) (out []any) {
	if leftOut > 0 {
		out = append(out, "left_out", leftOut)
	}
	if last {
		out = append(out, "more", "lines of this kind are left out and counted")
	}
	return out
}

// Kind is a line without what differs between lines of a kind: numbers, and what is quoted.
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
