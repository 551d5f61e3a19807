package forecast

import (
	"github.com/shoal-llm/shoal/topology"
)

// stage is computation of the busiest rank, and the exchange after it.
type stage struct {
	products []product // one after another
	decode   attention
	prompt   float64 // pairs of a prompt row and a slot that attention computes
	norms    float64 // rows whose norm and residual sum are computed
	width    int     // elements of such a row
	samples  float64 // rows whose token is drawn from all logits
	regions  int     // parallel regions
	exchange
}

// product is a matrix product, or several of the same activations that threads share as one. ranks is the
// number of ranks that compute it at the same time; 0: all.
type product struct {
	weights, rows float64
	columns       int
	ranks         int
}

// attention is that of decode rows: each reads slots slots with each of heads heads.
type attention struct{ rows, heads, slots float64 }

// pattern is the set of messages of an exchange: from which ranks to which.
type pattern uint8

const (
	none           pattern = iota
	allToAll               // every rank sends to every other rank
	fromOwner              // every owner of rows sends the same to every other rank
	fromOwnerParts         // every owner of rows sends to every other rank a part of its own
	toOwner                // every rank sends to every owner
)

// exchange is one synchronization.
type exchange struct {
	pattern pattern
	bytes   float64 // of one message
	senders int     // ranks that have a part, for allToAll and toOwner; 0: all
	sums    float64 // additions of floats that a receiver makes
}

// parted returns an exchange of rows of which each rank has some columns. Columns are cut into whole panels,
// so with many ranks some have none.
func parted(p pattern, bytes float64, columns, ranks int) exchange {
	senders := min(ranks, (columns+panel-1)/panel)
	return exchange{pattern: p, bytes: bytes / float64(senders), senders: senders}
}

// load is a step: rows of decode, or a chunk of one prompt.
type load struct {
	rows    int
	context int // slots that each row reads, on average
	prompt  bool
	sampled bool // tokens are drawn from all logits
	ranks   int
}

// quantizedRows is the number of prompt rows from which activations cross the wire quantized.
const quantizedRows = 32

// float returns the size of one number on the wire; an int8 block has 40 bytes for 32 numbers.
func (w *Work) float(quantized bool) float64 {
	if w.Quantized && quantized {
		return 40.0 / 32
	}
	return 4
}

// owned returns the number of rows that the busiest owner has.
func (l *load) owned() int { return (l.rows + l.ranks - 1) / l.ranks }

// owners returns the number of ranks that own rows.
func (l *load) owners() int { return min(l.rows, l.ranks) }

// attend returns the attention of the busiest owner, or of a chunk's heads, which are divided among all ranks.
func (w *Work) attend(l load) stage {
	slots := w.slots(l.context) / float64(w.layers)
	if l.prompt {
		return stage{prompt: float64(l.rows) * slots * share(w.heads, l.ranks), regions: 3}
	}
	s := stage{decode: attention{float64(l.owned()), float64(w.kvHeads), slots}, regions: 1}
	if slots > splitSlots {
		s.regions = 3
	}
	return s
}

// splitSlots is the number of slots from which threads share the rows of a head: two more regions.
const splitSlots = 1024

// stages returns the stages of one layer.
func (w *Work) stages(g *group, l load) []stage {
	att := float64(g.attention)
	attend := w.attend(l)
	if w.Mapping == topology.Reduce && l.ranks > 1 {
		return w.reduce(g, l, attend, att)
	}
	rows, own, n := float64(l.rows), float64(l.owned()), float64(l.ranks)
	big := l.prompt && l.rows >= quantizedRows
	var out []stage
	if w.latent.down > 0 {
		out = w.latentStages(l, attend, att)
	} else {
		out = w.headStages(l, attend, att)
	}
	up, down := w.ffn(g, l, false)
	up.exchange = parted(allToAll, rows*w.width(g)*w.float(g.experts == 0), g.inner(), l.ranks)
	down.exchange = parted(allToAll, rows*float64(w.hidden)*4, w.hidden, l.ranks)
	normed := rows
	if big && w.Quantized {
		normed = own
	}
	out[0].normalize(w, normed)
	up.normalize(w, normed)
	if big && w.Quantized { // outputs go to the owner of the row, and come back quantized after the norm
		for _, s := range []*stage{&out[len(out)-1], &down} {
			s.exchange.bytes /= n
		}
		norm := exchange{pattern: fromOwner, bytes: own * float64(w.hidden) * w.float(true)}
		return append(out, stage{exchange: norm}, up, down, stage{exchange: norm})
	}
	return append(out, up, down)
}

// normalize adds the norm and the residual sum of rows.
func (s *stage) normalize(w *Work, rows float64) { s.norms, s.width = rows, w.hidden }

// headStages returns the stages of attention with heads in the gather mapping.
func (w *Work) headStages(l load, attend stage, att float64) []stage {
	n, rows, own := float64(l.ranks), float64(l.rows), float64(l.owned())
	qkv := w.heads + w.kvFloats
	total := float64(qkv + w.heads)
	project := w.product(l, att*float64(qkv)/total, share(qkv, l.ranks))
	project.exchange = parted(toOwner, own*float64(qkv)*4, qkv, l.ranks)
	attend.exchange = exchange{pattern: fromOwner, bytes: own * float64(w.heads) * w.float(true)}
	if l.prompt { // each rank gets its heads
		project.exchange = parted(allToAll, rows*float64(qkv)/n*4, qkv, l.ranks)
		attend.exchange = parted(allToAll, rows*float64(w.heads)*w.float(true), w.heads, l.ranks)
	}
	return []stage{project, attend, w.outStage(l, att*float64(w.heads)/total)}
}

// latentStages returns the stages of latent attention in the gather mapping.
func (w *Work) latentStages(l load, attend stage, att float64) []stage {
	n, rows, own := float64(l.ranks), float64(l.rows), float64(l.owned())
	down := float64(w.hidden * w.latent.down)
	values := float64(w.heads * w.latent.rank)
	out := float64(w.hidden * w.heads)
	latents := w.product(l, down, share(w.latent.down, l.ranks))
	latents.exchange = parted(allToAll, rows*float64(w.latent.down)*4, w.latent.down, l.ranks)
	queries := w.product(l, att-down-values-out, share(w.latent.queries, l.ranks))
	queries.exchange = parted(toOwner, own*float64(w.latent.queries)*4, w.latent.queries, l.ranks)
	attend.exchange = exchange{pattern: fromOwnerParts, bytes: own * float64(w.latent.means) / n * 4}
	if l.prompt {
		queries.exchange = parted(allToAll, rows*float64(w.latent.queries)/n*4, w.latent.queries, l.ranks)
		attend.exchange = parted(allToAll, rows*float64(w.latent.means)/n*4, w.latent.means, l.ranks)
	}
	project := w.product(l, values, share(w.heads, l.ranks))
	project.exchange = parted(allToAll, rows*float64(w.heads)*w.float(true), w.heads, l.ranks)
	return []stage{latents, queries, attend, project, w.outStage(l, out)}
}

// outStage returns the output projection of the gather mapping.
func (w *Work) outStage(l load, weights float64) stage {
	out := w.product(l, weights, share(w.hidden, l.ranks))
	out.exchange = parted(allToAll, float64(l.rows)*float64(w.hidden)*4, w.hidden, l.ranks)
	return out
}

// product returns a matrix product of all rows, of which the busiest rank has a part of the weights.
func (w *Work) product(l load, weights, part float64) stage {
	return stage{products: []product{{weights * part, float64(l.rows), w.hidden, 0}}, regions: 1}
}

// reduce returns the stages of the reduce mapping: owners project their rows with whole matrices.
func (w *Work) reduce(g *group, l load, attend stage, att float64) []stage {
	own, rows := float64(l.owned()), float64(l.rows)
	// the last layer sends the residual stream
	norm := exchange{pattern: fromOwner, bytes: own * float64(w.hidden) * w.float(!g.last || l.prompt)}
	qkv := att * float64(w.heads+w.kvFloats) / float64(2*w.heads+w.kvFloats)
	ask, answer := product{qkv, own, w.hidden, l.owners()}, product{att - qkv, own, w.heads, l.owners()}
	up, down := w.ffn(g, l, true)
	owned := w.Quantized && l.prompt && l.rows >= quantizedRows // each rank has its own rows of the residual stream
	var out []stage
	if l.prompt { // each rank projects all rows for its heads, and whole rows of its own
		ask.weights, ask.rows = qkv*share(w.heads, l.ranks), rows
		before := stage{}
		if owned {
			before.exchange = norm
		}
		attend.products, attend.regions = []product{ask}, attend.regions+1
		attend.exchange = exchange{pattern: allToAll, bytes: own * float64(w.heads) / float64(l.ranks) * w.float(owned)}
		attend.normalize(w, own)
		project := stage{products: []product{answer}, regions: 1, exchange: norm}
		project.normalize(w, own)
		out = append(out, before, attend, project)
	} else {
		attend.products, attend.regions = []product{ask, answer}, attend.regions+2
		attend.normalize(w, 2*own)
		attend.exchange = norm
		out = append(out, attend)
	}
	if g.experts > 0 {
		up.exchange = parted(allToAll, float64(l.rows)*w.width(g)*4, g.inner(), l.ranks)
		down.exchange = parted(allToAll, float64(l.rows)*float64(w.hidden)*4, w.hidden, l.ranks)
		return append(out, up, down)
	}
	up.products, up.regions = append(up.products, down.products...), up.regions+down.regions
	nodes, senders := treeNodes(g.ffn, l.ranks), min(l.ranks, units(g.ffn))
	up.exchange = exchange{pattern: toOwner, bytes: own * float64(w.hidden*nodes) * 4, senders: senders}
	if g.last && !l.prompt { // the head of every rank reads all rows
		own, up.pattern = rows, allToAll
		up.bytes = rows * float64(w.hidden*nodes) * 4
	}
	up.sums = own * float64(w.hidden*(nodes*senders-1))
	if l.prompt && !owned { // all ranks read all rows
		return append(out, up, stage{exchange: exchange{pattern: fromOwner, bytes: own * float64(w.hidden) * 4}})
	}
	return append(out, up)
}

// width returns the number of floats of a row between the halves of the FFN.
func (w *Work) width(g *group) float64 { return float64(g.ffn + g.perToken*g.expert) }

// ffn returns the computation of both halves of the FFN.
func (w *Work) ffn(g *group, l load, byUnits bool) (up, down stage) {
	h, rows := float64(w.hidden), float64(l.rows)
	cut := share(w.hidden, l.ranks)
	if byUnits && g.experts == 0 {
		cut = unitShare(g.ffn, l.ranks)
	}
	add := func(width int, used, reads float64) { // matrices of which each row uses some
		if width == 0 {
			return
		}
		part := share(width, l.ranks)
		if byUnits && g.experts == 0 {
			part = cut
		}
		weights, each := h*float64(width)*reads, rows*used/reads
		up.products = append(up.products, product{2 * weights * part, each, w.hidden, 0})
		down.products = append(down.products, product{weights * cut, each, int(float64(width) * cut), 0})
		up.regions, down.regions = up.regions+1, down.regions+1
	}
	add(g.ffn, 1, 1)
	if g.experts > 0 {
		add(g.expert, float64(g.perToken), float64(g.experts)*g.touched(l.rows))
	}
	return up, down
}

// head returns the product with the vocabulary and the exchange of the best token, or of all logits.
func (w *Work) head(l load) stage {
	s := w.product(l, float64(w.vocab)*float64(w.hidden), share(w.vocab, l.ranks))
	s.exchange = exchange{pattern: toOwner, bytes: 16 * max(1, float64(l.rows)/float64(l.ranks))}
	s.normalize(w, float64(l.rows))
	if l.sampled {
		s.samples = float64(l.owned())
		s.exchange.bytes = 4 * s.samples * float64(w.vocab) / float64(l.ranks)
	}
	return s
}

// handOver returns the exchange in which the owner of a prompt gets rows. Latent rows are on all ranks.
func (w *Work) handOver(tokens, ranks int) stage {
	if w.latent.down > 0 {
		return stage{}
	}
	return stage{exchange: exchange{pattern: toOwner, bytes: float64(tokens) * w.slotBytes / float64(ranks)}}
}
