package collective

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Config describes one rank of one group in one epoch. All ranks must agree on every field except Rank,
// Deadline, Rate, the window, Parallel, OnPost and OnFail.
type Config struct {
	Rank         int      // this rank, 0 <= Rank < Size
	Size         int      // number of ranks, 1..MaxRanks
	Epoch        uint32   // number of the placement
	Incarnations []uint32 // incarnation of each rank's process; nil: all zero

	// Deadline bounds the wait for an operation's data, counted from the local start (default 5 s).
	// It must exceed the skew between ranks that reach the same operation. An operation that moves
	// b bytes gets b/Rate longer (default 32e6 bytes/s), so that a slow link is not mistaken for a
	// dead peer.
	Deadline time.Duration
	Rate     int64

	// OneShotBytes is the limit for a one-shot all-reduce: the bytes that the busiest rank receives
	// (default 64 KiB, the break-even on NATS). Larger ones take two shots.
	OneShotBytes int
	// ChunkBytes is the largest payload of one message (default 63 KiB, at most MaxPayload). With
	// its framing the default fits one read of a NATS server. The server reassembles a longer
	// message in new memory and forwards it only when it is complete. Chunks also let small
	// operations overtake large ones.
	ChunkBytes int

	// A peer may be ahead of this rank by messages of at most WindowOps operations (default 1024) and WindowBytes bytes
	// (default 256 MiB). Ranks do not wait for one that owns nothing of an axis, so they may be ahead of it by the
	// operations of a whole step: those of all layers.
	WindowOps   int
	WindowBytes int

	// Parallel calls f with each of 0 to n-1 on several threads and returns when all calls have, like
	// tensor.Pool.Run. A polling goroutine (Group.Poll) sends with it, because those threads wait for
	// the same exchange. nil: messages are sent one after the other.
	Parallel func(n int, f func(i int))

	// OnPost receives the payload of a post of rank src. Goroutines of the transport call it
	// concurrently. It must not block, and must neither keep nor modify payload. nil: posts are
	// dropped.
	OnPost func(src int, payload []byte)

	// OnFail is called once, from a goroutine of the group, when the group
	// fails; not on Close. It must not block.
	OnFail func(error)
}

// ensureDefaults returns the config with defaults filled in.
func (c Config) ensureDefaults() Config {
	if c.Incarnations == nil && c.Size > 0 && c.Size <= MaxRanks {
		c.Incarnations = make([]uint32, c.Size)
	}
	c.Incarnations = slices.Clone(c.Incarnations)
	c.Deadline = cmp.Or(c.Deadline, 5*time.Second)
	c.Rate = cmp.Or(c.Rate, 32e6)
	c.OneShotBytes = cmp.Or(c.OneShotBytes, 64<<10)
	c.ChunkBytes = cmp.Or(c.ChunkBytes, 63<<10)
	c.WindowOps = cmp.Or(c.WindowOps, 1024)
	c.WindowBytes = cmp.Or(c.WindowBytes, 256<<20)
	return c
}

// Validate returns the error that NewGroup would return for a config, or nil.
func (c Config) Validate() error {
	c = c.ensureDefaults()
	bad := func(format string, a ...any) error {
		return fmt.Errorf("%w: config: %s", ErrArgument, fmt.Sprintf(format, a...))
	}
	switch {
	case !littleEndian:
		return bad("payloads are little-endian float32 in memory order; this machine is big-endian")
	case c.Size < 1 || c.Size > MaxRanks:
		return bad("Size %d, want 1..%d", c.Size, MaxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return bad("Rank %d, want 0..%d", c.Rank, c.Size-1)
	case len(c.Incarnations) != c.Size:
		return bad("%d Incarnations for %d ranks", len(c.Incarnations), c.Size)
	case c.Deadline < time.Millisecond:
		return bad("Deadline %v, want at least 1ms", c.Deadline)
	case c.Rate < 1:
		return bad("Rate %d bytes/s, want a positive number", c.Rate)
	case c.OneShotBytes < 0:
		return bad("OneShotBytes %d, want a positive number", c.OneShotBytes)
	case c.ChunkBytes < 4 || c.ChunkBytes > MaxPayload || c.ChunkBytes%4 != 0:
		return bad("ChunkBytes %d, want a multiple of 4 in 4..%d", c.ChunkBytes, MaxPayload)
	case c.WindowOps < 1 || c.WindowBytes < 1:
		return bad("window of %d ops and %d bytes, want positive numbers", c.WindowOps, c.WindowBytes)
	}
	return nil
}

// littleEndian: payloads are copied in memory order.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1
