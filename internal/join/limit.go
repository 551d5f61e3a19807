package join

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of attempts. A wrong token costs its address one of failBurst attempts; one comes
// back every failEvery.
const (
	failBurst    = 5
	failEvery    = 10 * time.Second
	mostSources  = 1024
	mostAtOnce   = 64 // connections of all addresses
	mostOfSource = 4  // connections of one
)

// source returns a network that attempts are counted for: an IPv4 address, or the first 64 bits of
// an IPv6 address.
func source(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap()
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.WithZone("").Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// limiter limits connections and failed attempts, per source and in total.
type limiter struct {
	mu    sync.Mutex
	fails map[netip.Prefix]*rate.Limiter
	open  map[netip.Prefix]int
	total int
}

// enter counts a connection; false: there are too many. leave must follow true.
func (l *limiter) enter(s netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= mostAtOnce || l.open[s] >= mostOfSource {
		return false
	}
	if l.open == nil {
		l.open = map[netip.Prefix]int{}
	}
	l.open[s]++
	l.total++
	return true
}

func (l *limiter) leave(s netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[s]--; l.open[s] == 0 {
		delete(l.open, s)
	}
}

// blocked reports whether a source has failed too often.
func (l *limiter) blocked(s netip.Prefix, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.fails[s]
	return f != nil && f.TokensAt(now) < 1
}

// failed counts a wrong token.
func (l *limiter) failed(s netip.Prefix, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails == nil {
		l.fails = map[netip.Prefix]*rate.Limiter{}
	}
	if len(l.fails) >= mostSources {
		for k, f := range l.fails { // those that have all attempts again
			if f.TokensAt(now) >= failBurst {
				delete(l.fails, k)
			}
		}
		if len(l.fails) >= mostSources { // any one: an attacker with mostSources addresses gains little
			for k := range l.fails {
				delete(l.fails, k)
				break
			}
		}
	}
	if l.fails[s] == nil {
		l.fails[s] = rate.NewLimiter(rate.Every(failEvery), failBurst)
	}
	l.fails[s].AllowN(now, 1)
}
