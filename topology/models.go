package topology

import (
	"fmt"
	"slices"
)

// ModelRules are the inputs to the placement of one model, in addition to the nodes.
type ModelRules struct {
	Shape Shape
	// Mapping of all placements; empty: chosen from the nodes' measurements and WeightBytes.
	Mapping     Mapping
	WeightBytes float64 // bytes of one weight
	ModelHash   string
}

// mappingOf is the key of a chosen mapping: the number of a model, the group and its number of nodes.
type mappingOf struct {
	model, nodes int
	prefill      bool
}

// Models returns the rules of all models of the cluster, the first one first.
func (c *AuthorityConfig) Models() []ModelRules {
	return append([]ModelRules{{Shape: c.Shape, Mapping: c.Mapping, WeightBytes: c.WeightBytes, ModelHash: c.ModelHash}}, c.Others...)
}

// lacking returns an error text that names a model which the node lacks, or "" if it has all models.
func (c *AuthorityConfig) lacking(n Node) string {
	if len(c.Others) == 0 && len(n.OtherHashes) == 0 {
		if n.ModelHash == c.ModelHash {
			return ""
		}
		return fmt.Sprintf("serves model %.12s, the cluster serves %.12s: give it the same weights and config, and restart it",
			n.ModelHash, c.ModelHash)
	}
	has := append([]string{n.ModelHash}, n.OtherHashes...)
	for _, m := range c.Models() {
		if !slices.Contains(has, m.ModelHash) {
			return fmt.Sprintf("serves %d models, and lacks model %.12s of the cluster: give it the same weights and config of every model, and "+
				"restart it", len(has), m.ModelHash)
		}
	}
	return ""
}

// placeAll cuts every model of the cluster over the nodes of each group, in the authority's epoch.
func (a *Authority) placeAll(decode, prefill []Node) (Placement, error) {
	a.capped = map[string]string{}
	places, err := a.placeGroup(decode, false)
	if err != nil {
		return Placement{}, err
	}
	all := places[0]
	all.Others = places[1:]
	if len(prefill) > 0 {
		all.Prefill, err = a.placeGroup(prefill, true)
	}
	return all, err
}

// placeGroup cuts every model over the nodes of one group.
func (a *Authority) placeGroup(part []Node, prefill bool) (places []Placement, err error) {
	members, shares := make([]Member, len(part)), a.shares(part)
	for i, n := range part {
		members[i] = Member{ID: n.ID, Share: shares[i]}
	}
	before := a.place.Prefill
	if !prefill && len(a.place.Slices) > 0 {
		before = append([]Placement{a.place}, a.place.Others...)
	}
	for i, m := range a.cfg.Models() {
		var was Placement
		if i < len(before) {
			was = before[i]
		}
		p, err := Place(a.epoch, a.nextMapping(mappingOf{i, len(part), prefill}, &was, &m, part), m.Shape, members)
		if err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	return places, nil
}

// Of returns the placement of one model on the decode group: number 0 is the first.
func (p Placement) Of(model int) Placement {
	if model > 0 {
		return p.Others[model-1]
	}
	p.Others, p.Prefill = nil, nil
	return p
}
