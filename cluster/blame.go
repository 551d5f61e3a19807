package cluster

import (
	"errors"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/topology"
)

// failure is how a rank failed a step, by what it answered. A rank that did not answer says
// nothing.
func failure(rank int, err error) topology.Failure {
	f := topology.Failure{Rank: rank}
	var collectives bool
	if f.Named, collectives = collective.NamedIn(err.Error()); collectives {
		return f
	}
	answer, ok := errors.AsType[*rpc.RemoteError](err)
	f.Alone = ok && alone(answer)
	return f
}

// alone reports whether a node has answered with a fault of its own, rather than with the state
// of an epoch, of a call, or of its links to others.
func alone(answer *rpc.RemoteError) bool {
	for _, e := range []error{socket.ErrRetired, socket.ErrStaleEpoch, socket.ErrWrongPhase, rpc.ErrBusy, rpc.ErrStale, rpc.ErrNoActor, rpc.ErrClosed} {
		if answer.Is(e) {
			return false
		}
	}
	return !rpc.Foreign(answer)
}
