package cluster

import (
	"context"
	"log/slog"
	"time"
)

const (
	// contactTimeout is how long the coordinator may be silent before a node rejoins. The
	// coordinator normally requests figures from every node each statusEvery.
	contactTimeout = 3 * statusEvery
	rejoinInterval = 500 * time.Millisecond
	rejoinLimit    = 2 * time.Second
)

// stayJoined returns when ctx ends. Until then it asks the seeds for the cluster again
// whenever the coordinator has been silent. A coordinator that died may return at the same
// address as a new process that knows no nodes, even before gossip has noticed its death. The
// node keeps its weights meanwhile.
//
// If the only coordinators are incompatible, a node that never had a compatible one ends with an
// error. A node that had one stays and logs that, because a compatible one may return.
func stayJoined(ctx context.Context, b *bus, seeds []string, lastContact interface{ Load() int64 }, log *slog.Logger) error {
	t := time.NewTicker(rejoinInterval)
	defer t.Stop()
	began, lost := time.Now(), false
	var c buildWarnings
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if lastContact.Load() == 0 {
			if err := b.checkBuild(ctx, thisNode); err != nil {
				return err
			}
		}
		why, _ := b.incompatibleCoordinators(ctx, thisNode)
		c.log(log, "this node waits for a compatible coordinator; the present one has an incompatible build", why)
		quiet := min(time.Since(began), uptime()-time.Duration(lastContact.Load()))
		if quiet < contactTimeout {
			if lost {
				log.Info("the coordinator is back")
			}
			lost = false
			continue
		}
		if !lost {
			log.Warn("no contact with the coordinator; rejoining until it answers", "join", seeds, "for", quiet.Round(time.Millisecond))
			lost = true
		}
		rejoin, cancel := context.WithTimeout(ctx, rejoinLimit)
		err := b.gossip.Rejoin(rejoin, seeds)
		cancel()
		if err != nil {
			log.Debug("no answer yet", "join", seeds, "error", err)
		}
	}
}

var started = time.Now()

// uptime is the time since the start, unaffected by changes of the clock.
func uptime() time.Duration { return time.Since(started) }

func (n *nodeActor) noteContact() { n.lastContact.Store(int64(uptime())) }
