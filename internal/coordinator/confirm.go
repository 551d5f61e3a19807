package coordinator

import (
	"context"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// answer is the answer of the control address of a lost member.
type answer int

const (
	silent   answer = iota // nothing answers
	replaced               // another process answers: another node, or a later run of this one
	alive                  // the member answers
)

// question reports which process answers at the control address of a member, until ctx ends.
func question(ctx context.Context, sys *rpc.System, m *gossip.Member) (answer, error) {
	d, err := node.NewRemote(sys, m.Meta.RPC, 0, nil).Describe(ctx)
	switch {
	case err != nil:
		return silent, err
	case d.Id != m.Name || d.Incarnation != m.Meta.Incarnation:
		return replaced, nil
	}
	return alive, nil
}
