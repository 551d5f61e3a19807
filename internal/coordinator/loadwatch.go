package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/topology"
)

// errNewer cancels the calls of a load that a newer placement replaces.
var errNewer = errors.New("cluster: replaced by another placement")

// watchLoad checks the nodes' progress in a load until ctx ends. A stalled node is fenced. If no
// node progresses for loadTimeout, the load fails.
func (d *Director) watchLoad(ctx context.Context, c actor.Context, e topology.LoadSlices) {
	self, root := c.Self(), c.ActorSystem().Root
	handles := make([][]node.Handle, len(e.Nodes))
	for i, n := range e.Nodes {
		handles[i] = d.hosts[n.ID].Handles
	}
	end, every := d.endLoad, d.cfg.LoadStall/8
	d.calls.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		began := time.Now()
		rule := topology.LoadStall{Deadline: d.cfg.LoadStall, All: loadTimeout}
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			hung, over := rule.Check(time.Since(began), loadings(ctx, handles, e.Placement.Epoch, every))
			if ctx.Err() != nil {
				return
			}
			for _, rank := range hung {
				n := e.Nodes[rank]
				root.Send(self, &nodeFence{id: n.ID, incarnation: n.Incarnation, hung: true,
					reason: fmt.Sprintf("it made no progress in loading its weights for %v", d.cfg.LoadStall)})
			}
			if over {
				end(fmt.Errorf("cluster: no node has made progress in loading its weights for %v", loadTimeout))
			}
		}
	})
}

// loadings requests the load progress of all nodes concurrently.
func loadings(ctx context.Context, handles [][]node.Handle, epoch uint32, limit time.Duration) []topology.LoadProgress {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return fromAll(handles, func(_ int, sockets []node.Handle) topology.LoadProgress {
		return hostProgress(ctx, sockets).InLoad(epoch)
	})
}

// hostProgress returns the load progress of a node, which covers all of its sockets; nil: one
// did not reply.
func hostProgress(ctx context.Context, sockets []node.Handle) *topology.NodeProgress {
	var all *topology.NodeProgress
	for _, p := range fromAll(sockets, func(_ int, h node.Handle) *topology.NodeProgress { return nodeProgress(h.Status(ctx)) }) {
		switch {
		case p == nil:
			return nil
		case all == nil:
			all = p
		default:
			all.Epoch, all.Loading, all.Busy = min(all.Epoch, p.Epoch), all.Loading || p.Loading, all.Busy || p.Busy
			all.Loaded, all.Finished = all.Loaded+p.Loaded, all.Finished+p.Finished
		}
	}
	return all
}

// fromAll calls ask for all elements concurrently and waits for every result.
func fromAll[H, T any](handles []H, ask func(i int, h H) T) []T {
	out := make([]T, len(handles))
	var wg sync.WaitGroup
	for i, h := range handles {
		wg.Go(func() { out[i] = ask(i, h) })
	}
	wg.Wait()
	return out
}
