package bus

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/events"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
)

// Contact is the time of the coordinator's last request to this process.
type Contact struct{ last atomic.Int64 } // uptime; 0: none yet

// Renew sets the time of the last request to now.
func (c *Contact) Renew() { c.last.Store(int64(uptime())) }

// Lost reports whether the coordinator has been silent for longer than contactTimeout.
func (c *Contact) Lost() bool { return c.silence() > contactTimeout }

// silence returns the time since the last request, or since the start of this process.
func (c *Contact) silence() time.Duration { return uptime() - time.Duration(c.last.Load()) }

const (
	// contactTimeout is how long the coordinator may be silent before a node rejoins. The
	// coordinator normally requests figures from every node each events.SampleEvery.
	contactTimeout = 3 * events.SampleEvery
	// RejoinInterval is the time between two attempts to join.
	RejoinInterval = 500 * time.Millisecond
	rejoinLimit    = 2 * time.Second
	// callTimeout is how long a coordinator that answers may take to call a new node.
	callTimeout = 15 * time.Second
)

// explainNoCall logs an error if a coordinator answers this process: it then fails to connect back.
func (b *Bus) explainNoCall(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, rejoinLimit)
	defer cancel()
	for _, m := range b.Gossip.Members() {
		if m.Meta.Role != string(security.RoleCoordinator) || !m.Meta.Leads {
			continue
		}
		if _, err := b.RPC.Hello(ctx, m.Meta.RPC); err != nil {
			continue
		}
		b.log.Error("the coordinator answers this node, but has never called it: it cannot connect to the address where this node listens",
			"coordinator", m.Name, "address", b.RPC.Address(),
			"reason", "address translation (NAT) between the two, which is not supported, or a firewall that drops these ports",
			"do", fmt.Sprintf("give an address of this machine that the coordinator can reach with %s, fixed ports with %s, and open them; or "+
				"connect the machines by a VPN", options.Name("bind"), options.Name("ports")))
		return
	}
}

// StayJoined returns when ctx ends. Until then it joins through the seeds again whenever the coordinator has
// been silent. A coordinator that died may return at the same address as a new process with an empty member
// list, even before gossip has noticed its death. The node keeps its weights meanwhile.
//
// If the only coordinators are incompatible, a node that never had a compatible one ends with an
// error. A node that had one stays and logs that, because a compatible one may return.
func (b *Bus) StayJoined(ctx context.Context, seeds []string, contact *Contact) error {
	t := time.NewTicker(RejoinInterval)
	defer t.Stop()
	began, lost := time.Now(), false
	var warnings BuildWarnings
	reported := time.Duration(0) // time after the start of the last error about a node that is not called
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if contact.last.Load() == 0 {
			if err := b.CheckBuild(ctx); err != nil {
				return err
			}
			if age := time.Since(began); age > reported+callTimeout {
				reported = age + complainEvery - callTimeout
				b.explainNoCall(ctx)
			}
		}
		why, _ := b.IncompatibleCoordinators(ctx)
		warnings.Log(b.log, "this node waits for a compatible coordinator; the present one has an incompatible build", why)
		quiet := min(time.Since(began), contact.silence())
		if quiet < contactTimeout {
			if lost {
				b.log.Info("the coordinator is back")
			}
			lost = false
			continue
		}
		if !lost {
			b.log.Warn("no contact with the coordinator; rejoining until it answers", "join", seeds, "for", quiet.Round(time.Millisecond))
			lost = true
		}
		rejoin, cancel := context.WithTimeout(ctx, rejoinLimit)
		err := b.Gossip.Rejoin(rejoin, seeds)
		cancel()
		if err != nil {
			b.log.Debug("no answer yet", "join", seeds, "error", err)
		}
	}
}

var started = time.Now()

// uptime returns the time since the start, unaffected by changes of the clock.
func uptime() time.Duration { return time.Since(started) }
