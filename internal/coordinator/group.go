package coordinator

import (
	"context"
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/topology"
)

// Group is a serving epoch as the stepper needs it.
type Group struct {
	Placement topology.Placement
	Nodes     []topology.Node
	Handles   []node.Handle   // in rank order
	Held      [][]*proto.Held // caches that each node kept from earlier epochs
	Disk      bool            // all nodes keep prefix cache blocks on disk
	Scratch   []int64         // file bytes for rows of sequences, in rank order
	Adapters  []int64         // bytes for LoRA adapters, in rank order
}

// Budget returns the cache bytes of all nodes together.
func (g *Group) Budget() int64 {
	var sum int64
	for _, n := range g.Nodes {
		sum += n.KVBudget
	}
	return sum
}

// ErrNoPlacement: no epoch is serving.
var ErrNoPlacement = errors.New("cluster: no placement is serving")

// step runs one planned step on every socket of its epoch and collects the replies. Errors contain
// the node's name. It returns when all have replied, when one has refused the plan as incompatible,
// or when the context ends.
func (g *Group) step(ctx context.Context, r *proto.StepRequest) ([]*proto.StepReply, []error) {
	errs := make([]error, len(g.Handles))
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	replies := fromAll(g.Handles, func(i int, h node.Handle) *proto.StepReply {
		reply, err := h.Step(ctx, r)
		if err == nil && (reply.Epoch != r.Epoch || reply.Step != r.Step) {
			err = fmt.Errorf("cluster: reply for epoch %d step %d to epoch %d step %d", reply.Epoch, reply.Step, r.Epoch, r.Step)
		}
		if err != nil {
			errs[i] = fmt.Errorf("node %s: %w", g.Nodes[i].ID, err)
		}
		if rpc.IsIncompatible(err) { // the others would wait until their deadline
			end(errs[i])
		}
		return reply
	})
	return replies, errs
}
