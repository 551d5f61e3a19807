package node

import (
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/security"
)

const (
	// drainLimit is how long a leaving node waits for its work to move.
	drainLimit = 20 * time.Second
	drainLook  = 100 * time.Millisecond
)

// drain keeps taking part until other nodes have this node's work, or until no process is left to
// move it.
func (n *Node) drain() {
	end := time.NewTimer(drainLimit)
	defer end.Stop()
	look := time.NewTicker(drainLook)
	defer look.Stop()
	for {
		select {
		case <-n.retired:
			return
		case <-end.C:
			n.Models[0].Socket.Logger.Warn("leaving before the work has moved", "waited", drainLimit)
			return
		case <-look.C:
			if n.Contact.Lost() || !slices.ContainsFunc(n.Bus.Gossip.Members(), func(m gossip.Member) bool {
				return m.Meta.Role == string(security.RoleCoordinator)
			}) {
				return
			}
		}
	}
}
