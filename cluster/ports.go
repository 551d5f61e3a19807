package cluster

import "github.com/shoal-llm/shoal/internal/bus"

// Ports is the first of the four ports that a process listens on in addition to gossip; 0: any free
// ones.
type Ports = bus.Ports
