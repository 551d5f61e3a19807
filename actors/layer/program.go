package layer

import "shoal/topology"

// Phase is one leg of a layer's walk: compute phases run on the socket's
// executor, exchange phases are collectives. No phase blocks the actor.
type Phase uint8

const (
	// NormAttention: RMSNorm of the own rows, rounded (rounded.go).
	NormAttention Phase = iota
	// ExchangeNorm: all-gather of normed, rounded rows (rounded.go).
	ExchangeNorm
	// ProjectQKV: RMSNorm, then the query, key and value projections.
	ProjectQKV
	// ExchangeLatent: all-gather of latents (latent attention).
	ExchangeLatent
	// ProjectHeads: queries of heads from their latents, absorbed (latent attention).
	ProjectHeads
	// ExchangeQKV: all-to-all, each owner of attention work gets its q,k,v.
	ExchangeQKV
	// Attend: RoPE, cache write, attention over the cache.
	Attend
	// ExchangeValues: all-to-all, the ranks of heads get their means of latents (latent attention).
	ExchangeValues
	// ProjectValues: values of heads (latent attention).
	ProjectValues
	// ExchangeAttention: attention outputs go to whoever projects them.
	ExchangeAttention
	// ProjectOut: output projection (and, with Reduce, the residual of own rows).
	ProjectOut
	// ExchangeOut: all-gather of output rows (Gather) or of whole token rows (Reduce).
	ExchangeOut
	// ExchangeOutRows: all-to-all, the ranks of rows get their output projections (rounded.go).
	ExchangeOutRows
	// NormFFN: the residual of attention and RMSNorm of the own rows, rounded (rounded.go).
	NormFFN
	// NormRows: RMSNorm of all rows, rounded (rounded.go).
	NormRows
	// FeedForward: RMSNorm, gate, up, SiLU.mul; with Reduce also down by units.
	FeedForward
	// ExchangeFFN: all-gather of activations (Gather).
	ExchangeFFN
	// ExchangeExperts: all-gather of experts' activations (a layer with experts).
	ExchangeExperts
	// ProjectDown: down projection by rows (Gather, and experts).
	ProjectDown
	// ExchangeDown: all-gather of rows (Gather, and experts).
	ExchangeDown
	// ExchangeDownRows: all-to-all, the ranks of rows get their down projections (rounded.go).
	ExchangeDownRows
	// ReduceDown: all-reduce over units (Reduce).
	ReduceDown
	// ScatterDown: reduce-scatter over units, to the owners of decode rows (Reduce).
	ScatterDown
	// ScatterPrompt: reduce-scatter over units, to the ranks of prompt rows (rounded.go).
	ScatterPrompt
	// Finish: the residual of the FFN, of the rows that have its sum.
	Finish
	// ExchangeLast: all-gather of the rows of the residual stream, for the head (rounded.go).
	ExchangeLast

	phases
)

var phaseNames = [...]string{"norm-attention", "exchange-norm", "project-qkv", "exchange-latent", "project-heads", "exchange-qkv", "attend", "exchange-values", "project-values",
	"exchange-attention", "project-out", "exchange-out", "exchange-out-rows", "norm-ffn", "norm-rows", "feed-forward", "exchange-ffn", "exchange-experts", "project-down", "exchange-down", "exchange-down-rows", "reduce-down", "scatter-down", "scatter-prompt", "finish", "exchange-last"}

func (p Phase) String() string { return phaseNames[p] }

// Exchange reports whether the phase is a collective.
func (p Phase) Exchange() bool {
	switch p {
	case ExchangeNorm, ExchangeLatent, ExchangeQKV, ExchangeValues, ExchangeAttention, ExchangeOut, ExchangeOutRows, ExchangeFFN, ExchangeExperts,
		ExchangeDown, ExchangeDownRows, ReduceDown, ScatterDown, ScatterPrompt, ExchangeLast:
		return true
	}
	return false
}

// Program lists the phases of one layer for one step: a pure function of what
// every rank knows, so all ranks run the same collectives in the same order.
// qkvLocal says that every rank computes exactly the projection rows its own
// attention work needs, so that ExchangeQKV would move nothing; sparse, that the
// layer has experts; last, that no layer follows.
//
// With Reduce, a decode row is read by its owner alone until the next ExchangeOut,
// which brings it to all: so its sum goes to the owner alone, but for the last
// layer's, which all ranks read. One sequence over n ranks then takes n-1 messages
// where the all-reduce takes n(n-1).
func Program(m topology.Mapping, ranks int, prefill, qkvLocal, sparse, last bool) []Phase {
	var p []Phase
	switch {
	case ranks == 1:
		return []Phase{ProjectQKV, Attend, ProjectOut, FeedForward, ProjectDown, Finish}
	case m == topology.Reduce && prefill:
		p = []Phase{ProjectQKV, Attend, ExchangeAttention, ProjectOut, ExchangeOut}
	case m == topology.Reduce:
		p = []Phase{ProjectQKV, Attend, ProjectOut, ExchangeOut}
	case qkvLocal:
		p = []Phase{ProjectQKV, Attend, ExchangeAttention, ProjectOut, ExchangeOut}
	default:
		p = []Phase{ProjectQKV, ExchangeQKV, Attend, ExchangeAttention, ProjectOut, ExchangeOut}
	}
	switch {
	case sparse:
		return append(p, FeedForward, ExchangeExperts, ProjectDown, ExchangeDown, Finish)
	case m == topology.Reduce && !prefill && !last:
		return append(p, FeedForward, ScatterDown, Finish)
	case m == topology.Reduce:
		return append(p, FeedForward, ReduceDown, Finish)
	}
	return append(p, FeedForward, ExchangeFFN, ProjectDown, ExchangeDown, Finish)
}
