package socket

import (
	"context"
	"log/slog"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/draft"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/topology"
)

// Config is the configuration of a socket.
type Config struct {
	Checkpoint *checkpoint.Checkpoint
	Pool       *tensor.Pool
	Device     layer.Device     // stores weights and caches and computes; nil: a layer.Host on Pool
	Threads    topology.Threads // range of the pool's threads, from which each step picks a number; zero: all in every step
	OnThreads  func(int)        // called before each step with the number of Go processors that it needs; or nil
	KVBudget   int64            // bytes of KV cache on this socket
	// ParsePolicy parses the name of a cache policy; nil: kvpolicy.Parse.
	ParsePolicy func(spec string) (*kvcache.Policy, error)
	Draft       *draft.Config // drafts tokens for speculative decoding; nil: none
	// Grammars returns the grammar engine of the checkpoint's vocabulary, which it builds on the
	// first call. It may be called from any goroutine. nil: no request may have a grammar.
	Grammars func() (*grammar.Engine, error)
	// WeightsCache, if not nil, keeps quantized matrices on disk between starts.
	WeightsCache *shard.Cache
	// Shared, if not nil, is memory shared with other nodes of this machine. The caller closes it
	// after the socket has stopped.
	Shared *sharedmem.Region
	// PrefixDisk, if not nil, stores blocks of the prefix cache in files. The caller closes it after
	// the socket has stopped.
	PrefixDisk *tier.Store
	// Scratch, if not nil, stores rows of caches that do not fit in memory. The caller closes it
	// after the socket has stopped.
	Scratch *tier.Scratch
	// Adapters, if not nil, stores the files of LoRA adapters, and AdapterBudget bounds the bytes of
	// those in memory.
	Adapters      *lora.Store
	AdapterBudget int64
	Logger        *slog.Logger
	// Connect opens the transport of a group for one rank, in an epoch. It returns when every pair
	// of ranks has exchanged a message, or with an error that names the missing ranks.
	Connect func(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error)
	// Rows requests rows of a cache from a socket of another process; nil: the socket takes no caches.
	Rows Rows
	// OnProgress, if not nil, is called often and from any goroutine during loading. done and total
	// are bytes of the slices.
	OnProgress func(done, total int64)
	// Stopped, if not nil, is closed when the socket has ended. Only then may its checkpoint and its
	// pool be closed (see Stop).
	Stopped chan struct{}
}

// Rows requests rows of a cache from the socket with a name, in the process at a control address.
type Rows func(ctx context.Context, address, name string, r *proto.RowsRequest) (*proto.RowsReply, error)

// device returns the device that the socket computes with.
func (c *Config) device() layer.Device {
	if c.Device == nil {
		return layer.Host{Pool: c.Pool}
	}
	return c.Device
}

// use sets the numbers of the pool's working threads and of Go processors. With spare, there is one
// more processor than threads.
func (c *Config) use(shift int, spare bool) {
	if !c.Threads.Valid() {
		return
	}
	n := c.Threads.Shifted(shift)
	processors := n
	if spare {
		processors++
	}
	if n < c.Pool.Threads() { // park threads before OnThreads, so that they release their CPUs first
		c.Pool.SetThreads(n)
	}
	if c.OnThreads != nil {
		c.OnThreads(processors)
	}
	c.Pool.SetThreads(n)
}
