package layer

import "github.com/shoal-llm/shoal/topology"

// operations maps each operation to the processor's implementation.
var operations = [Ops]func(w *Weights, b *Processor){
	OpNormAttention:      func(w *Weights, b *Processor) { b.norm(w.AttnNorm) },
	OpNormOwnedAttention: func(w *Weights, b *Processor) { b.normQuantized(w.AttnNorm, b.batch.owned(b.batch.Rank)) },
	OpProjectQKV:         (*Weights).projectQKV,
	OpProjectOwnQKV:      (*Weights).projectOwnQKV,
	OpSumSquares:         func(_ *Weights, b *Processor) { b.sumSquares() },
	OpAttend:             func(w *Weights, b *Processor) { w.attend(w.Index, b) },
	OpProjectOut:         (*Weights).projectOut,
	OpProjectOwnOut:      (*Weights).projectOwnOut,
	OpAddAttention:       func(w *Weights, b *Processor) { b.addResidual(w.PostAttnNorm, w.MixFactor, b.batch.all()) },
	OpAddOwnedAttention:  (*Weights).addOwned,

	OpNormFFN:         (*Weights).normFFN,
	OpNormAllFFN:      func(w *Weights, b *Processor) { b.normQuantized(w.FFNNorm, [2]topology.Range{b.batch.all()}) },
	OpAddNormFFN:      func(w *Weights, b *Processor) { b.addNorm(w, b.batch.all(), b.addNormRow) },
	OpAddNormOwnedFFN: func(w *Weights, b *Processor) { b.addNormOwned(w) },
	OpGateUp:          (*Weights).gateUp,
	OpProjectDown:     (*Weights).projectDown,
	OpProjectUnits:    (*Weights).projectUnits,
	OpAdaptDown:       func(_ *Weights, b *Processor) { b.adaptDown(b.batch.all()) },
	OpAdaptOwnedDown:  func(_ *Weights, b *Processor) { r := b.batch.owned(b.batch.Rank); b.adaptDown(r[:]...) },
	OpAddFFN:          func(w *Weights, b *Processor) { w.addFFN(b, b.batch.all()) },
	OpAddOwnedFFN:     (*Weights).addOwnedFFN,

	OpExpertsUp:   func(w *Weights, b *Processor) { b.batch.ExpertsRead += b.experts.Up(w.Experts, b.batch.expertStep()) },
	OpExpertsDown: func(w *Weights, b *Processor) { b.experts.Down(w.Experts, b.batch.expertStep()) },

	OpProjectLatents:    func(w *Weights, b *Processor) { w.Latent.projectDown(b) },
	OpProjectOwnLatents: func(w *Weights, b *Processor) { w.Latent.projectOwnDown(b) },
	OpProjectHeads:      func(w *Weights, b *Processor) { w.Latent.projectHeads(b) },
	OpAttendLatents:     func(w *Weights, b *Processor) { w.Latent.attend(w.Index, b) },
	OpProjectValues:     func(w *Weights, b *Processor) { w.Latent.projectValues(b) },

	OpProjectDelta:       func(w *Weights, b *Processor) { w.Delta.project(b) },
	OpProjectOwnDelta:    func(w *Weights, b *Processor) { w.Delta.projectOwn(b) },
	OpDelta:              func(w *Weights, b *Processor) { w.Delta.run(w.Index, b) },
	OpProjectDeltaOut:    (*Weights).projectDeltaOut,
	OpProjectOwnDeltaOut: (*Weights).projectOwnDeltaOut,

	OpNormInput:      func(w *Weights, b *Processor) { b.norm(w.SwiftKV.Norm) },
	OpNormOwnedInput: func(w *Weights, b *Processor) { b.normQuantized(w.SwiftKV.Norm, b.batch.owned(b.batch.Rank)) },
	OpProjectKV:      (*Weights).projectKV,
	OpProjectOwnKV:   (*Weights).projectOwnKV,
	OpPutKV:          func(w *Weights, b *Processor) { b.attention.putKV(w.SwiftKV) },
}
