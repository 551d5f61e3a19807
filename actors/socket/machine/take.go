package machine

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// A socket of the decode group takes the cache of a prompt from its owner in the prefill group, or the
// cache of an idle session from a file, while steps run. The cache is then kept like one of an earlier
// epoch, until a plan resumes with it. Both groups have the same epoch, which fences their messages.

// taking holds the caches that a socket is receiving.
type taking struct {
	all           map[uint64]*Kept
	releasedEarly [1024]uint64 // sequences that were released before their request arrived; the newest overwrite the oldest
	next          int
}

// released records the release of a sequence that the socket does not have. A later request to take it
// is refused.
func (t *taking) released(seq uint64) {
	t.releasedEarly[t.next] = seq
	t.next = (t.next + 1) % len(t.releasedEarly)
}

func (t *taking) wasReleased(seq uint64) bool { return slices.Contains(t.releasedEarly[:], seq) }

// Take begins to take a cache. It returns the cache's policy.
func (m *Machine) Take(r *proto.TakeRequest) (*kvcache.Policy, error) {
	id, err := adapterID(r.Adapter)
	switch {
	case r.Epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping || m.busy:
		return nil, fmt.Errorf("%w: a cache to take in epoch %d, at %d (%s)", ErrStaleEpoch, r.Epoch, m.Epoch, m.Phase)
	case r.Seq == 0 || m.taking.wasReleased(r.Seq):
		return nil, fmt.Errorf("%w: sequence %d was released before its cache is taken", ErrStaleEpoch, r.Seq)
	case m.seqs[r.Seq] != nil || m.kept[r.Seq] != nil || m.taking.all[r.Seq] != nil:
		return nil, fmt.Errorf("socket: sequence %d exists already", r.Seq)
	case len(m.taking.all) >= plan.MaxTaking:
		return nil, fmt.Errorf("socket: %d caches are on their way, the maximum", plan.MaxTaking)
	case err != nil:
		return nil, err
	}
	p, err := m.limits.Parse(r.Policy)
	if err != nil {
		return nil, fmt.Errorf("socket: sequence %d: %w", r.Seq, err)
	}
	prompt, most := int(r.Tokens), m.limits.Positions
	if len(r.Saved) > 0 { // it has generated tokens too, which may exceed the context
		prompt, most = int(r.Prompt), p.ContextLimit(most)
	}
	switch {
	case r.Tokens == 0 || int(r.Tokens) > most:
		return nil, fmt.Errorf("socket: sequence %d: a cache of %d tokens, the context holds 1 to %d", r.Seq, r.Tokens, most)
	case prompt == 0 || prompt > min(int(r.Tokens), m.limits.Positions):
		return nil, fmt.Errorf("socket: sequence %d: a cache of %d tokens after a prompt of %d, the context holds %d", r.Seq, r.Tokens, prompt,
			m.limits.Positions)
	case len(r.Saved) > 0 && (len(r.Saved) != sha256.Size || len(r.Digest) != sha256.Size):
		return nil, fmt.Errorf("socket: sequence %d: a file with a key of %d and a digest of %d bytes, want %d", r.Seq, len(r.Saved),
			len(r.Digest), sha256.Size)
	}
	m.taking.all[r.Seq] = &Kept{Prompt: prompt, Tokens: int(r.Tokens), Policy: p, Adapter: id, Layout: m.limits.Layout}
	return p, nil
}

func adapterID(b []byte) (id lora.ID, err error) {
	if len(b) > 0 {
		id, err = lora.IDOf(b)
	}
	return id, err
}

// Taken ends a Take. Without ok the cache did not arrive. It returns an error if the socket does not keep the cache.
func (m *Machine) Taken(epoch uint32, seq uint64, ok bool) error {
	k := m.taking.all[seq]
	if epoch != m.Epoch || k == nil {
		return fmt.Errorf("%w: sequence %d was released while its cache was taken", ErrStaleEpoch, seq)
	}
	delete(m.taking.all, seq)
	if ok {
		m.kept[seq] = k
	}
	return nil
}

// Lend checks a request for rows of a cache that this socket owns. All tokens of the cache are from its
// prompt, and they do not change any more.
func (m *Machine) Lend(r *proto.RowsRequest) error {
	if r.Epoch != m.Epoch || m.Phase != Ready && m.Phase != Stepping {
		return fmt.Errorf("%w: rows in epoch %d, at %d (%s)", ErrStaleEpoch, r.Epoch, m.Epoch, m.Phase)
	}
	q := m.seqs[r.Seq]
	switch {
	case q == nil || !q.HandedOver || q.Owner != m.limits.Rank || q.Replica != plan.None:
		return fmt.Errorf("socket: this socket has no cache of sequence %d", r.Seq)
	case q.Prompt != int(r.Tokens) || q.Read != q.Prompt || q.Staged != 0 || q.Policy.Spec() != r.Policy:
		return fmt.Errorf("socket: the cache of sequence %d has %d of %d tokens under %s, the request expects %d under %s", r.Seq,
			q.Read+q.Staged, q.Prompt, q.Policy.Spec(), r.Tokens, r.Policy)
	}
	return nil
}
