// Package topology decides which node owns which part of a model: pure functions from members and a
// model's shape to a placement. It has no clock and no I/O.
package topology

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// Mapping names a schedule of a layer's operators over the sockets. It changes the division of the work
// and the messages, never the bits of the result (ARCHITECTURE.md, "Canonical arithmetic").
type Mapping string

const (
	// Gather cuts every matrix by output rows and all-gathers the results: five synchronisations a
	// layer and the least memory.
	Gather Mapping = "gather"
	// Reduce replicates the attention weights, lets each sequence's owner project its own rows (DP
	// attention), and cuts the FFN by units with one all-reduce: two synchronisations a layer in
	// decode.
	Reduce Mapping = "reduce"
)

var Mappings = []Mapping{Gather, Reduce}

// ParseMapping reads a mapping's name.
func ParseMapping(s string) (Mapping, error) {
	for _, m := range Mappings {
		if string(m) == s {
			return m, nil
		}
	}
	names := make([]string, len(Mappings))
	for i, m := range Mappings {
		names[i] = string(m)
	}
	return "", fmt.Errorf("topology: unknown mapping %q: known are %s", s, strings.Join(names, ", "))
}

// Shape holds the model's dimensions that placement needs.
type Shape struct {
	Hidden, Heads, KVHeads, HeadDim, FFN, Vocab int
	// Layers, for the planner.
	Layers int
	// Latent is the number of rows of the joint down-projection to the latents of queries and
	// cache, for latent attention (MLA). KVHeads then counts equal runs of query heads, the grain
	// in which sockets divide them. 0: the model has KV heads.
	Latent int
	// Attention is the mean number of elements of a layer's projections, for models whose layers
	// differ. 0: it follows from the heads above. Only the planner uses it.
	Attention int
	// FFNUnits is the number of units of the FFN axis in a contraction.
	FFNUnits int
	// FFNUnitStart gives the first element of unit u; FFNUnitStart(FFNUnits) is FFN.
	FFNUnitStart func(u int) int
	// Sparse is the fraction of layers with experts instead of that FFN. ActiveFFN is the inner
	// width of the experts of one row, summed. Only the planner uses them: experts are cut like the
	// FFN, see Slice.Part.
	Sparse    float64
	ActiveFFN int
}

func (s *Shape) keyRows() int {
	if s.Latent > 0 {
		return s.Latent
	}
	return s.KVHeads * s.HeadDim
}

// Member is a socket that may take part.
type Member struct {
	ID string
	// Share is the relative speed of the socket; zero means 1.
	Share float64
}

// Range is the half-open range [Lo, Hi) of an axis.
type Range = tensor.Span

// Slice is the part of a model that one socket owns. Ranges of rows are ranges of output rows.
type Slice struct {
	ID   string
	Rank int
	// KVHeads are the heads whose prompt K,V this socket keeps during prefill. With latent
	// attention they are the runs of query heads whose attention it computes.
	KVHeads Range
	// Q, K, V are the rows of the projections that this socket computes for decode rows (Gather;
	// with Reduce every socket holds all rows). With latent attention Q are the rows of its own
	// heads, and K and V are the same rows of the joint down-projection.
	Q, K, V Range
	// Out and Down are rows of the hidden axis (Gather only).
	Out, Down Range
	// FFNUnits are units of the FFN axis. FFN is the same range in elements.
	FFNUnits, FFN Range
	// Vocab is the range of rows of the output head.
	Vocab Range
}

// Part cuts another axis of width elements in the proportions of the FFN axis, in grains of
// RowGrain. units is the number of FFN units. Experts are narrower than a dense FFN and often have
// fewer grains than it has units.
func (s Slice) Part(units, width int) Range {
	at := func(u int) int { return min(ceilDiv(width, tensor.RowGrain)*u/units*tensor.RowGrain, width) }
	return Range{Lo: at(s.FFNUnits.Lo), Hi: at(s.FFNUnits.Hi)}
}

// DeltaRows returns the rows of the joint projection of a linear layer that a socket computes with
// mapping Gather. The rows of a key head are adjacent, width of them. While every socket has KV
// heads they are those of its key heads, so that prefill needs no exchange. With more sockets they
// are cut by rows alone, in the proportions of the FFN axis of units.
func (p *Placement) DeltaRows(rank, kvHeads, keyHeads, width, units int) Range {
	s := p.Slices[rank]
	if len(p.Slices) <= kvHeads {
		return Range{Lo: s.KVHeads.Lo * keyHeads / kvHeads * width, Hi: s.KVHeads.Hi * keyHeads / kvHeads * width}
	}
	return s.Part(units, keyHeads*width)
}

// Placement is the ownership of one epoch.
type Placement struct {
	Epoch   uint32
	Mapping Mapping
	Slices  []Slice
	// Others are the placements of the further models of the cluster: in the same epoch, over the
	// same members in the same order.
	Others []Placement `json:",omitempty"`
	// Prefill holds the placements of all models on the prefill group, whose nodes follow those above.
	// Empty: there is no such group.
	Prefill []Placement `json:",omitempty"`
}

// ErrNoMembers is returned for an empty list of members.
var ErrNoMembers = errors.New("topology: no members to place the model on")

// Place cuts a model over the members, in the order given. Shares must be finite and not negative.
// A member whose share of an axis rounds to zero owns an empty range of it and still takes part in
// every collective.
func Place(epoch uint32, mapping Mapping, s Shape, members []Member) (Placement, error) {
	if len(members) == 0 {
		return Placement{}, ErrNoMembers
	}
	shares := make([]float64, len(members))
	for i, m := range members {
		shares[i] = m.Share
		if m.Share == 0 {
			shares[i] = 1
		}
		if shares[i] < 0 || math.IsNaN(shares[i]) || math.IsInf(shares[i], 0) {
			return Placement{}, fmt.Errorf("topology: member %q has share %v: want a finite number above zero", m.ID, m.Share)
		}
	}
	group := s.Heads / s.KVHeads
	kv := Apportion(s.KVHeads, shares)
	hidden := Apportion(ceilDiv(s.Hidden, tensor.RowGrain), shares)
	units := Apportion(s.FFNUnits, shares)
	vocab := Apportion(ceilDiv(s.Vocab, tensor.RowGrain), shares)
	// Projection rows follow the heads while every socket has one, so prefill needs no exchange
	// before attention. With more sockets than KV heads they are cut by rows alone, so that all
	// sockets share the decode work.
	var q, k []Range
	switch {
	case s.Latent > 0: // the steps after the query rows are done per head
		q = scale(kv, group*s.HeadDim, s.Heads*s.HeadDim)
		k = scale(Apportion(ceilDiv(s.Latent, tensor.RowGrain), shares), tensor.RowGrain, s.Latent)
	case len(members) <= s.KVHeads:
		q, k = scale(kv, group*s.HeadDim, s.Heads*s.HeadDim), scale(kv, s.HeadDim, s.KVHeads*s.HeadDim)
	default:
		q = scale(Apportion(ceilDiv(s.Heads*s.HeadDim, tensor.RowGrain), shares), tensor.RowGrain, s.Heads*s.HeadDim)
		k = scale(Apportion(ceilDiv(s.KVHeads*s.HeadDim, tensor.RowGrain), shares), tensor.RowGrain, s.KVHeads*s.HeadDim)
	}
	p := Placement{Epoch: epoch, Mapping: mapping}
	rows, vrows := scale(hidden, tensor.RowGrain, s.Hidden), scale(vocab, tensor.RowGrain, s.Vocab)
	for i, m := range members {
		p.Slices = append(p.Slices, Slice{
			ID: m.ID, Rank: i,
			KVHeads: kv[i], Q: q[i], K: k[i], V: k[i],
			Out: rows[i], Down: rows[i],
			FFNUnits: units[i],
			FFN:      Range{Lo: s.FFNUnitStart(units[i].Lo), Hi: s.FFNUnitStart(units[i].Hi)},
			Vocab:    vrows[i],
		})
	}
	return p, nil
}

// Apportion divides total things into one contiguous run per share, in order. Each run is within one of
// its exact proportion (largest remainders, ties to the first).
func Apportion(total int, shares []float64) []Range {
	sum := 0.0
	for _, s := range shares {
		sum += s
	}
	counts := make([]int, len(shares))
	rest := make([]float64, len(shares))
	left := total
	for i, s := range shares {
		exact := float64(total) * s / sum
		counts[i] = int(exact)
		rest[i] = exact - float64(counts[i])
		left -= counts[i]
	}
	for ; left > 0; left-- {
		best := 0
		for i := range rest {
			if rest[i] > rest[best] {
				best = i
			}
		}
		counts[best]++
		rest[best] = -1
	}
	out := make([]Range, len(shares))
	at := 0
	for i, c := range counts {
		out[i] = Range{Lo: at, Hi: at + c}
		at += c
	}
	return out
}

func scale(r []Range, by, limit int) []Range {
	out := make([]Range, len(r))
	for i := range r {
		out[i] = Range{Lo: min(r[i].Lo*by, limit), Hi: min(r[i].Hi*by, limit)}
	}
	return out
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
