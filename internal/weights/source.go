package weights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// Requester sends a request to a process that has the checkpoint. Each turn starts with another process,
// for retries after damaged replies. from names the process that replied.
type Requester func(ctx context.Context, turn int, r *proto.WeightsRequest) (reply *proto.WeightsReply, from string, err error)

const (
	requestTimeout = 10 * time.Second
	retryPause     = 300 * time.Millisecond
	// sourceLimit is how long to wait while no source is available.
	sourceLimit = 2 * time.Minute
)

// From returns an Ask for a model of the weight servers at the addresses that servers returns; hash "" is
// the first model of each. It retries servers that are busy or still computing their list.
func From(sys *rpc.System, servers func() []string, hash string) Requester {
	name := actorName
	if hash != "" {
		name = actorOf(hash)
	}
	return func(ctx context.Context, turn int, r *proto.WeightsRequest) (*proto.WeightsReply, string, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sourceLimit, errors.New("weights: no process sent the checkpoint"))
		defer cancel()
		var last error
		for {
			all := servers()
			for i := range all {
				at := all[(i+turn)%len(all)]
				reply := new(proto.WeightsReply)
				once, end := context.WithTimeout(ctx, requestTimeout)
				last = sys.Call(once, sys.PID(at, name), uint32(proto.Kind_KIND_WEIGHTS), r, reply)
				end()
				if last == nil && !reply.Pending {
					return reply, at, nil
				}
				if errors.Is(last, ErrNotFound) {
					return nil, at, last
				}
				if last == nil {
					last = errors.New("weights: the list of files is still being computed")
					break
				}
			}
			select {
			case <-time.After(retryPause):
			case <-ctx.Done():
				return nil, "", fmt.Errorf("%w (last answer: %v)", context.Cause(ctx), last)
			}
		}
	}
}

// Models asks a process of the cluster for the hashes of the models that it serves. For a cluster of one
// model it returns "", which From takes.
func Models(ctx context.Context, ask Requester) ([]string, error) {
	r, _, err := ask(ctx, 0, &proto.WeightsRequest{})
	switch {
	case err != nil:
		return nil, err
	case len(r.Models) < 2:
		return []string{""}, nil
	case len(r.Models) > maxModels:
		return nil, fmt.Errorf("%w: %d models, want at most %d", ErrDamaged, len(r.Models), maxModels)
	}
	for _, hash := range r.Models {
		if h, err := hex.DecodeString(hash); err != nil || len(h) != sha256.Size {
			return nil, fmt.Errorf("%w: the hash of a model is %.80q", ErrDamaged, hash)
		}
	}
	return r.Models, nil
}

// maxModels bounds the models of a cluster, as far as a node without checkpoints accepts them.
const maxModels = 64
