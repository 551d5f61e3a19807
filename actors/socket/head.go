package socket

import (
	"encoding/binary"
	"math"

	"shoal/actors/layer"
	"shoal/collective"
	"shoal/proto"
	"shoal/sampler"
	"shoal/tensor"
	"shoal/topology"
)

// headRows bounds the rows whose logits are in memory at once: prompt
// log-probabilities ask for every row of a chunk, and a row of a large
// vocabulary is half a megabyte.
const headRows = 64

// wanted is one row of the step whose logits somebody wants.
type wanted struct {
	row      int
	seq      *sequence
	position int   // true position of the token that the logits predict
	sample   bool  // draw a token from them
	score    int32 // else: report the log-probability of this prompt token
	top      int   // and of the best `top`
}

// greedy reports that only the largest logit matters.
func (w wanted) greedy() bool { return w.sample && w.seq.params.Greedy() }

// head turns final hidden states into tokens: vocabulary rows cut over the
// sockets, logits (or for greedy rows only the best one) sent to the owner of
// the sequence, which samples.
type head struct {
	weights *Slices
	hidden  int
	vocab   int
	eps     float32
	// logitCap is Config.LogitCap.
	logitCap float32

	norm   []float32 // (headRows, Hidden)
	logits []float32 // (headRows, Vocab)
	send   [][]byte
	recv   [][]byte
	draw   sampler.Scratch
}

// bestBytes is the wire size of a greedy row: value and index.
const bestBytes = 8

func (h *head) compute(b *layer.Batch, rows []wanted) {
	if h.norm == nil {
		h.norm, h.logits = make([]float32, headRows*h.hidden), make([]float32, headRows*h.vocab)
	}
	for i, w := range rows {
		tensor.RMSNorm(h.norm[i*h.hidden:(i+1)*h.hidden], b.X[w.row*h.hidden:(w.row+1)*h.hidden], h.weights.FinalNorm, h.eps)
	}
	if h.weights.Head != nil {
		mine := b.Place.Slices[b.Rank].Vocab
		b.Pool.MatMul(h.logits[mine.Lo:], h.vocab, h.weights.Head, h.norm, h.hidden, len(rows))
		for i := range rows {
			if h.logitCap > 0 {
				tensor.SoftCap(h.logits[i*h.vocab+mine.Lo:i*h.vocab+mine.Hi], h.logitCap)
			}
		}
	}
}

// exchange sends this rank's part of every row to the row's owner.
func (h *head) exchange(b *layer.Batch, rows []wanted, g *collective.Group, done func(error)) {
	n := len(b.Place.Slices)
	if len(h.send) != n {
		h.send, h.recv = make([][]byte, n), make([][]byte, n)
	}
	me := b.Place.Slices[b.Rank].Vocab
	for r := range n {
		h.send[r], h.recv[r] = h.send[r][:0], h.recv[r][:0]
		if r == b.Rank {
			continue
		}
		for i, w := range rows {
			if w.seq.owner == r {
				h.send[r] = h.appendPart(h.send[r], i, w, me)
			}
			if w.seq.owner == b.Rank {
				h.recv[r] = append(h.recv[r], make([]byte, partBytes(w, b.Place.Slices[r].Vocab))...)
			}
		}
	}
	g.AllToAll(collective.OpID(b.NextOp()), h.send, h.recv, done)
}

func partBytes(w wanted, vocab topology.Range) int {
	if vocab.Len() == 0 {
		return 0
	}
	if w.greedy() {
		return bestBytes
	}
	return 4 * vocab.Len()
}

func (h *head) appendPart(out []byte, i int, w wanted, vocab topology.Range) []byte {
	if vocab.Len() == 0 {
		return out
	}
	part := h.logits[i*h.vocab+vocab.Lo : i*h.vocab+vocab.Hi]
	if w.greedy() {
		best := tensor.ArgMax(part)
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(part[best]))
		return binary.LittleEndian.AppendUint32(out, uint32(vocab.Lo+best))
	}
	for _, v := range part {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// finish samples the rows that this rank owns.
func (h *head) finish(b *layer.Batch, rows []wanted, reply *results) {
	at := make([]int, len(b.Place.Slices))
	for i, w := range rows {
		if w.seq.owner != b.Rank {
			continue
		}
		logits := h.logits[i*h.vocab : (i+1)*h.vocab]
		if w.greedy() {
			reply.token(w.seq, sampler.Result{Token: h.best(b, i, at)})
			continue
		}
		for r, s := range b.Place.Slices {
			if r == b.Rank {
				continue
			}
			for v := s.Vocab.Lo; v < s.Vocab.Hi; v++ {
				logits[v] = math.Float32frombits(binary.LittleEndian.Uint32(h.recv[r][at[r]:]))
				at[r] += 4
			}
		}
		if w.sample {
			reply.token(w.seq, sampler.Sample(logits, &w.seq.params, w.position, w.seq.history, &h.draw))
			continue
		}
		reply.prompt(w, logits, &h.draw)
	}
}

// best is the argmax over all ranks' bests, the lowest index on a tie: ranks
// hold ascending rows, so a later one must be strictly greater.
func (h *head) best(b *layer.Batch, i int, at []int) int32 {
	token, value := int32(-1), float32(0)
	for r, s := range b.Place.Slices {
		if s.Vocab.Len() == 0 {
			continue
		}
		var v float32
		var t int32
		if r == b.Rank {
			part := h.logits[i*h.vocab+s.Vocab.Lo : i*h.vocab+s.Vocab.Hi]
			best := tensor.ArgMax(part)
			v, t = part[best], int32(s.Vocab.Lo+best)
		} else {
			v = math.Float32frombits(binary.LittleEndian.Uint32(h.recv[r][at[r]:]))
			t = int32(binary.LittleEndian.Uint32(h.recv[r][at[r]+4:]))
			at[r] += bestBytes
		}
		if token < 0 || v > value || (value != value && v == v) {
			token, value = t, v
		}
	}
	return token
}

// results collects what the owner sends back, in the order of the rows.
type results struct {
	bySeq map[uint64]*proto.Sampled
	order []*proto.Sampled
}

func (r *results) of(s *sequence) *proto.Sampled {
	if r.bySeq == nil {
		r.bySeq = map[uint64]*proto.Sampled{}
	}
	p := r.bySeq[s.id]
	if p == nil {
		p = &proto.Sampled{Seq: s.id}
		r.bySeq[s.id] = p
		r.order = append(r.order, p)
	}
	return p
}

func (r *results) token(s *sequence, t sampler.Result) {
	p := r.of(s)
	p.HasToken, p.Token, p.Logprob, p.Top = true, uint32(t.Token), t.Logprob, tops(t.Top)
}

// prompt reports the log-probability of the prompt token that follows the row.
func (r *results) prompt(w wanted, logits []float32, scratch *sampler.Scratch) {
	p := r.of(w.seq)
	t := sampler.Logprobs(logits, w.score, w.top, scratch)
	p.Prompt = append(p.Prompt, &proto.PromptLogprob{Position: uint32(w.position), Logprob: t.Logprob, Top: tops(t.Top)})
}

func tops(in []sampler.TokenLogprob) []*proto.TokenLogprob {
	var out []*proto.TokenLogprob
	for _, t := range in {
		out = append(out, &proto.TokenLogprob{Token: uint32(t.Token), Logprob: t.Logprob})
	}
	return out
}
