package weights

import (
	"context"
	"log/slog"
	"sync"
)

// Ranges reads bytes [from, to) of a file of the hub. origin is ORG/NAME@COMMIT. The bytes are verified
// with the hashes of the cluster's process.
type Ranges func(ctx context.Context, origin, file string, from, to int64) ([]byte, error)

// nearer chooses between the cluster and the hub as the source of chunks. The first large request goes to
// both. The source that answers it first gets the later ones. If the hub fails, the cluster gets them.
type nearer struct {
	hub    Ranges // nil: only the cluster
	origin string // empty: only the cluster
	log    *slog.Logger

	mu     sync.Mutex
	raced  bool
	useHub bool
}

// source fetches the chunks of one request and verifies them.
type source func(context.Context) ([]byte, error)

func (n *nearer) fetch(ctx context.Context, large bool, bus, hub source) ([]byte, error) {
	if n.hub == nil || n.origin == "" {
		return bus(ctx)
	}
	n.mu.Lock()
	useHub, race := n.useHub, large && !n.raced
	n.raced = n.raced || race
	n.mu.Unlock()
	limited := func(ctx context.Context) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		return hub(ctx)
	}
	switch {
	case race:
		return n.race(ctx, bus, limited)
	case useHub:
		data, err := limited(ctx)
		if err == nil || ctx.Err() != nil {
			return data, err
		}
		n.choose(false)
		n.log.Warn("the hub failed: weights come from the cluster", "origin", n.origin, "error", err)
	}
	return bus(ctx)
}

func (n *nearer) choose(hub bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.useHub = hub
}

// race asks both sources and chooses the one that answers first.
func (n *nearer) race(ctx context.Context, bus, hub source) ([]byte, error) {
	type answer struct {
		data []byte
		err  error
		hub  bool
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, 2)
	for _, isHub := range []bool{false, true} {
		go func() {
			ask := bus
			if isHub {
				ask = hub
			}
			data, err := ask(ctx)
			answers <- answer{data, err, isHub}
		}()
	}
	first := <-answers
	if first.err == nil {
		cancel()
	}
	second := <-answers
	switch {
	case first.err != nil && second.err != nil && first.hub:
		return nil, second.err
	case first.err != nil && second.err == nil:
		first = second
	}
	if first.err == nil && first.hub {
		n.choose(true)
		n.log.Info("weights come from the hub, which answers faster than the cluster", "origin", n.origin)
	}
	return first.data, first.err
}

// fromHub reads chunks, neighbours with one request.
func (f *cachedFile) fromHub(ctx context.Context, hub Ranges, origin string, chunks []uint32) (data []byte, err error) {
	for len(chunks) > 0 {
		n := 1
		for n < len(chunks) && chunks[n] == chunks[0]+uint32(n) {
			n++
		}
		from, last := int64(chunks[0])*chunkBytes, int64(chunks[n-1])
		part, err := hub(ctx, origin, f.Name, from, last*chunkBytes+chunkLen(f.Size, last))
		if err != nil {
			return nil, err
		}
		data, chunks = append(data, part...), chunks[n:]
	}
	return data, nil
}
