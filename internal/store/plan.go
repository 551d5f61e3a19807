package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/proto"
)

// plan is a replicated store: who keeps it. It stands in the store, and each of them
// writes it down to find the others. The operator changes it, one member at a time
// (members.go).
type plan struct {
	ID       string   `json:"id"`
	Revision uint32   `json:"revision,omitempty"` // grows with each change
	Self     string   `json:"self,omitempty"`     // this process's member
	Members  []member `json:"members"`
	// Removed are those that were taken out last: they are told, should they come back.
	Removed []member `json:"removed,omitempty"`
}

type member struct {
	Name   string `json:"name"`             // of the process
	Route  string `json:"route"`            // host:port
	Server string `json:"server,omitempty"` // the name of its server; empty: Name
}

func (m member) server() string { return cmp.Or(m.Server, m.Name) }

func (p *plan) servers() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.server())
	}
	return out
}

// member finds one by the name of its process; -1: it is none.
func (p *plan) member(name string) int {
	return slices.IndexFunc(p.Members, func(m member) bool { return m.Name == name })
}

func (p *plan) routes() (out []string) {
	for _, m := range p.Members {
		out = append(out, m.Route)
	}
	return out
}

// next is a copy to change.
func (p *plan) next() *plan {
	return &plan{ID: p.ID, Revision: p.Revision + 1, Self: p.Self, Members: slices.Clone(p.Members), Removed: slices.Clone(p.Removed)}
}

// at is the member whose routes listen there; empty: none.
func (p *plan) at(route string) string {
	for _, m := range p.Members {
		if m.Route == route {
			return m.Name
		}
	}
	return ""
}

// request asks another process to keep a copy.
func (p *plan) request() *proto.StoreMembers {
	r := &proto.StoreMembers{Store: p.ID, Revision: p.Revision}
	for _, m := range p.Members {
		r.Members = append(r.Members, &proto.StoreMember{Name: m.Name, Route: m.Route, Server: m.Server})
	}
	return r
}

// majority tells that enough members are up, beside this one.
func (p *plan) majority(up []string) bool {
	n := 0
	for _, m := range p.Members {
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			n++
		}
	}
	return n > len(p.Members)/2
}

// lacks says which replicas of a store are not there.
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
		return "the store elects its leader"
	}
	return fmt.Sprintf("the job store needs %d of its %d replicas; here: %s; away: %s. Start them again, with their --data-dir", len(p.Members)/2+1, len(p.Members), strings.Join(here, ", "), strings.Join(away, ", "))
}
