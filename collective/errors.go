package collective

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var (
	// ErrPeerTimeout: data did not arrive before the deadline. The named ranks include the culprit,
	// and perhaps others that wait for it in an earlier operation. The rank that all survivors name
	// is the likely culprit.
	ErrPeerTimeout = errors.New("collective: peer timed out")
	// ErrPeerLost: the transport reported that a peer is dead.
	ErrPeerLost = errors.New("collective: peer lost")
	// ErrProtocol: a peer of this epoch sent something that does not fit the operation.
	ErrProtocol = errors.New("collective: peer does not follow the operation")
	// ErrWindow: a peer ran further ahead than the window allows.
	ErrWindow = errors.New("collective: peer ran too far ahead")
	// ErrTransport: the transport lost messages or could not send them.
	ErrTransport = errors.New("collective: transport failed")
	// ErrArgument: a caller on this rank broke the contract of a call.
	ErrArgument = errors.New("collective: bad argument")
	ErrClosed   = errors.New("collective: group closed")
)

// OpError names the failed operation, the reason, and the ranks that caused it. Ranks is nil if it
// is this rank, or unknown. errors.Is finds the sentinel and the cause.
type OpError struct {
	Op     OpID
	Kind   Kind // zero: unknown
	Ranks  []int
	Detail string
	Err    error // one of the sentinels of this package
	Cause  error // may be nil
}

func (e *OpError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: op %v", e.Err, e.Op)
	if e.Kind != 0 {
		fmt.Fprintf(&b, " (%v)", e.Kind)
	}
	if len(e.Ranks) > 0 {
		fmt.Fprintf(&b, ", rank %s", strings.Trim(fmt.Sprint(e.Ranks), "[]"))
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

func (e *OpError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// RanksIn extracts the ranks from the text of another process's OpError. ok reports whether text
// contains such an error.
func RanksIn(text string) (ranks []int, ok bool) {
	_, text, ok = strings.Cut(text, "collective: ")
	if _, list, found := strings.Cut(text, ", rank "); found {
		list, _, _ = strings.Cut(list, ":")
		for word := range strings.FieldsSeq(list) {
			r, err := strconv.Atoi(word)
			if err != nil {
				break
			}
			ranks = append(ranks, r)
		}
	}
	return ranks, ok
}
