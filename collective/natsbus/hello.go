package natsbus

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/collective"
)

// The hello barrier. On NATS the first messages to a peer are lost until its
// interest has spread, on either subject, and nothing tells when that is. So
// every pair proves both subjects both ways before the first tensor: hellos go
// out on them again and again until each side has heard the other on both and
// has been told that it was heard. Then whatever is sent arrives.
//
// Answers never stop: a rank that is ready still answers one that asks.

// helloBytes is the payload: placement digest, then flags.
const helloBytes = 33

const (
	heardBroadcast = 1 << iota // I heard you on the broadcast subject
	heardDirect                // ... on the direct one
	ask                        // answer this
)

// greeter is the barrier as a pure machine.
type greeter struct {
	rank   int
	pairs  []pair // by rank
	digest [32]byte
	left   int
	wrong  error // a peer of this epoch with another placement
	notes  []string
}

type pair struct {
	heard byte // what I heard of the peer
	acked byte // what it says it heard of me
}

func (p pair) complete() bool {
	const both = heardBroadcast | heardDirect
	return p.heard == both && p.acked == both
}

// greeting is a hello to send; dst -1 is the broadcast subject.
type greeting struct {
	dst   int
	flags byte
}

func newGreeter(rank, size int, digest [32]byte) *greeter {
	return &greeter{rank: rank, pairs: make([]pair, size), digest: digest, left: size - 1, notes: make([]string, size)}
}

// tick is called again and again until ready.
func (g *greeter) tick(out []greeting) []greeting {
	if g.left == 0 {
		return out
	}
	out = append(out, greeting{dst: -1})
	for r, p := range g.pairs {
		if r != g.rank && !p.complete() {
			out = append(out, greeting{r, p.heard | ask})
		}
	}
	return out
}

// hello takes one from src, on the direct subject or the broadcast one.
func (g *greeter) hello(src int, direct bool, payload []byte, out []greeting) []greeting {
	if len(payload) != helloBytes {
		g.notes[src] = fmt.Sprintf("hello of %d bytes", len(payload))
		return out
	}
	if [32]byte(payload) != g.digest {
		if g.wrong == nil {
			g.wrong = fmt.Errorf("rank %d has another placement for this epoch (digest %x, here %x)", src, payload[:4], g.digest[:4])
		}
		if !direct || payload[32]&ask != 0 { // the other side is to learn of it too
			out = append(out, greeting{dst: src})
		}
		return out
	}
	p := &g.pairs[src]
	before := *p
	flags := payload[32]
	if direct {
		p.heard |= heardDirect
		p.acked |= flags & (heardBroadcast | heardDirect)
	} else {
		p.heard |= heardBroadcast
	}
	if !before.complete() && p.complete() {
		g.left--
	}
	// Every first-seen hello and every question is answered. Only what is new
	// asks back, so two ranks cannot keep each other busy.
	fresh := p.heard != before.heard
	if direct && !fresh && flags&ask == 0 {
		return out
	}
	answer := greeting{src, p.heard}
	if fresh && !p.complete() {
		answer.flags |= ask
	}
	out = append(out, answer)
	if direct && flags&ask != 0 && flags&heardBroadcast == 0 {
		out = append(out, greeting{dst: -1})
	}
	return out
}

func (g *greeter) payload(b []byte, flags byte) {
	copy(b, g.digest[:])
	b[32] = flags
}

// missing says which ranks keep the barrier closed and why.
func (g *greeter) missing() (ranks []int, why []string) {
	for r, p := range g.pairs {
		if r == g.rank || p.complete() {
			continue
		}
		ranks = append(ranks, r)
		switch {
		case g.notes[r] != "":
			why = append(why, fmt.Sprintf("rank %d: %s", r, g.notes[r]))
		case p.heard == 0:
			why = append(why, fmt.Sprintf("rank %d not heard", r))
		default:
			why = append(why, fmt.Sprintf("rank %d heard, but it does not hear this rank yet", r))
		}
	}
	return ranks, why
}

// NotReadyError names the ranks that a barrier waited for in vain.
type NotReadyError struct {
	Ranks []int
	Why   []string
	Cause error
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("%v: %v: %v", ErrNotReady, e.Why, e.Cause)
}

func (e *NotReadyError) Unwrap() []error { return []error{ErrNotReady, e.Cause} }

// Missing lists the ranks.
func (e *NotReadyError) Missing() []int { return slices.Clone(e.Ranks) }

var _ error = (*NotReadyError)(nil)

// isHello tells hellos from the group's own messages.
func isHello(msg []byte) bool {
	return len(msg) >= collective.HeaderBytes && collective.Kind(msg[2]) == collective.KindHello
}
