package machine

import (
	"crypto/sha256"
	"fmt"

	"github.com/shoal-llm/shoal/internal/proto"
)

// Save checks an order to write the cache of an idle session to a file, and returns the effects that must
// run before the write. It refuses a cache with rows in the step in flight. The request has the number of
// tokens that count, which the effects commit. Other sockets commit them when the next turn opens with the
// cache.
func (m *Machine) Save(r *proto.SavedRequest) ([]Effect, error) {
	switch {
	case r.Epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping || m.busy:
		return nil, fmt.Errorf("%w: a cache to write in epoch %d, at %d (%s)", ErrStaleEpoch, r.Epoch, m.Epoch, m.Phase)
	case len(r.Key) != sha256.Size || len(r.Digest) != sha256.Size:
		return nil, fmt.Errorf("socket: sequence %d: a file with a key of %d and a digest of %d bytes, want %d", r.Seq, len(r.Key),
			len(r.Digest), sha256.Size)
	case r.Millis < 1:
		return nil, fmt.Errorf("socket: sequence %d: the time of its session is over", r.Seq)
	}
	var read, staged *int
	if q, k := m.seqs[r.Seq], m.kept[r.Seq]; q != nil {
		if !q.HandedOver || q.inFlight || q.Owner != m.limits.Rank {
			return nil, fmt.Errorf("socket: this socket has no idle cache of sequence %d", r.Seq)
		}
		read, staged = &q.Read, &q.Staged
	} else if k != nil {
		read, staged = &k.Tokens, &k.Staged
	} else {
		return nil, fmt.Errorf("socket: this socket has no cache of sequence %d", r.Seq)
	}
	if n := int(r.Tokens); n < *read || n > *read+*staged {
		return nil, fmt.Errorf("socket: sequence %d has %d tokens and %d of its last step, not %d", r.Seq, *read, *staged, n)
	}
	*read, *staged = int(r.Tokens), 0
	return []Effect{{Do: DoCommit, Seq: r.Seq, Tokens: *read}}, nil
}

// Drop checks an order to remove the cache of a session from the disk. It refuses one of an earlier epoch: the name may
// belong to another session now.
func (m *Machine) Drop(r *proto.SavedRequest) error {
	if r.Epoch < m.Epoch {
		return fmt.Errorf("%w: a cache to remove in epoch %d, at %d", ErrStaleEpoch, r.Epoch, m.Epoch)
	}
	return nil
}
