package rpc

import (
	"errors"
	"fmt"
	"strings"
)

var (
	ErrClosed = errors.New("rpc: system closed")
	// ErrAddressTaken: another process listens on Config.Bind.
	ErrAddressTaken = errors.New("rpc: address in use")
	// ErrUnreachable: no acquaintance could be made; nothing was sent.
	ErrUnreachable = errors.New("rpc: peer unreachable")
	// ErrPeerLost: the peer went away during a call; whether it acted is unknown.
	ErrPeerLost = errors.New("rpc: peer lost during the call")
	// ErrTimeout: no reply in time; whether the peer acted is unknown.
	ErrTimeout = errors.New("rpc: no reply in time")
	// ErrVersion: the two processes have no wire version in common.
	ErrVersion = errors.New("rpc: wire versions do not meet")
	// ErrIdentity: the process that answers is not who its certificate says.
	ErrIdentity = errors.New("rpc: peer's identity does not match its certificate")
	// ErrUnknownKind: the actor has no handler for this kind.
	ErrUnknownKind = errors.New("rpc: unknown kind")
	// ErrNoActor: the peer has no actor of that name.
	ErrNoActor = errors.New("rpc: no such actor")
	// ErrBusy: a mailbox or a sending queue is full; try again later.
	ErrBusy = errors.New("rpc: queue full")
	// ErrStale: the request was meant for an earlier incarnation of the peer.
	ErrStale = errors.New("rpc: meant for another incarnation")
	// ErrTooLarge: a payload is over MaxPayload.
	ErrTooLarge = errors.New("rpc: payload too large")
	// ErrBadPayload: a payload does not decode as the message of its kind.
	ErrBadPayload = errors.New("rpc: payload does not decode")
	// ErrNotUnderstood: a message has fields that the receiver's build does not know. Nothing was
	// done about it.
	ErrNotUnderstood = errors.New("rpc: message not understood")
	// ErrPanic: the handler panicked; its actor's supervisor decides what next.
	ErrPanic = errors.New("rpc: handler panicked")
)

// RemoteError is a failure that the peer reported in its reply. Errors cross
// the wire as text; errors.Is finds a sentinel again when the text begins with
// the sentinel's, so prefixed sentinels of any package survive the journey.
type RemoteError struct {
	Peer string // node id of the process that answered
	Text string
}

func (e *RemoteError) Error() string { return fmt.Sprintf("%s (from %s)", e.Text, e.Peer) }

// Is reports whether the text begins with target's, up to a ':' or the end.
func (e *RemoteError) Is(target error) bool {
	rest, ok := strings.CutPrefix(e.Text, target.Error())
	return ok && (rest == "" || rest[0] == ':' || rest[0] == ' ')
}

// Foreign reports that err comes from two builds that do not understand each other: the same call
// fails again until one of them is replaced.
func Foreign(err error) bool {
	for _, e := range []error{ErrNotUnderstood, ErrUnknownKind, ErrVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retryable reports whether an idempotent call may be tried again after err.
func retryable(err error) bool {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		return remote.Is(ErrBusy) || remote.Is(ErrStale) || remote.Is(ErrNoActor)
	}
	for _, e := range []error{ErrUnreachable, ErrPeerLost, ErrTimeout, ErrBusy} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
