package coordinator

import (
	"errors"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/topology"
)

// failure classifies how a rank failed a step, from its reply. A rank without a reply adds no
// information.
func failure(rank int, err error) topology.Failure {
	f := topology.Failure{Rank: rank}
	var collectives bool
	if f.Named, collectives = collective.RanksIn(err.Error()); collectives {
		return f
	}
	answer, ok := errors.AsType[*rpc.RemoteError](err)
	f.Alone = ok && ownFault(answer)
	return f
}

// ownFault reports whether a node replied with a fault of its own, rather than with the state of an
// epoch, of a call, or of its connections to others.
func ownFault(answer *rpc.RemoteError) bool {
	for _, e := range []error{socket.ErrRetired, machine.ErrStaleEpoch, machine.ErrWrongPhase, rpc.ErrBusy,
		rpc.ErrStale, rpc.ErrNoActor, rpc.ErrClosed} {
		if answer.Is(e) {
			return false
		}
	}
	return !rpc.IsIncompatible(answer)
}
