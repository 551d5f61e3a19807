package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/topology"
)

// Group describes one model's part of a serving epoch to the stepper. The cache memory of its nodes is the
// share of this model.
type Group struct {
	Model     int  // its number
	Prefill   bool // it is the model's prefill group
	Placement topology.Placement
	Nodes     []topology.Node
	Handles   []node.Handle   // in rank order
	Addresses []string        // control addresses of the nodes, in rank order
	Sockets   []string        // names of the sockets in their processes, in rank order
	Held      [][]*proto.Held // caches that each node kept from earlier epochs
	Disk      bool            // all nodes keep prefix cache blocks on disk
	Scratch   []int64         // file bytes for rows of sequences, in rank order
	Adapters  []int64         // bytes for LoRA adapters, in rank order
}

// groups returns the groups of a placement that serves, by model: the decode groups, then the prefill
// groups, if there are any.
func (d *Director) groups(e topology.Serve) (all []*Group) {
	for _, part := range parts(&e.Placement, e.Nodes) {
		all = append(all, d.groupsOf(part)...)
	}
	return all
}

func (d *Director) groupsOf(part part) (all []*Group) {
	for model, m := range d.cfg.Models {
		g := &Group{Model: model, Prefill: part.prefill, Placement: part.of(model), Nodes: slices.Clone(part.nodes)}
		var without []string // among the nodes that read prompt heads, so that blocks are complete
		for i, n := range part.nodes {
			h := d.hosts[n.ID]
			g.Addresses, g.Sockets = append(g.Addresses, h.Address), append(g.Sockets, h.Sockets[model])
			l := h.loaded[model]
			if m.Memory != nil {
				g.Nodes[i].KVBudget = m.Memory(n).KvBytes
			}
			g.Scratch, g.Adapters = append(g.Scratch, l.ScratchBytes), append(g.Adapters, l.AdapterBudgetBytes)
			g.Handles, g.Held, g.Disk = append(g.Handles, h.Handles[model]), append(g.Held, l.Held), g.Disk || l.PrefixDisk
			if !l.PrefixDisk && g.Placement.Slices[i].KVHeads.Len() > 0 {
				without = append(without, n.ID)
			}
		}
		if g.Disk && len(without) > 0 {
			g.Disk = false
			d.cfg.Logger.Warn("prompts do not use prefix blocks on disk: start every node with "+options.Name("prefix-disk"), "without", without)
		}
		all = append(all, g)
	}
	return all
}

// part is the nodes of a placement in one group of each model.
type part struct {
	nodes   []topology.Node
	of      func(model int) topology.Placement
	prefill bool
}

// parts returns the decode group of a placement, and the prefill group if there is one.
func parts(p *topology.Placement, nodes []topology.Node) []part {
	all := []part{{p.DecodeNodes(nodes), p.Of, false}}
	if reads := p.PrefillNodes(nodes); len(reads) > 0 {
		all = append(all, part{reads, p.OfPrefill, true})
	}
	return all
}

// ofEach calls ask for all sockets of a node at once, and returns the first error by model.
func ofEach(handles []node.Handle, ask func(model int, h node.Handle) error) error {
	for _, err := range fromAll(handles, ask) {
		if err != nil {
			return err
		}
	}
	return nil
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
