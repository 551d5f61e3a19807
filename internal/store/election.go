package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/topology"
)

// register stores the single lease record.
type register interface {
	// read returns the record and its revision, or revision 0 if there is none.
	read(ctx context.Context) (topology.Claim, uint64, error)
	// write replaces the record if its revision equals after, else it returns errMoved. After any
	// other error the record may or may not be stored.
	write(ctx context.Context, c topology.Claim, after uint64) (revision uint64, err error)
}

var errMoved = errors.New("store: the record of the lease has changed")

// Timings of the lease. Takeovers rarely wait for LeaseTTL: once gossip reports that the holder
// died, hintAfter applies.
const (
	LeaseTTL      = 8 * time.Second
	hintAfter     = 1500 * time.Millisecond
	leaseRenew    = time.Second
	electionTick  = 100 * time.Millisecond
	electionLimit = 3 * time.Second // of one read or write
	// writeTimeout is how long the only process that can write a store waits for the disk. It then
	// places nodes without recording that, because plain requests need no disk.
	writeTimeout = 2 * time.Second
)

// Election runs topology.Lease: one goroutine accesses the register and reports the resulting
// events.
type Election struct {
	log    *slog.Logger
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	callbacks Callbacks

	mu        sync.Mutex // guards the fields below; never held during a register access
	lease     *topology.Lease
	reg       register
	hold      bool // the lease is moving to another register
	busy      bool // a register access is under way
	requested []topology.LeaseEffect
	wake      chan struct{}
}

// Callbacks are called by an election. They must not wait for it.
type Callbacks struct {
	Elected  func(topology.Claim)
	Recorded func(epoch uint32)
	// Drained gets the drained nodes in the record after a request of Drain. It must not change them.
	Drained func(nodes map[string]uint64)
	Deposed func(by topology.Claim)
}

// Elect starts to compete for the lease in the register that OpenLease opened. holder is the name
// of the process, api its address for clients.
func (s *Store) Elect(holder string, incarnation uint64, api string, callbacks Callbacks) *Election {
	sole := s.alone != nil
	s.election = &Election{log: s.log, began: time.Now(), callbacks: callbacks, reg: s.lease, wake: make(chan struct{}, 1),
		lease: topology.NewLease(topology.LeaseConfig{Holder: holder, Incarnation: incarnation, API: api,
			Exclusive: sole, Bootstrap: sole, Successor: true,
			TTL: LeaseTTL, Hint: hintAfter, Renew: leaseRenew, WriteTimeout: writeTimeout})}
	s.election.run()
	return s.election
}

func (s *Election) run() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() {
		t := time.NewTicker(electionTick)
		defer t.Stop()
		for {
			s.advance(func(l *topology.Lease) []topology.LeaseEffect { return l.Tick(time.Since(s.began)) })
			for s.access() {
			}
			select {
			case <-s.ctx.Done():
				return
			case <-t.C:
			case <-s.wake:
			}
		}
	})
}

// Close stops the election without releasing the lease. The next holder waits for its expiry, or for
// the gossip event that this process has ended.
func (s *Election) Close() {
	s.cancel()
	s.wg.Wait()
}

// advance runs one step of the lease and carries out its effects.
func (s *Election) advance(step func(*topology.Lease) []topology.LeaseEffect) {
	s.mu.Lock()
	effects := step(s.lease)
	var notify []func()
	for _, e := range effects {
		switch e := e.(type) {
		case topology.ReadClaim, topology.WriteClaim:
			s.requested = append(s.requested, e)
		case topology.Elected:
			notify = append(notify, func() { s.callbacks.Elected(e.Claim) })
		case topology.Recorded:
			notify = append(notify, func() {
				if e.Unwritten {
					s.log.Warn("the placement was not recorded because the store accepts no writes; a successor will rely on the reports of nodes",
						"epoch", e.Epoch)
				}
				s.callbacks.Recorded(e.Epoch)
			})
		case topology.DrainedRecorded:
			notify = append(notify, func() { s.callbacks.Drained(e.Nodes) })
		case topology.Deposed:
			notify = append(notify, func() { s.callbacks.Deposed(e.By) })
		}
	}
	s.mu.Unlock()
	for _, f := range notify {
		f()
	}
}

// access performs one pending read or write; false: there was none.
func (s *Election) access() bool {
	s.mu.Lock()
	if len(s.requested) == 0 || s.hold || s.ctx.Err() != nil {
		s.mu.Unlock()
		return false
	}
	e, reg := s.requested[0], s.reg
	s.requested, s.busy = s.requested[1:], true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.busy = false
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(s.ctx, electionLimit)
	defer cancel()
	var c topology.Claim
	var revision uint64
	var err error
	w, writes := e.(topology.WriteClaim)
	if writes {
		revision, err = reg.write(ctx, w.Claim, w.After)
	} else {
		c, revision, err = reg.read(ctx)
	}
	s.advance(func(l *topology.Lease) []topology.LeaseEffect {
		switch {
		case errors.Is(err, errMoved):
			return l.WriteConflict()
		case err != nil:
			if s.ctx.Err() == nil {
				s.log.Debug("the lease cannot be read or written", "error", err)
			}
			return l.OutcomeUnknown()
		case writes:
			return l.WriteDone(revision)
		}
		return l.ReadDone(c, revision)
	})
	return true
}

// Record requests that a placement be recorded.
func (s *Election) Record(p topology.Placement, incarnations []uint64) {
	s.advance(func(l *topology.Lease) []topology.LeaseEffect { return l.Record(p, incarnations) })
	s.signal()
}

// Drain requests that the set of drained nodes be recorded.
func (s *Election) Drain(nodes map[string]uint64) {
	s.advance(func(l *topology.Lease) []topology.LeaseEffect { return l.Drained(nodes) })
	s.signal()
}

// move copies the record to an unused register. After an error the old register stays in use.
func (s *Election) move(ctx context.Context, to register) error {
	s.mu.Lock()
	s.hold = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.hold = false
		s.mu.Unlock()
		s.signal()
	}()
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		s.mu.Lock()
		busy := s.busy
		s.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("store: the lease was not moved: %w", ctx.Err())
		}
	}
	c, holding, _ := s.Claim()
	if !holding {
		return errors.New("store: the lease was lost before it was moved")
	}
	revision, err := found(ctx, to, c)
	if err != nil {
		return fmt.Errorf("store: the lease was not moved: %w", err)
	}
	s.mu.Lock()
	s.reg = to
	s.lease.Moved(revision)
	s.mu.Unlock()
	return nil
}

// found writes the first record of a register. If the answer to a write is lost, the record may be there: other processes
// would then rely on it, so this tries again until a read shows whose record there is, or ctx ends.
func found(ctx context.Context, to register, c topology.Claim) (revision uint64, err error) {
	access := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, electionLimit) // an answer that is lost must leave time for the next try
		defer cancel()
		return f(ctx)
	}
	for {
		err = access(func(ctx context.Context) (err error) {
			revision, err = to.write(ctx, c, 0)
			return err
		})
		if err == nil {
			return revision, nil
		}
		var got topology.Claim
		unread := access(func(ctx context.Context) (err error) {
			got, revision, err = to.read(ctx)
			return err
		})
		if unread == nil && revision > 0 {
			if got.Holder == c.Holder && got.Incarnation == c.Incarnation {
				return revision, nil
			}
			return 0, err
		}
		select {
		case <-time.After(electionTick):
		case <-ctx.Done():
			return 0, errors.Join(err, unread)
		}
	}
}

// HolderLost reports that a process is dead or unreachable.
func (s *Election) HolderLost(incarnation uint64) {
	s.mu.Lock()
	s.lease.HolderLost(incarnation)
	s.mu.Unlock()
	s.signal()
}

func (s *Election) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// pending reports whether the store cannot be written and lacks the newest placement.
func (s *Election) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Unwritten()
}

// Claim returns the record as last read, whether this process holds the lease, and if not, why.
func (s *Election) Claim() (c topology.Claim, holding bool, waits string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, _ = s.lease.Claim()
	return c, s.lease.Holding(), s.lease.Waits()
}
