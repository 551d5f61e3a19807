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

// mappingOf is the key of a chosen mapping: the number of a model and the number of nodes.
type mappingOf struct{ model, nodes int }

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
		return fmt.Sprintf("serves model %.12s, the cluster serves %.12s: give it the same weights and config, and restart it", n.ModelHash, c.ModelHash)
	}
	has := append([]string{n.ModelHash}, n.OtherHashes...)
	for _, m := range c.Models() {
		if !slices.Contains(has, m.ModelHash) {
			return fmt.Sprintf("serves %d models, and lacks model %.12s of the cluster: give it the same weights and config of every model, and restart it", len(has), m.ModelHash)
		}
	}
	return ""
}

// placeAll cuts every model of the cluster over the members, in the authority's epoch.
func (a *Authority) placeAll(part []Node, members []Member) (Placement, error) {
	var all Placement
	for i, m := range a.cfg.Models() {
		p, err := Place(a.epoch, a.nextMapping(i, &m, part), m.Shape, members)
		if err != nil {
			return all, err
		}
		if i == 0 {
			all = p
		} else {
			all.Others = append(all.Others, p)
		}
	}
	return all, nil
}

// Of returns the placement of one model: number 0 is the first.
func (p Placement) Of(model int) Placement {
	if model > 0 {
		return p.Others[model-1]
	}
	p.Others = nil
	return p
}
