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

// register is the one record of the lease in a store.
type register interface {
	// read returns the record and its revision, 0 when there is none.
	read(ctx context.Context) (topology.Claim, uint64, error)
	// write replaces the record of a revision; errMoved when it has another one.
	// After any other error it may be there or not.
	write(ctx context.Context, c topology.Claim, after uint64) (revision uint64, err error)
}

var errMoved = errors.New("store: the record of the lease has changed")

// Timings of the lease. A coordinator that died is seldom waited for so long:
// gossip tells of its death, and then hintAfter counts.
const (
	LeaseTTL      = 8 * time.Second
	hintAfter     = 1500 * time.Millisecond
	leaseRenew    = time.Second
	electionTick  = 100 * time.Millisecond
	electionLimit = 3 * time.Second // of one read or write
	// waiveAfter is how long the only process that can write a store waits for it
	// before it places nodes without: plain requests need no disk.
	waiveAfter = 2 * time.Second
)

// Election is the shell around topology.Lease: one goroutine that asks the register
// and tells what follows.
type Election struct {
	log    *slog.Logger
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	told Told

	mu    sync.Mutex // guards the rest; never held while the register is asked
	lease *topology.Lease
	reg   register
	hold  bool // the register is being changed
	busy  bool // it is being asked
	asks  []topology.LeaseEffect
	wake  chan struct{}
}

// Told are the functions that an election calls. None may wait for it.
type Told struct {
	Elected  func(topology.Claim)
	Recorded func(epoch uint32)
	Deposed  func(by topology.Claim)
}

// Elect begins to ask for the lease, in the register that OpenLease has opened. holder is
// the process's name, api where clients reach it.
func (s *Store) Elect(holder string, incarnation uint64, api string, told Told) *Election {
	sole := s.alone != nil
	s.election = &Election{log: s.log, began: time.Now(), told: told, reg: s.lease, wake: make(chan struct{}, 1),
		lease: topology.NewLease(topology.LeaseConfig{Holder: holder, Incarnation: incarnation, API: api, Sole: sole, Found: sole, Heir: true,
			TTL: LeaseTTL, Hint: hintAfter, Renew: leaseRenew, Waive: waiveAfter})}
	s.election.run()
	return s.election
}

func (s *Election) run() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() {
		t := time.NewTicker(electionTick)
		defer t.Stop()
		for {
			s.take(func(l *topology.Lease) []topology.LeaseEffect { return l.Tick(time.Since(s.began)) })
			for s.ask() {
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

// Close ends the election. The lease is left as it is: the next holder waits for it,
// or knows that this process is gone.
func (s *Election) Close() {
	s.cancel()
	s.wg.Wait()
}

// take lets the lease take a step and tells what follows.
func (s *Election) take(step func(*topology.Lease) []topology.LeaseEffect) {
	s.mu.Lock()
	effects := step(s.lease)
	var tell []func()
	for _, e := range effects {
		switch e := e.(type) {
		case topology.ReadClaim, topology.WriteClaim:
			s.asks = append(s.asks, e)
		case topology.Elected:
			tell = append(tell, func() { s.told.Elected(e.Claim) })
		case topology.Recorded:
			tell = append(tell, func() {
				if e.Owed {
					s.log.Warn("the placement is not written down: the store takes nothing, and this process alone may write it; its successor will go by what nodes report", "epoch", e.Epoch)
				}
				s.told.Recorded(e.Epoch)
			})
		case topology.Deposed:
			tell = append(tell, func() { s.told.Deposed(e.By) })
		}
	}
	s.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// ask carries out one read or write; false: there is none to do.
func (s *Election) ask() bool {
	s.mu.Lock()
	if len(s.asks) == 0 || s.hold || s.ctx.Err() != nil {
		s.mu.Unlock()
		return false
	}
	e, reg := s.asks[0], s.reg
	s.asks, s.busy = s.asks[1:], true
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
	s.take(func(l *topology.Lease) []topology.LeaseEffect {
		switch {
		case errors.Is(err, errMoved):
			return l.Refused()
		case err != nil:
			if s.ctx.Err() == nil {
				s.log.Debug("the lease cannot be read or written", "error", err)
			}
			return l.Unsure()
		case writes:
			return l.Wrote(revision)
		}
		return l.Saw(c, revision)
	})
	return true
}

// Record asks to write a placement down.
func (s *Election) Record(p topology.Placement, incarnations []uint64) {
	s.take(func(l *topology.Lease) []topology.LeaseEffect { return l.Record(p, incarnations) })
	s.kick()
}

// Drain asks to write down which nodes are drained.
func (s *Election) Drain(nodes map[string]uint64) {
	s.take(func(l *topology.Lease) []topology.LeaseEffect { return l.Drained(nodes) })
	s.kick()
}

// move carries the record to a register that nobody has written yet. When it
// returns an error the old one is in use as before.
func (s *Election) move(ctx context.Context, to register) error {
	s.mu.Lock()
	s.hold = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.hold = false
		s.mu.Unlock()
		s.kick()
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
	revision, err := to.write(ctx, c, 0)
	if err != nil { // it may be there all the same
		got, at, rerr := to.read(ctx)
		if rerr != nil || at == 0 || got.Holder != c.Holder || got.Incarnation != c.Incarnation {
			return fmt.Errorf("store: the lease was not moved: %w", errors.Join(err, rerr))
		}
		revision = at
	}
	s.mu.Lock()
	s.reg = to
	s.lease.Moved(revision)
	s.mu.Unlock()
	return nil
}

// Gone tells that a process is dead or cannot be reached.
func (s *Election) Gone(incarnation uint64) {
	s.mu.Lock()
	s.lease.Gone(incarnation)
	s.mu.Unlock()
	s.kick()
}

func (s *Election) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// owing tells that the store does not have the newest placement, and takes nothing.
func (s *Election) owing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Owing()
}

// Claim is the record as this process knows it, and why it does not coordinate.
func (s *Election) Claim() (c topology.Claim, holding bool, waits string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, _ = s.lease.Claim()
	return c, s.lease.Holding(), s.lease.Waits()
}
