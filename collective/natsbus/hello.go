package natsbus

import (
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/collective"
)

// The hello barrier. NATS drops the first messages to a peer until its subscription has spread, on
// either subject, and does not report when it has. So every pair of ranks tests both subjects in both
// directions before the first tensor. Each side repeats its hellos until it has received those of the
// other side on both subjects and the other side has confirmed the same. From then on messages arrive.
//
// A rank that is ready keeps answering hellos that request an answer.

// helloBytes is the size of the payload: placement digest, then flags.
const helloBytes = 33

const (
	gotBroadcast   = 1 << iota // the sender has received the peer's broadcast
	gotDirect                  // ... and its direct message
	replyRequested             // the receiver must answer
)

// barrier is the hello barrier as a pure state machine.
type barrier struct {
	rank      int
	peers     []peerState // by rank
	digest    [32]byte
	remaining int
	wrong     error // names a peer of this epoch that has another placement
	reasons   []string
}

type peerState struct {
	received byte // messages of the peer that this rank has received, as bits
	acked    byte // messages of this rank that the peer has confirmed, as bits
}

func (p peerState) complete() bool {
	const both = gotBroadcast | gotDirect
	return p.received == both && p.acked == both
}

// hello is a hello to send; dst -1 is the broadcast subject.
type hello struct {
	dst   int
	flags byte
}

func newBarrier(rank, size int, digest [32]byte) *barrier {
	return &barrier{rank: rank, peers: make([]peerState, size), digest: digest, remaining: size - 1, reasons: make([]string, size)}
}

// tick returns the hellos of one round. It is called repeatedly until the barrier completes.
func (g *barrier) tick(out []hello) []hello {
	if g.remaining == 0 {
		return out
	}
	out = append(out, hello{dst: -1})
	for r, p := range g.peers {
		if r != g.rank && !p.complete() {
			out = append(out, hello{r, p.received | replyRequested})
		}
	}
	return out
}

// received handles a hello of src, on the direct subject or the broadcast one.
func (g *barrier) received(src int, direct bool, payload []byte, out []hello) []hello {
	if len(payload) != helloBytes {
		g.reasons[src] = fmt.Sprintf("hello of %d bytes", len(payload))
		return out
	}
	if [32]byte(payload) != g.digest {
		if g.wrong == nil {
			g.wrong = fmt.Errorf("rank %d has another placement for this epoch (digest %x, here %x)", src, payload[:4], g.digest[:4])
		}
		if !direct || payload[32]&replyRequested != 0 { // so that the other side reports it too
			out = append(out, hello{dst: src})
		}
		return out
	}
	p := &g.peers[src]
	before := *p
	flags := payload[32]
	if direct {
		p.received |= gotDirect
		p.acked |= flags & (gotBroadcast | gotDirect)
	} else {
		p.received |= gotBroadcast
	}
	if !before.complete() && p.complete() {
		g.remaining--
	}
	// Every hello that is new or has the flag ask gets an answer. Only an answer to a new one has the
	// flag, so two ranks cannot keep each other busy.
	fresh := p.received != before.received
	if direct && !fresh && flags&replyRequested == 0 {
		return out
	}
	answer := hello{src, p.received}
	if fresh && !p.complete() {
		answer.flags |= replyRequested
	}
	out = append(out, answer)
	if direct && flags&replyRequested != 0 && flags&gotBroadcast == 0 {
		out = append(out, hello{dst: -1})
	}
	return out
}

func (g *barrier) payload(b []byte, flags byte) {
	copy(b, g.digest[:])
	b[32] = flags
}

// missing returns the ranks that the barrier still waits for, and why.
func (g *barrier) missing() (ranks []int, why []string) {
	for r, p := range g.peers {
		if r == g.rank || p.complete() {
			continue
		}
		ranks = append(ranks, r)
		switch {
		case g.reasons[r] != "":
			why = append(why, fmt.Sprintf("rank %d: %s", r, g.reasons[r]))
		case p.received == 0:
			why = append(why, fmt.Sprintf("no message from rank %d", r))
		default:
			why = append(why, fmt.Sprintf("rank %d answers, but the exchange of hellos is not complete", r))
		}
	}
	return ranks, why
}

// NotReadyError names the ranks that did not complete the barrier in time.
type NotReadyError struct {
	Ranks []int
	Why   []string
	Cause error
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("%v: %v: %v", ErrNotReady, e.Why, e.Cause)
}

func (e *NotReadyError) Unwrap() []error { return []error{ErrNotReady, e.Cause} }

// Missing lists these ranks.
func (e *NotReadyError) Missing() []int { return slices.Clone(e.Ranks) }

var _ error = (*NotReadyError)(nil)

// isHello distinguishes hellos from messages of the group.
func isHello(msg []byte) bool {
	return len(msg) >= collective.HeaderBytes && collective.Kind(msg[2]) == collective.KindHello
}
