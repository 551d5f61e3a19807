package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/bus"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/store"
	"github.com/shoal-llm/shoal/topology"
)

// ErrLostLease: another coordinator has taken over and this one has stopped.
var ErrLostLease = errors.New("cluster: another coordinator has taken over")

// Election decides when this process coordinates, and notices when it no longer may.
type Election struct {
	// Deposed is called when another coordinator has taken over. It must not block.
	Deposed func()

	log      *slog.Logger
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	election atomic.Pointer[store.Election]
	director atomic.Pointer[Director]
	lastLost atomic.Pointer[time.Time] // time of the last report that another coordinator is lost
	lost     chan struct{}             // closed when the lease is lost
	why      error                     // then the reason
}

// Candidate is a process that takes part in the election of the coordinator.
type Candidate struct {
	Bus         *bus.Bus
	Store       *store.Store
	ID          string
	Incarnation uint64
	API         string // its address for clients
	Standby     bool   // wait while another process coordinates
	// Waits is called whenever the reason changes why this process does not coordinate yet; it may be
	// nil. alone is set if no other process has coordinated for longer than a takeover takes.
	Waits func(why string, alone bool)
}

// PlacementLog records placements before they are sent to nodes.
type PlacementLog struct {
	Term  uint64 // of the lease
	After uint32 // newest epoch in the log
	// Drained has the recorded drained nodes; Drain records a new set.
	Drained map[string]uint64
	Drain   func(nodes map[string]uint64)
	Record  func(p topology.Placement, incarnations []uint64)
}

// NewElection returns an election in which this process does not take part yet.
func NewElection(log *slog.Logger, deposed func()) *Election {
	e := &Election{Deposed: deposed, log: log, lost: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// Close leaves the election.
func (e *Election) Close() {
	e.cancel()
	if s := e.election.Load(); s != nil {
		s.Close()
	}
	e.wg.Wait()
}

// Attach sends later changes of leadership to a director. If the lease is lost already, it deposes the
// director at once.
func (e *Election) Attach(d *Director) {
	e.director.Store(d)
	select {
	case <-e.lost: // lost between the acquisition and now
		d.Depose(e.why.Error())
	default:
	}
}

// LastLost returns when a coordinator was last reported lost; nil: never.
func (e *Election) LastLost() *time.Time { return e.lastLost.Load() }

// Observe handles a gossip event: a lost coordinator cannot renew its lease.
func (e *Election) Observe(g gossip.Event) {
	if g.Member.Meta.Role != string(security.RoleCoordinator) || g.Kind != gossip.Failed && g.Kind != gossip.Leave {
		return
	}
	now := time.Now()
	e.lastLost.Store(&now)
	e.wg.Go(func() { // gossip callbacks must not block
		t := time.NewTicker(waitsTick)
		defer t.Stop()
		for { // the election may not exist yet
			if s := e.election.Load(); s != nil {
				s.HolderLost(g.Member.Meta.Incarnation)
				return
			}
			select {
			case <-t.C:
			case <-e.ctx.Done():
				return
			}
		}
	})
}

const (
	// rivalWait is how long a coordinator without --standby waits for another one's lease to
	// expire.
	rivalWait = store.LeaseTTL + 10*time.Second
	waitsTick = 200 * time.Millisecond
)

// Acquire waits for the lease.
func (e *Election) Acquire(ctx context.Context, c Candidate) (PlacementLog, error) {
	v := &standbyWait{standby: c.Standby, log: e.log, othersLead: c.Bus.HasOtherCoordinator, notify: c.Waits}
	v.start()
	defer v.stop()
	t := time.NewTicker(waitsTick)
	defer t.Stop()
	var unlike bus.BuildWarnings
	look := func() { // incompatible nodes would be useless after a takeover
		why, _ := c.Bus.IncompatibleCoordinators(ctx)
		unlike.Log(e.log, "the active coordinator has an incompatible build: this standby could not take over its nodes", why)
	}
	for c.Standby && !c.Store.Replicated() {
		v.setReason(fmt.Sprintf("the coordinator has not asked this process to keep a copy of the store yet: name it there with %s %s,... or "+
			"shoal store add %s; a replicated store needs three processes with a %s", options.Name("store-nodes"),
			c.ID, c.ID, options.Name("data-dir")))
		select {
		case <-t.C:
			look()
		case <-ctx.Done():
			return PlacementLog{}, ctx.Err()
		}
	}
	if err := c.Store.OpenLease(ctx, v.setReason); err != nil {
		return PlacementLog{}, err
	}
	claims := make(chan topology.Claim, 1)
	election := c.Store.Elect(c.ID, c.Incarnation, c.API, store.Callbacks{
		Elected:  func(l topology.Claim) { claims <- l },
		Recorded: e.recorded,
		Drained:  e.drained,
		Deposed:  e.stepDown,
	})
	e.election.Store(election)
	began := time.Now()
	for {
		select {
		case l := <-claims:
			kind, _ := c.Store.Durability()
			e.log.Debug("coordinating", "term", l.Term, "after_epoch", l.Placement.Epoch, "store", kind)
			return PlacementLog{Term: l.Term, After: l.Placement.Epoch, Record: election.Record, Drained: l.Drained, Drain: election.Drain}, nil
		case <-t.C:
			look()
		case <-ctx.Done():
			return PlacementLog{}, ctx.Err()
		}
		claim, _, why := election.Claim()
		if c.Standby || time.Since(began) > store.QuietPeriod {
			v.setReason(why)
		}
		if !c.Standby && time.Since(began) > rivalWait {
			return PlacementLog{}, fmt.Errorf("cluster: %s (its API: %s); to run this one as a standby start it with %s %s HOST:PORT", why,
				claim.API, options.Name("standby"), options.Name("join"))
		}
	}
}

func (e *Election) recorded(epoch uint32) {
	if d := e.director.Load(); d != nil {
		d.Recorded(epoch)
	}
}

func (e *Election) drained(nodes map[string]uint64) {
	if d := e.director.Load(); d != nil {
		d.DrainedRecorded(nodes)
	}
}

// stepDown stops this coordinator. It can no longer record decisions, and the nodes follow another
// one.
func (e *Election) stepDown(by topology.Claim) {
	e.why = fmt.Errorf("%w: %s has the lease since term %d (its API: %s); this process failed to renew it in time and has changed "+
		"nothing since", ErrLostLease, by.Holder, by.Term, by.API)
	e.log.Error("stepping down", "reason", e.why)
	close(e.lost)
	if d := e.director.Load(); d != nil {
		d.Depose(e.why.Error())
	}
	e.Deposed()
}

// Lost is closed when another coordinator has taken over. LostReason names it.
func (e *Election) Lost() <-chan struct{} { return e.lost }

// LostReason returns an error that wraps ErrLostLease once Lost is closed.
func (e *Election) LostReason() error {
	select {
	case <-e.lost:
		return e.why
	default:
		return nil
	}
}
