package weights

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// Ask asks one who has the checkpoint, another one first with each turn, for those who
// sent damage; from is who answered.
type Ask func(ctx context.Context, turn int, r *proto.WeightsRequest) (reply *proto.WeightsReply, from string, err error)

const (
	askLimit = 10 * time.Second
	askPause = 300 * time.Millisecond
	// sourceLimit is how long nobody may be there to ask.
	sourceLimit = 2 * time.Minute
)

// From asks the weight servers at the addresses that servers gives. Those that are busy,
// or still make their list, are asked again.
func From(sys *rpc.System, servers func() []string) Ask {
	return func(ctx context.Context, turn int, r *proto.WeightsRequest) (*proto.WeightsReply, string, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, sourceLimit, errors.New("weights: nobody gave the checkpoint"))
		defer cancel()
		var last error
		for {
			all := servers()
			for i := range all {
				at := all[(i+turn)%len(all)]
				reply := new(proto.WeightsReply)
				once, end := context.WithTimeout(ctx, askLimit)
				last = sys.Call(once, sys.PID(at, actorName), uint32(proto.Kind_KIND_WEIGHTS), r, reply)
				end()
				if last == nil && !reply.Pending {
					return reply, at, nil
				}
				if errors.Is(last, ErrNone) {
					return nil, at, last
				}
				if last == nil {
					last = errors.New("weights: the list of its files is being made")
					break
				}
			}
			select {
			case <-time.After(askPause):
			case <-ctx.Done():
				return nil, "", fmt.Errorf("%w (the last answer: %v)", context.Cause(ctx), last)
			}
		}
	}
}
