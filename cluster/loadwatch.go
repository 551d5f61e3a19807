package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/topology"
)

// errNewer ends the calls of a load that nobody wants any more.
var errNewer = errors.New("cluster: another placement follows")

// watchLoad looks how far the nodes are with a load, until ctx ends. A node that
// hangs is fenced; when nobody moves for loadTimeout, the load fails.
func (d *director) watchLoad(ctx context.Context, c actor.Context, e topology.LoadSlices) {
	self, root := c.Self(), c.ActorSystem().Root
	handles := make([]Handle, len(e.Nodes))
	for i, n := range e.Nodes {
		handles[i] = d.hosts[n.ID].handle
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
			hung, over := rule.Look(time.Since(began), loadings(ctx, handles, e.Placement.Epoch, every))
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

// loadings asks all nodes at once how far they are.
func loadings(ctx context.Context, handles []Handle, epoch uint32, limit time.Duration) []topology.LoadProgress {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return fromAll(handles, func(_ int, h Handle) topology.LoadProgress { return standing(h.Status(ctx)).InLoad(epoch) })
}

// fromAll asks all nodes at once, and waits for every answer.
func fromAll[T any](handles []Handle, ask func(rank int, h Handle) T) []T {
	out := make([]T, len(handles))
	var wg sync.WaitGroup
	for i, h := range handles {
		wg.Go(func() { out[i] = ask(i, h) })
	}
	wg.Wait()
	return out
}
