package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"shoal/topology"
)

// register is the one record of the lease in a store.
type register interface {
	// read returns the record and its revision, 0 when there is none.
	read(ctx context.Context) (topology.Claim, uint64, error)
	// write replaces the record of a revision; errMoved when it has another one.
	// After any other error it may be there or not.
	write(ctx context.Context, c topology.Claim, after uint64) (revision uint64, err error)
}

var errMoved = errors.New("cluster: the record of the lease has changed")

// Timings of the lease. A coordinator that died is seldom waited for so long:
// gossip tells of its death, and then hintAfter counts.
const (
	leaseTTL      = 8 * time.Second
	hintAfter     = 1500 * time.Millisecond
	leaseRenew    = time.Second
	electionTick  = 100 * time.Millisecond
	electionLimit = 3 * time.Second // of one read or write
	// waiveAfter is how long the only process that can write a store waits for it
	// before it places nodes without: plain requests need no disk.
	waiveAfter = 2 * time.Second
)

// election is the shell around topology.Lease: one goroutine that asks the register
// and tells what follows.
type election struct {
	log    *slog.Logger
	began  time.Time
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	elected  func(topology.Claim)
	recorded func(epoch uint32)
	deposed  func(by topology.Claim)

	mu    sync.Mutex // guards the rest; never held while the register is asked
	lease *topology.Lease
	reg   register
	hold  bool // the register is being changed
	busy  bool // it is being asked
	asks  []topology.LeaseEffect
	wake  chan struct{}
}

func newElection(reg register, cfg topology.LeaseConfig, log *slog.Logger) *election {
	cfg.TTL, cfg.Hint, cfg.Renew, cfg.Waive = leaseTTL, hintAfter, leaseRenew, waiveAfter
	s := &election{log: log, began: time.Now(), reg: reg, lease: topology.NewLease(cfg), wake: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// run starts the goroutine. What it calls must not wait for it.
func (s *election) run() {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
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
	}()
}

// close ends the election. The lease is left as it is: the next holder waits for it,
// or knows that this process is gone.
func (s *election) close() {
	s.cancel()
	s.wg.Wait()
}

// take lets the lease take a step and tells what follows.
func (s *election) take(step func(*topology.Lease) []topology.LeaseEffect) {
	s.mu.Lock()
	effects := step(s.lease)
	var tell []func()
	for _, e := range effects {
		switch e := e.(type) {
		case topology.ReadClaim, topology.WriteClaim:
			s.asks = append(s.asks, e)
		case topology.Elected:
			tell = append(tell, func() { s.elected(e.Claim) })
		case topology.Recorded:
			tell = append(tell, func() {
				if e.Owed {
					s.log.Warn("the placement is not written down: the store takes nothing, and this process alone may write it; its successor will go by what nodes report", "epoch", e.Epoch)
				}
				s.recorded(e.Epoch)
			})
		case topology.Deposed:
			tell = append(tell, func() { s.deposed(e.By) })
		}
	}
	s.mu.Unlock()
	for _, f := range tell {
		f()
	}
}

// ask carries out one read or write; false: there is none to do.
func (s *election) ask() bool {
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

// record asks to write a placement down.
func (s *election) record(p topology.Placement, incarnations []uint64) {
	s.take(func(l *topology.Lease) []topology.LeaseEffect { return l.Record(p, incarnations) })
	s.kick()
}

// drain asks to write down which nodes are drained.
func (s *election) drain(nodes map[string]uint64) {
	s.take(func(l *topology.Lease) []topology.LeaseEffect { return l.Drained(nodes) })
	s.kick()
}

// move carries the record to a register that nobody has written yet. When it
// returns an error the old one is in use as before.
func (s *election) move(ctx context.Context, to register) error {
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
			return fmt.Errorf("cluster: the lease was not moved: %w", ctx.Err())
		}
	}
	c, holding, _ := s.claim()
	if !holding {
		return errors.New("cluster: the lease was lost before it was moved")
	}
	revision, err := to.write(ctx, c, 0)
	if err != nil { // it may be there all the same
		got, at, rerr := to.read(ctx)
		if rerr != nil || at == 0 || got.Holder != c.Holder || got.Incarnation != c.Incarnation {
			return fmt.Errorf("cluster: the lease was not moved: %w", errors.Join(err, rerr))
		}
		revision = at
	}
	s.mu.Lock()
	s.reg = to
	s.lease.Moved(revision)
	s.mu.Unlock()
	return nil
}

// gone tells that a process is dead or cannot be reached.
func (s *election) gone(incarnation uint64) {
	s.mu.Lock()
	s.lease.Gone(incarnation)
	s.mu.Unlock()
	s.kick()
}

func (s *election) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// owing tells that the store does not have the newest placement, and takes nothing.
func (s *election) owing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Owing()
}

// claim is the record as this process knows it, and why it does not coordinate.
func (s *election) claim() (c topology.Claim, holding bool, waits string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, _ = s.lease.Claim()
	return c, s.lease.Holding(), s.lease.Waits()
}
