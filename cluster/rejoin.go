package cluster

import (
	"context"
	"log/slog"
	"time"
)

const (
	// silence of the coordinator after which a node knocks again. The
	// coordinator asks every node for its figures each statusEvery.
	silence    = 3 * statusEvery
	knockEvery = 500 * time.Millisecond
	knockLimit = 2 * time.Second
)

// stayJoined returns when ctx ends. Until then it asks the seeds for the cluster
// again whenever the coordinator has been silent: a coordinator that died comes
// back at the same address as a new process that knows nobody, perhaps before
// gossip has noticed that it was gone. The node keeps its weights meanwhile.
//
// A coordinator that the node cannot work with ends a node that has never had another one,
// with an error. One that did has what its own kind needs, which may come back: it stays,
// and says so.
func stayJoined(ctx context.Context, b *bus, seeds []string, heard interface{ Load() int64 }, log *slog.Logger) error {
	t := time.NewTicker(knockEvery)
	defer t.Stop()
	began, lost := time.Now(), false
	var c complaints
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if heard.Load() == 0 {
			if err := b.checkBuild(ctx, thisNode); err != nil {
				return err
			}
		}
		why, _ := b.unlikeCoordinators(ctx, thisNode)
		c.say(log, "this node takes no part under a coordinator of another build, and waits for one of its own", why)
		quiet := min(time.Since(began), uptime()-time.Duration(heard.Load()))
		if quiet < silence {
			if lost {
				log.Info("the coordinator is back")
			}
			lost = false
			continue
		}
		if !lost {
			log.Warn("the coordinator is silent; knocking until it answers", "join", seeds, "for", quiet.Round(time.Millisecond))
			lost = true
		}
		knock, cancel := context.WithTimeout(ctx, knockLimit)
		err := b.gossip.Rejoin(knock, seeds)
		cancel()
		if err != nil {
			log.Debug("no answer yet", "join", seeds, "error", err)
		}
	}
}

var started = time.Now()

// uptime is a time that no setting of the clock moves.
func uptime() time.Duration { return time.Since(started) }

func (n *nodeActor) hear() { n.heard.Store(int64(uptime())) }
