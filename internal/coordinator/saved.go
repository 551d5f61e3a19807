package coordinator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/proto"
)

// The time limit of a Write or Load is savedTime, and savedToken for each token of the cache.
const (
	savedTime  = time.Minute
	savedToken = 2 * time.Millisecond
)

// Saved sends an order for caches of idle sessions to its sockets, and waits for their replies. Done.Err is
// the error of one of them. Done.Found has the replies of the others to a Find.
func (g *Group) Saved(ctx context.Context, o saved.Order) saved.Done {
	d := saved.Done{Number: o.Number}
	o.Identify()
	limit := savedTime + time.Duration(o.Cache.Tokens)*savedToken
	switch o.Do {
	case saved.Find:
		limit = time.Duration(o.Millis) * time.Millisecond
	case saved.Drop:
		limit = CallTimeout
	}
	wait := limit + CallTimeout
	if o.Do == saved.Find {
		wait = limit
	}
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, rank := range o.Ranks {
		if rank >= len(g.Handles) {
			mu.Lock()
			d.Err = fmt.Sprintf("cluster: no rank %d: the group has %d sockets", rank, len(g.Handles))
			mu.Unlock()
			continue
		}
		wg.Go(func() {
			reply, err := g.saved(within, rank, &o, limit)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				d.Err = fmt.Sprintf("node %s: %v", g.Nodes[rank].ID, err)
			case o.Do == saved.Write && reply.Tokens == 0:
				d.Lacks, d.Err = reply.Bytes, fmt.Sprintf("node %s: the disk has no room for a file of %d bytes", g.Nodes[rank].ID, reply.Bytes)
			case o.Do == saved.Find && reply.Tokens > 0 && len(reply.Digest) == len(o.Cache.Digest):
				d.Found = append(d.Found, saved.Found{Rank: rank,
					Cache: saved.Cache{Prompt: int(reply.Prompt), Tokens: int(reply.Tokens), Digest: [32]byte(reply.Digest)}})
			}
		})
	}
	wg.Wait()
	d.Found = o.Text.Beginnings(d.Found)
	return d
}

// saved sends an order to one socket.
func (g *Group) saved(ctx context.Context, rank int, o *saved.Order, limit time.Duration) (*proto.SavedReply, error) {
	if o.Do == saved.Load {
		_, err := g.Handles[rank].Take(ctx, &proto.TakeRequest{Epoch: o.Epoch, Seq: o.Seq, Tokens: uint32(o.Cache.Tokens),
			Prompt: uint32(o.Cache.Prompt), Policy: o.Text.Policy, Adapter: o.Text.Adapter.Bytes(), Saved: o.Key[:], Digest: o.Cache.Digest[:],
			Millis: uint32(limit.Milliseconds())})
		return nil, err
	}
	r := &proto.SavedRequest{Epoch: o.Epoch, Key: o.Key[:], Drop: o.Do == saved.Drop}
	if o.Do == saved.Write {
		r.Seq, r.Tokens, r.Digest, r.Millis, r.Timeout = o.Seq, uint32(o.Cache.Tokens), o.Cache.Digest[:], o.Millis, uint32(limit.Milliseconds())
	}
	return g.Handles[rank].Saved(ctx, r)
}
