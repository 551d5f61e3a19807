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
	// ErrUnreachable: no connection could be established; nothing was sent.
	ErrUnreachable = errors.New("rpc: peer unreachable")
	// ErrPeerLost: the peer was lost during a call; it may have acted.
	ErrPeerLost = errors.New("rpc: peer lost during the call")
	// ErrTimeout: no reply in time; whether the peer acted is unknown.
	ErrTimeout = errors.New("rpc: no reply in time")
	// ErrVersion: the two processes have no wire version in common.
	ErrVersion = errors.New("rpc: wire versions do not meet")
	// ErrIdentity: the answering process differs from its certificate.
	ErrIdentity = errors.New("rpc: peer's identity does not match its certificate")
	// ErrUnknownKind: the actor has no handler for this kind.
	ErrUnknownKind = errors.New("rpc: unknown kind")
	// ErrNoActor: the peer has no actor of that name.
	ErrNoActor = errors.New("rpc: no such actor")
	// ErrBusy: a mailbox or a send queue is full; retry later.
	ErrBusy = errors.New("rpc: queue full")
	// ErrStale: the request was sent to an earlier incarnation of the peer.
	ErrStale = errors.New("rpc: meant for another incarnation")
	// ErrTooLarge: a payload exceeds MaxPayload.
	ErrTooLarge = errors.New("rpc: payload too large")
	// ErrBadPayload: a payload cannot be decoded as the message of its kind.
	ErrBadPayload = errors.New("rpc: payload does not decode")
	// ErrIncompatible: a message has fields that are unknown to the receiver's build. The receiver has
	// ignored the message.
	ErrIncompatible = errors.New("rpc: message not understood")
	// ErrPanic: the handler panicked; the actor's supervisor decides how to continue.
	ErrPanic = errors.New("rpc: handler panicked")
)

// RemoteError is an error that the peer reported in its reply. Errors are sent as text. errors.Is
// recognises a sentinel if the text starts with the sentinel's text, so prefixed sentinels of any
// package survive the transfer.
type RemoteError struct {
	Peer string // node id of the replying process
	Text string
}

func (e *RemoteError) Error() string { return fmt.Sprintf("%s (from %s)", e.Text, e.Peer) }

// Is reports whether the text starts with target's text, followed by ':', ' ' or the end.
func (e *RemoteError) Is(target error) bool {
	rest, ok := strings.CutPrefix(e.Text, target.Error())
	return ok && (rest == "" || rest[0] == ':' || rest[0] == ' ')
}

// IsIncompatible reports whether err comes from two incompatible builds: the same call fails until one of
// them is replaced.
func IsIncompatible(err error) bool {
	for _, e := range []error{ErrIncompatible, ErrUnknownKind, ErrVersion} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retryable reports whether an idempotent call may be retried after err.
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
