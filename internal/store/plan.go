package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
)

// plan lists the members of a replicated store. It is recorded in the store. Each member also keeps
// it on disk, to find the others. The operator changes one member at a time (members.go).
type plan struct {
	ID       string   `json:"id"`
	Revision uint32   `json:"revision,omitempty"` // grows with each change
	Self     string   `json:"self,omitempty"`     // the member that is this process
	Members  []member `json:"members"`
	// Removed lists the members removed last. They are notified if they return.
	Removed []member `json:"removed,omitempty"`
}

type member struct {
	Name   string `json:"name"`             // of the process
	Route  string `json:"route"`            // host:port
	Server string `json:"server,omitempty"` // name of its NATS server; empty: Name
}

func (m member) server() string { return cmp.Or(m.Server, m.Name) }

func (p *plan) servers() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.server())
	}
	return out
}

// member returns the index of the member with this process name, or -1.
func (p *plan) member(name string) int {
	return slices.IndexFunc(p.Members, func(m member) bool { return m.Name == name })
}

func (p *plan) routes() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.Route)
	}
	return out
}

// next returns a copy with the next revision, for changing.
func (p *plan) next() *plan {
	return &plan{ID: p.ID, Revision: p.Revision + 1, Self: p.Self, Members: slices.Clone(p.Members), Removed: slices.Clone(p.Removed)}
}

// at returns the name of the member whose route is route, or "".
func (p *plan) at(route string) string {
	for _, m := range p.Members {
		if m.Route == route {
			return m.Name
		}
	}
	return ""
}

// request returns the message that asks another process to keep a copy.
func (p *plan) request() *proto.StoreMembers {
	r := &proto.StoreMembers{Store: p.ID, Revision: p.Revision}
	for _, m := range p.Members {
		r.Members = append(r.Members, &proto.StoreMember{Name: m.Name, Route: m.Route, Server: m.Server})
	}
	return r
}

// majority reports whether this member and those in up form a majority.
func (p *plan) majority(up []string) bool {
	n := 0
	for _, m := range p.Members {
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			n++
		}
	}
	return n > len(p.Members)/2
}

// lacks describes which replicas are missing.
func (p *plan) lacks(bus *natsbus.Server) string {
	up := bus.Peers()
	var here, away []string
	for _, m := range p.Members {
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			here = append(here, m.Name)
		} else {
			away = append(away, m.Name)
		}
	}
	if len(here) > len(p.Members)/2 {
		return "the store is electing a leader"
	}
	return fmt.Sprintf("the job store needs %d of its %d replicas; here: %s; away: %s. Start them again, with their "+options.Name("data-dir"),
		len(p.Members)/2+1, len(p.Members), strings.Join(here, ", "), strings.Join(away, ", "))
}
