package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/topology"
)

// memoryRegister is a register whose next answers are lost.
type memoryRegister struct {
	mu       sync.Mutex
	claim    topology.Claim
	revision uint64
	lost     int // answers, of writes that are stored and of reads
}

var errLost = errors.New("no responders")

func (r *memoryRegister) answer() error {
	if r.lost > 0 {
		r.lost--
		return errLost
	}
	return nil
}

func (r *memoryRegister) read(context.Context) (topology.Claim, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.claim, r.revision, r.answer()
}

func (r *memoryRegister) write(_ context.Context, c topology.Claim, after uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after != r.revision {
		return 0, errors.Join(errMoved, r.answer())
	}
	r.claim, r.revision = c, after+1
	return r.revision, r.answer()
}

// The store that the lease moves to has the record, but gives no answer for a time. If this process went on with the old
// store, others could claim the lease in the new one.
func TestLeaseMovesWithoutAnswers(t *testing.T) {
	from, to := &memoryRegister{}, &memoryRegister{lost: 4}
	s := &Election{log: slog.New(slog.DiscardHandler), began: time.Now(), reg: from, wake: make(chan struct{}, 1),
		callbacks: Callbacks{Elected: func(topology.Claim) {}, Recorded: func(uint32) {}, Deposed: func(topology.Claim) {}},
		lease: topology.NewLease(topology.LeaseConfig{Holder: "a", Incarnation: 7, Exclusive: true, Bootstrap: true,
			TTL: LeaseTTL, Hint: hintAfter, Renew: leaseRenew, WriteTimeout: writeTimeout})}
	s.run()
	defer s.Close()
	testutil.Eventually(t, time.Minute, "the lease", func() (bool, string) { _, holding, why := s.Claim(); return holding, why })
	if err := s.move(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if c, _, err := to.read(t.Context()); err != nil || c.Holder != "a" || c.Incarnation != 7 {
		t.Errorf("%+v, %v", c, err)
	}
	other := &memoryRegister{claim: topology.Claim{Holder: "b", Incarnation: 8}, revision: 3}
	if err := s.move(t.Context(), other); !errors.Is(err, errMoved) {
		t.Errorf("moved to the store of another process: %v", err)
	}
}
