package layer

import (
	"cmp"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/topology"
)

// A schedule lists the stages of one layer for one step. It is a pure function of the plan and the
// placement, which are the same on all ranks. So all ranks run the same collectives in the same order.
// The two mappings (SnapStream, arXiv 2511.03092, section 4, figure 7) are two lists. Variations by
// model, type of the weights and step are conditions in these lists.

// conditions decide which stages a schedule has.
type conditions struct {
	mapping topology.Mapping
	alone   bool // a single rank: no exchanges

	prefill, decode bool // the step has prompt rows, decode rows
	local           bool // every rank computes the projections that its attention reads
	quantized       bool // the outputs of attention and FFN are quantized before their exchange
	owned           bool // norms are quantized too, and each rank has only its own rows of the residual stream

	adapted   bool // some rows have adapters
	dropsRows bool // prompt rows are dropped before the later layers

	latent      bool // latent attention
	allHeads    bool // queries and keys are normalised over all heads
	parallel    bool // the FFN reads attention's norm, so every rank needs every row before attention
	recurrent   bool // the gated delta rule instead of attention
	sparse      bool // the layer has experts
	dense       bool // layers with experts have a dense FFN too
	kvComputed  bool // its keys and values have been computed before
	vFromK      bool // its values follow from its keys
	swiftKVPass bool // the schedule is SwiftKV's pass
	endsPrompts bool // rows are dropped after the layer
	last        bool // the last layer
	bare        bool // the layer has no FFN
	sameNorm    bool // attention reads the norm that the layer before has read
}

func (c conditions) schedule() []Stage {
	var stages []Stage
	switch {
	case c.swiftKVPass:
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

// gather divides every matrix by rows and gathers each product.
func (c conditions) gather() []Stage {
	columns := either(c.kvComputed, exchangeQ, either(c.vFromK, exchangeQK, exchangeQKV))
	mix := list(
		either(c.owned, OpNormOwnedAttention, OpNormAttention).when(!c.sameNorm),
		exchangeNorm.when(c.owned && !c.sameNorm),
		either(c.latent, OpProjectLatents, either(c.recurrent, OpProjectDelta, OpProjectQKV)),
		exchangeLatents.when(c.latent),
		OpProjectHeads.when(c.latent),
		either(c.latent, exchangeQueries, either(c.recurrent, exchangeDelta, columns)).when(!c.local),
		OpSumSquares.when(c.allHeads),
		exchangeSquares.when(c.allHeads && c.prefill),
		either(c.latent, OpAttendLatents, either(c.recurrent, OpDelta, OpAttend)),
		exchangeMeans.when(c.latent && !c.local),
		OpProjectValues.when(c.latent),
		either(c.recurrent, exchangeDeltaOut, exchangeAttention),
		either(c.recurrent, OpProjectDeltaOut, OpProjectOut),
		either(c.owned, exchangeOutRows, exchangeOut),
	)
	if c.bare {
		return append(mix, list(either(c.owned, OpAddOwnedAttention, OpAddAttention), exchangeResidual.when(c.owned && c.last))...)
	}
	return append(mix, list(
		either(c.owned, OpAddNormOwnedFFN, OpAddNormFFN),
		exchangeNorm.when(c.owned),
		either(c.sparse, OpExpertsUp, OpGateUp),
		either(c.sparse, exchangeExperts, exchangeFFN),
		either(c.sparse, OpExpertsDown, OpProjectDown),
		either(c.owned, exchangeDownRows, either(c.sparse && c.dense, exchangeBoth, exchangeDown)),
		either(c.owned, OpAddOwnedFFN, OpAddFFN),
		exchangeKeptRows.when(c.owned && c.endsPrompts && c.dropsRows),
		exchangeResidual.when(c.owned && c.last), // the head reads all rows
	)...)
}

// reduce has whole attention matrices on every rank, which projects its own rows; it sums the FFN's
// units. Only the owner reads a decode row until exchangeResidual or exchangeNorm sends it to all
// ranks. So the row's sum goes to its owner only, except in the last layer, whose output all ranks
// read. One sequence over n ranks then takes n-1 messages instead of the n(n-1) of an all-reduce.
func (c conditions) reduce() []Stage {
	var (
		apart   = c.owned && c.prefill             // owners keep their rows for the whole step
		gives   = !c.owned || c.last && !c.prefill // owners send the residual stream to all ranks before the FFN
		scatter = apart && c.decode || !c.prefill && !c.last && !c.parallel
		toAll   = !apart && (c.prefill || c.last || c.parallel)
	)
	mix := list(
		either(c.owned, OpNormOwnedAttention, OpNormAttention).when(!c.sameNorm),
		exchangeNorm.when(apart && !c.sameNorm),
		either(c.latent, OpProjectOwnLatents, either(c.recurrent, OpProjectOwnDelta, OpProjectOwnQKV)),
		exchangeLatentRows.when(c.latent && c.prefill),
		OpProjectHeads.when(c.latent),
		OpSumSquares.when(c.allHeads),
		exchangeSquares.when(c.allHeads && c.prefill),
		either(c.latent, OpAttendLatents, either(c.recurrent, OpDelta, OpAttend)),
		OpProjectValues.when(c.latent),
		either(c.recurrent, exchangeDeltaHeads, exchangeHeads).when(c.prefill),
		either(c.recurrent, OpProjectOwnDeltaOut, OpProjectOwnOut),
	)
	if c.bare { // the next layer's attention reads a rank's own decode rows and all prompt rows
		return append(mix, list(OpAddOwnedAttention, exchangeResidual.when(c.last || c.prefill && !c.owned))...)
	}
	return append(mix, list(
		OpAddOwnedAttention.when(gives),
		exchangeResidual.when(gives),

		either(gives, either(c.owned, OpNormAllFFN, OpNormFFN), OpAddNormOwnedFFN),
		exchangeNorm.when(!gives),
		either(c.sparse, OpExpertsUp, OpGateUp),
		exchangeExperts.when(c.sparse),
		OpExpertsDown.when(c.sparse),
		either(c.dense, exchangeBoth, exchangeDown).when(c.sparse),
		OpProjectUnits.when(!c.sparse),
		scatterDown.when(!c.sparse && scatter),
		scatterPrompt.when(!c.sparse && apart),
		reduceDown.when(!c.sparse && toAll),
		reduceAdapted.when(!c.sparse && c.adapted),
		either(toAll, OpAdaptDown, OpAdaptOwnedDown).when(!c.sparse && c.adapted),
		either(c.sparse || toAll, OpAddFFN, OpAddOwnedFFN),
		exchangeKeptRows.when(apart && c.endsPrompts && c.dropsRows),
		exchangeResidual.when(apart && c.last), // the head reads all rows
	)...)
}

// kinds is the number of combinations of Kind's booleans, and number that of one.
const kinds = 256

func (k *Kind) number() int {
	return index(k.Sparse) | 2*index(k.KVComputed) | 4*index(k.SwiftKVPass) | 8*index(k.VFromK) |
		16*index(k.Recurrent) | 32*index(k.EndsPrompts) | 64*index(k.Bare) | 128*index(k.SameNorm)
}

// scheduleOf returns this step's schedule of a layer of kind k, which may be the last. Whether a kind is
// local depends on its widths and on the owners of the step's sequences.
func (b *Batch) scheduleOf(k Kind, last bool) *Schedule {
	b.enter(k.Widths)
	of := &b.lists[k.Widths][k.number()][index(last)]
	if *of == nil {
		c := b.step
		c.sparse, c.kvComputed, c.swiftKVPass, c.vFromK = k.Sparse, k.KVComputed, k.SwiftKVPass, k.VFromK
		c.recurrent, c.endsPrompts, c.bare, c.sameNorm, c.last = k.Recurrent, k.EndsPrompts, k.Bare, k.SameNorm, last
		switch {
		case c.recurrent:
			c.local = b.deltaLocal()
		case c.swiftKVPass:
			c.local = b.projectionsLocal(1, 2)
			b.caches = cmp.Or(b.Section.Caches.Len(), k.Caches)
		case c.kvComputed:
			c.local = b.projectionsLocal(0)
		case c.vFromK:
			c.local = b.projectionsLocal(0, 1)
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

// classify derives the conditions that decide the step's schedules.
func (b *Batch) classify() {
	c := conditions{mapping: b.Place.Mapping, alone: b.alone(), prefill: b.HasPrefill(), decode: b.decode > 0}
	c.latent, c.dense = b.Dims.Latent.Rank > 0, b.Dims.MoE.DenseFFN
	c.allHeads, c.parallel = b.Dims.QKNormOf == model.OfProjection, b.Dims.Parallel
	c.local, c.dropsRows = b.projectionsLocal(0, 1, 2, 3), b.dropsRows()
	c.adapted = len(b.adapted) > 0
	c.quantized, c.owned = b.quantizable()
	b.step = c
	clear(b.lists)
}

// alone reports whether a single rank has the whole model, so that there are no exchanges.
func (b *Batch) alone() bool { return len(b.Place.Slices) == 1 }

// untilRowsDrop returns the work of the given layers on a single rank, up to the one after which rows
// drop. The last of layers must be the model's last.
func (b *Batch) untilRowsDrop(layers []Layer) []LayerRun {
	b.runs = b.runs[:0]
	for i, l := range layers {
		k := l.Kind()
		b.runs = append(b.runs, LayerRun{l, b.scheduleOf(k, i+1 == len(layers)).runs[0]})
		if b.dropAfter(k) {
			break
		}
	}
	return b.runs
}

// Through runs the batch through layers on a single rank, without dropping rows.
func (b *Batch) Through(layers ...Layer) {
	b.runs = b.runs[:0]
	for _, l := range layers {
		b.runs = append(b.runs, LayerRun{l, b.scheduleOf(l.Kind(), false).runs[0]})
	}
	b.Backend.Run(b.runs, nil)
}
