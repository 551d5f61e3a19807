package cluster

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/coordinator"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Each model has two cores: one for its decode group, which has all requests, and one for its prefill
// group, which reads long prompts for it (docs/decisions/groups.md). Without prefill nodes the second one
// is idle.

// prefiller connects the batchers of a model's groups. It implements batcher.Prefiller for both.
type prefiller struct {
	decode, prefill *core

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc // of the reads that the decode group has not dropped, by number
	taken   takes
}

// takes counts the caches that moved from the prefill group.
type takes struct {
	bytes  int64
	millis int64
}

// Time limits of a transfer: takeTime, and takeToken for each token of the cache.
const (
	takeTime  = time.Minute
	takeToken = 2 * time.Millisecond
)

// newReader builds the core of a model's prefill group, and connects it with that of the decode group.
func newReader(decode *core) (*core, error) {
	s := decode.serve
	s.Speculate, s.Replicas, s.DecodeSteps, s.SpeculateRecent = "off", 0, 1, "off"
	c := &core{site: decode.site, number: decode.number, prefill: true, checkpoint: decode.checkpoint, serve: s,
		policy: decode.policy, geometry: decode.geometry,
		adapters: decode.adapters, status: map[string]*proto.SocketStatus{}, prefiller: decode.prefiller}
	decode.prefiller.decode, decode.prefiller.prefill = decode, c
	return c, c.start()
}

// Prefill implements batcher.Prefiller.
func (x *prefiller) Prefill(spec batcher.Spec) {
	ctx, cancel := context.WithCancel(x.decode.ctx)
	x.mu.Lock()
	x.cancels[spec.Prefill] = cancel
	x.mu.Unlock()
	x.decode.steps.Go(func() {
		defer cancel()
		end, err := x.prefill.batcher.Submit(ctx, spec, ignored{})
		if err != nil {
			x.Exported(prefillgroup.Done{Number: spec.Prefill, Err: err.Error(), Fault: true})
			return
		}
		<-ctx.Done()
		end()
	})
}

// Drop implements batcher.Prefiller.
func (x *prefiller) Drop(number uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if cancel := x.cancels[number]; cancel != nil {
		cancel()
		delete(x.cancels, number)
	}
}

// Exported implements batcher.Prefiller.
func (x *prefiller) Exported(d prefillgroup.Done) {
	if d.Err != "" {
		x.decode.serve.Logger.Info("the prefill nodes have not read a prompt", "reason", d.Err)
	}
	x.decode.batcher.PrefillDone(d)
}

// Take implements batcher.Prefiller.
func (x *prefiller) Take(t prefillgroup.Take) {
	x.decode.steps.Go(func() {
		err := x.take(t)
		if err != nil {
			x.decode.serve.Logger.Warn("a cache did not arrive from the prefill nodes; its prompt is read again", "error", err)
		}
		x.decode.batcher.TakeDone(t.Number, err)
	})
}

// take has the owner in the decode group take a cache from its owner in the prefill group.
func (x *prefiller) take(t prefillgroup.Take) error {
	to, from := x.decode.group(), x.prefill.group()
	if to == nil || from == nil || to.Placement.Epoch != t.Epoch || from.Placement.Epoch != t.Epoch {
		return fmt.Errorf("%w: epoch %d, in which the cache was read, is over", coordinator.ErrNoPlacement, t.Epoch)
	}
	if t.Rank >= len(from.Handles) || t.Owner >= len(to.Handles) {
		return fmt.Errorf("cluster: a cache of rank %d of %d in the prefill group, for rank %d of %d in the decode group",
			t.Rank, len(from.Handles), t.Owner, len(to.Handles))
	}
	limit := takeTime + time.Duration(t.Tokens)*takeToken
	r := &proto.TakeRequest{Epoch: t.Epoch, Seq: t.Seq, Tokens: uint32(t.Tokens), Policy: t.Policy, Adapter: t.Adapter.Bytes(),
		Address: from.Addresses[t.Rank], Socket: from.Sockets[t.Rank], Source: t.Source, Millis: uint32(limit.Milliseconds())}
	ctx, cancel := context.WithTimeout(x.decode.ctx, limit+coordinator.CallTimeout)
	defer cancel()
	reply, err := to.Handles[t.Owner].Take(ctx, r)
	if err != nil {
		return fmt.Errorf("node %s: %w", to.Nodes[t.Owner].ID, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.taken.bytes, x.taken.millis = x.taken.bytes+reply.Bytes, x.taken.millis+int64(reply.Millis)
	return nil
}

// ignored is the sink of a read, whose result Exported has.
type ignored struct{}

func (ignored) Scores([]batcher.PromptLogprob) {}
func (ignored) Emit(batcher.Emit)              {}
func (ignored) Finish(batcher.Finish)          {}

// group returns the group that serves this core; nil: none does.
func (c *core) group() *coordinator.Group {
	if c.prefill {
		return c.director.ServingPrefill(c.number)
	}
	return c.director.Serving(c.number)
}

// place returns the placement of this core's group.
func (c *core) place(v *coordinator.View) topology.Placement {
	switch {
	case c.prefill:
		return v.Placement.OfPrefill(c.number)
	case len(v.Placement.Slices) > 0:
		return v.Placement.Of(c.number)
	}
	return topology.Placement{}
}

// roleOf returns the role of a node's group. Without a group it is the role that the node requested, by
// default RoleBoth.
func roleOf(v *coordinator.View, n *topology.Node) string {
	return string(cmp.Or(v.Placement.RoleOf(v.Nodes, n.ID), n.Role, topology.RoleBoth))
}

// addReader adds the state of a model's prefill group to that of its decode group. The requests whose
// prompts the prefill group reads are among the waiting requests of the decode group. If the state of the
// decode group is unknown, so is the sum.
func (c *core) addReader(ctx context.Context, v *coordinator.View, s *wire.ClusterState) {
	if s.Transfers == nil {
		return
	}
	part := c.prefiller.prefill.state(ctx, v)
	reads := 0
	for _, q := range part.Sequences {
		if q.State != transferring {
			reads++
		}
	}
	part.Running, part.Waiting, part.Recovery, part.WaitingReason = reads, -min(reads, s.Waiting), nil, ""
	for i := range s.Nodes {
		for _, n := range part.Nodes {
			if n.ID == s.Nodes[i].ID && v.Placement.RoleOf(v.Nodes, n.ID) == topology.RolePrefill {
				s.Nodes[i] = n
			}
		}
	}
	if p, q := s.PrefixCache, part.PrefixCache; p != nil && q != nil {
		p.Queries, p.Hits, p.Tokens, p.Evicted, p.Answers = p.Queries+q.Queries, p.Hits+q.Hits, p.Tokens+q.Tokens,
			p.Evicted+q.Evicted, p.Answers+q.Answers
		p.Disk = p.Disk.Add(q.Disk)
	}
	part.Nodes = nil
	own := s.Nodes
	addModel(s, &part)
	s.Nodes = own
	c.prefiller.mu.Lock()
	defer c.prefiller.mu.Unlock()
	s.Transfers.Bytes, s.Transfers.Seconds = c.prefiller.taken.bytes, float64(c.prefiller.taken.millis)/1000
}

// transferring is the state of a sequence whose cache moves to the decode group, or waits to.
const transferring = "transfer"
