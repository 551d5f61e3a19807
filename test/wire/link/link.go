// Package link simulates a network link: it computes when packets arrive and which are lost. It has no
// clock: time is an argument, and a seed determines the random numbers.
package link

import (
	"math/rand/v2"
	"time"
)

// DefaultQueue is the queue of a link with a rate, in bytes, if none is set.
const DefaultQueue = 512 << 10

// Settings describe one direction of a link. The zero value delivers every packet at once.
type Settings struct {
	Rate      int64         // bytes per second; 0: unlimited
	Delay     time.Duration // propagation delay
	Jitter    time.Duration // a uniform random delay of at most this much is added
	Queue     int           // bytes that may wait for the rate; 0: DefaultQueue
	Loss      float64       // probability that a packet is lost
	Reorder   float64       // probability that a packet is held back so that later ones overtake it
	Duplicate float64       // probability that a packet arrives twice
	Cut       bool          // nothing passes
}

// HoldBack returns the time by which a reordered packet is late, in addition to the delay.
func (s *Settings) HoldBack() time.Duration { return max(s.Delay+s.Jitter, time.Millisecond) }

// Counters count the packets of a link.
type Counters struct {
	Sent, Bytes           int64 // packets and bytes that passed
	Full                  int64 // packets dropped by a full queue
	Lost, Cut             int64
	Reordered, Duplicated int64
}

// Link is one direction of a link. It is a queue of limited size before a transmitter of a fixed
// rate. Only Reorder changes the order of packets; Jitter does not.
type Link struct {
	Settings
	Counters
	random *rand.Rand
	free   time.Duration // when the transmitter has sent everything in the queue
	last   time.Duration // latest arrival so far
}

// New returns a link. Equal seeds give equal random numbers.
func New(s Settings, seed, stream uint64) *Link {
	return &Link{Settings: s, random: rand.New(rand.NewPCG(seed, stream))}
}

// Send passes a packet to the link at time now. It returns the n times at which the packet arrives at the
// other end. n is 0, 1 or 2.
func (l *Link) Send(now time.Duration, bytes int) (arrivals [2]time.Duration, n int) {
	if l.Settings.Cut {
		l.Counters.Cut++
		return arrivals, 0
	}
	sent := now
	if l.Rate > 0 {
		l.free = max(l.free, now)
		queue := l.Queue
		if queue == 0 {
			queue = DefaultQueue
		}
		waiting := float64(l.free-now) / float64(time.Second) * float64(l.Rate)
		if waiting+float64(bytes) > float64(max(queue, bytes)) { // an empty queue takes a packet of any size
			l.Full++
			return arrivals, 0
		}
		l.free += time.Duration(float64(bytes) / float64(l.Rate) * float64(time.Second))
		sent = l.free
	}
	if l.chance(l.Loss) {
		l.Lost++
		return arrivals, 0
	}
	at := sent + l.Delay
	if l.Jitter > 0 {
		at += time.Duration(l.random.Int64N(int64(l.Jitter) + 1))
	}
	if l.chance(l.Reorder) {
		l.Reordered++
		at += l.HoldBack()
	} else {
		at = max(at, l.last)
		l.last = at
	}
	l.Sent++
	l.Bytes += int64(bytes)
	arrivals, n = [2]time.Duration{at, at}, 1
	if l.chance(l.Duplicate) {
		l.Duplicated++
		n = 2
	}
	return arrivals, n
}

func (l *Link) chance(p float64) bool { return p > 0 && l.random.Float64() < p }
