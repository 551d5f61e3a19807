package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Role is the part of a request that a node computes. With roles, a cluster has two groups of nodes
// that serve the same models: the prefill group reads long prompts, and the decode group does all
// other work.
type Role string

// Roles of nodes. Both is the default. Such a node joins the group that would have no node without
// it, and else the decode group.
const (
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
	RoleBoth    Role = "both"
)

// Roles lists them.
var Roles = []Role{RolePrefill, RoleDecode, RoleBoth}

// ParseRole reads the name of a role. An empty name is RoleBoth.
func ParseRole(s string) (Role, error) {
	if s == "" {
		return RoleBoth, nil
	}
	if slices.Contains(Roles, Role(s)) {
		return Role(s), nil
	}
	names := make([]string, len(Roles))
	for i, r := range Roles {
		names[i] = string(r)
	}
	return "", fmt.Errorf("topology: unknown role %q: known are %s", s, strings.Join(names, ", "))
}

// split divides nodes into the two groups and keeps their order. The decode group has a node unless
// there is none: without others, prefill nodes do all work. A cluster in which all nodes have one role
// has no prefill group.
func split(nodes []Node) (decode, prefill []Node) {
	of := func(roles ...Role) []Node {
		return slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return !slices.Contains(roles, n.Role) })
	}
	flexible := []Role{RoleBoth, ""}
	prefill, decode = of(RolePrefill), of(RoleDecode)
	switch {
	case len(prefill) == 0 && len(decode) > 0:
		return decode, of(flexible...)
	case len(prefill) > 0:
		decode = of(append(flexible, RoleDecode)...)
	default:
		decode = nodes
	}
	if len(decode) == 0 {
		return prefill, nil
	}
	return decode, prefill
}

// DecodeNodes returns the nodes of a placement's decode group. nodes are all of its nodes.
func (p *Placement) DecodeNodes(nodes []Node) []Node { return nodes[:min(len(p.Slices), len(nodes))] }

// PrefillNodes returns the nodes of a placement's prefill group. nodes are all of its nodes.
func (p *Placement) PrefillNodes(nodes []Node) []Node { return nodes[min(len(p.Slices), len(nodes)):] }

// RoleOf returns the role of the group that has a node. nodes are all nodes of the placement. "": no
// group has the node, or there is no prefill group.
func (p *Placement) RoleOf(nodes []Node, id string) Role {
	is := func(n Node) bool { return n.ID == id }
	switch {
	case len(p.Prefill) == 0:
	case slices.ContainsFunc(p.PrefillNodes(nodes), is):
		return RolePrefill
	case slices.ContainsFunc(p.DecodeNodes(nodes), is):
		return RoleDecode
	}
	return ""
}

// OfPrefill returns the placement of one model on the prefill group. It has no slices if there is no
// such group.
func (p Placement) OfPrefill(model int) Placement {
	if model < len(p.Prefill) {
		return p.Prefill[model]
	}
	return Placement{Epoch: p.Epoch}
}
