package layer

import (
	"slices"

	"github.com/shoal-llm/shoal/topology"
)

// A schedule lists the stages of one layer for one step. It is a pure function of what
// every rank knows, so all ranks run the same collectives in the same order. The two
// mappings (DESIGN: SnapStream, arXiv 2511.03092, section 4, figure 7) are two lists; what a
// model, the weights' type or a step adds stands in them as a condition.

// conditions are all that decides which stages apply.
type conditions struct {
	mapping topology.Mapping
	alone   bool // one rank: nothing is exchanged

	prefill, decode bool // the step has rows of prompts, rows that decode
	local           bool // every rank computes the projections that its attention reads
	quantized       bool // what attention and the FFN give is quantized before it travels
	owned           bool // norms too: each rank keeps the residual stream of its rows alone

	leaving bool // some rows leave ahead of SwiftKV's later layers

	latent bool // latent attention
	sparse bool // the layer has experts
	later  bool // its keys and values are there already
	input  bool // it is no layer, but computes those
	last   bool // no layer follows
}

func (c conditions) schedule() []Stage {
	var stages []Stage
	switch {
	case c.input:
		stages = c.swiftKV()
	case c.mapping == topology.Reduce && !c.alone:
		stages = c.reduce()
	default:
		stages = c.gather()
	}
	if !c.alone {
		return stages
	}
	return slices.DeleteFunc(stages, func(s Stage) bool {
		_, exchange := s.(*Exchange)
		return exchange
	})
}

// gather cuts every matrix by rows and gathers what each gives.
func (c conditions) gather() []Stage {
	return list(
		either(c.owned, OpNormOwnedAttention, OpNormAttention),
		exchangeNorm.when(c.owned),
		either(c.latent, OpProjectLatents, OpProjectQKV),
		exchangeLatents.when(c.latent),
		OpProjectHeads.when(c.latent),
		either(c.latent, exchangeQueries, either(c.later, exchangeQ, exchangeQKV)).when(!c.local),
		either(c.latent, OpAttendLatents, OpAttend),
		exchangeMeans.when(c.latent && !c.local),
		OpProjectValues.when(c.latent),
		exchangeAttention,
		OpProjectOut,
		either(c.owned, exchangeOutRows, exchangeOut),

		either(c.owned, OpAddNormOwnedFFN, OpAddNormFFN),
		exchangeNorm.when(c.owned),
		either(c.sparse, OpExpertsUp, OpGateUp),
		either(c.sparse, exchangeExperts, exchangeFFN),
		either(c.sparse, OpExpertsDown, OpProjectDown),
		either(c.owned, exchangeDownRows, exchangeDown),
		either(c.owned, OpAddOwnedFFN, OpAddFFN),
		exchangeResidual.when(c.owned && c.last), // for the head
	)
}

// reduce has attention's matrices whole on every rank, which projects its own rows, and
// sums the FFN's units. A rank's decode rows are read by it alone until exchangeResidual
// or exchangeNorm gives them to all: so their sum goes to their owner alone, but for the
// last layer's, which all ranks read. One sequence over n ranks then takes n-1 messages
// where the all-reduce takes n(n-1).
func (c conditions) reduce() []Stage {
	var (
		apart   = c.owned && c.prefill             // rows stay with their owners for the whole step
		gives   = !c.owned || c.last && !c.prefill // owners give the residual stream to all before the FFN
		scatter = apart && c.decode || !c.prefill && !c.last
		toAll   = !apart && (c.prefill || c.last)
	)
	return list(
		either(c.owned, OpNormOwnedAttention, OpNormAttention),
		exchangeNorm.when(apart),
		either(c.latent, OpProjectOwnLatents, OpProjectOwnQKV),
		exchangeLatentRows.when(c.latent && c.prefill),
		OpProjectHeads.when(c.latent),
		either(c.latent, OpAttendLatents, OpAttend),
		OpProjectValues.when(c.latent),
		exchangeHeads.when(c.prefill),
		OpProjectOwnOut,
		OpAddOwnedAttention.when(gives),
		exchangeResidual.when(gives),

		either(gives, either(c.owned, OpNormAllFFN, OpNormFFN), OpAddNormOwnedFFN),
		exchangeNorm.when(!gives),
		either(c.sparse, OpExpertsUp, OpGateUp),
		exchangeExperts.when(c.sparse),
		OpExpertsDown.when(c.sparse),
		exchangeDown.when(c.sparse),
		OpProjectUnits.when(!c.sparse),
		scatterDown.when(!c.sparse && scatter),
		scatterPrompt.when(!c.sparse && apart),
		reduceDown.when(!c.sparse && toAll),
		either(c.sparse || toAll, OpAddFFN, OpAddOwnedFFN),
		exchangeResidual.when(apart && c.last), // for the head
	)
}

// kinds is how many there are, but for Caches.
const kinds = 8

// scheduleOf is the schedule of this step for a layer of a kind, the last one or not.
func (b *Batch) scheduleOf(k Kind, last bool) *Schedule {
	of := &b.lists[index(k.Sparse)|2*index(k.Later)|4*index(k.Input)][index(last)]
	if *of == nil {
		c := b.step
		c.sparse, c.later, c.input, c.last = k.Sparse, k.Later, k.Input, last
		switch {
		case c.input:
			c.local = b.projectionsLocal(1, 2)
			b.caches = k.Caches
		case c.later:
			c.local = b.projectionsLocal(0)
		}
		*of = b.schedules[c]
		if *of == nil {
			*of = scheduled(c.schedule())
			b.schedules[c] = *of
		}
	}
	return *of
}

func index(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// classify notes what of the step decides its schedules.
func (b *Batch) classify() {
	c := conditions{mapping: b.Place.Mapping, alone: b.alone(), prefill: b.HasPrefill(), decode: b.decode > 0, latent: b.Dims.Latent.Rank > 0}
	c.local, c.leaving = b.projectionsLocal(0, 1, 2), b.leaving()
	c.quantized, c.owned = b.quantizable()
	if b.step != c {
		b.step, b.lists = c, [kinds][2]*Schedule{}
	}
}

// alone reports whether one rank has everything, so that nothing is exchanged.
func (b *Batch) alone() bool { return len(b.Place.Slices) == 1 }

// untilLeaving is the work of layers, of a model that is alone, up to the pass after which rows
// leave. The last of layers is the model's last.
func (b *Batch) untilLeaving(layers []Layer) []LayerRun {
	b.runs = b.runs[:0]
	for i, l := range layers {
		k := l.Kind()
		b.runs = append(b.runs, LayerRun{l, b.scheduleOf(k, i+1 == len(layers)).runs[0]})
		if k.Input {
			break
		}
	}
	return b.runs
}

// Through carries the batch through layers of a model that is alone; all rows stay.
func (b *Batch) Through(layers ...Layer) {
	b.runs = b.runs[:0]
	for _, l := range layers {
		b.runs = append(b.runs, LayerRun{l, b.scheduleOf(l.Kind(), false).runs[0]})
	}
	b.Backend.Run(b.runs, nil)
}
