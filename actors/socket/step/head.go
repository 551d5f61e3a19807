package step

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/constraint"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// wanted is a row of the step whose logits are requested.
type wanted struct {
	row      int
	seq      *caches.Sequence
	position int   // true position of the token that the logits predict
	sample   bool  // sample a token
	score    int32 // without sample: report the log-probability of this prompt token
	top      int   // also report the log-probabilities of this number of best tokens
	token    int32 // token of the row, which enters the history before its successor is sampled; or none
	draft    bool  // the token is a draft of the token that the previous row samples
}

// greedy reports whether only the largest logit is needed.
func (w wanted) greedy() bool { return w.sample && w.seq.Params.Greedy() }

// head turns final hidden states into tokens. The vocabulary is divided over the sockets. Each
// sends its logits, or for greedy rows only its best one, to the sequence's owner, which samples.
type head struct {
	ends layer.Held
	pool *tensor.Pool // runs sampling tasks

	rows []layer.LogitRow
	rankBuffers
	at    []int // (rows, ranks): offset of each row's part in recv
	drawn []sampler.Result
	runs  []int     // first row of each task
	draw  sync.Pool // of *sampler.Scratch, one per thread
}

// errWrongDraft marks a row after a draft token that differs from the sampled token. There is
// nothing to sample from it.
var errWrongDraft = errors.New("socket: the row follows a wrong draft")

// bestBytes is the wire size of a greedy row: logit and index.
const bestBytes = 8

func (h *head) compute(b *layer.Batch, rows []wanted) {
	h.rows = h.rows[:0]
	for _, w := range rows {
		h.rows = append(h.rows, layer.LogitRow{Row: w.row, Whole: !w.greedy()})
	}
	b.Backend.Logits(h.ends, h.rows)
}

// exchange sends this rank's part of every row to the owner of the row.
func (h *head) exchange(b *layer.Batch, rows []wanted, g Group, done func(error)) {
	h.reset(len(b.Place.Slices), func(r int) (bytes int) {
		for _, w := range rows {
			if w.seq.Owner == b.Rank && r != b.Rank {
				bytes += partBytes(w, b.Place.Slices[r].Vocab)
			}
		}
		return bytes
	})
	me := b.Place.Slices[b.Rank].Vocab
	for i, w := range rows {
		if r := w.seq.Owner; r != b.Rank {
			h.send[r] = h.appendPart(h.send[r], i, w, me)
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
	r := &h.rows[i]
	if w.greedy() {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(r.Logit))
		return binary.LittleEndian.AppendUint32(out, uint32(vocab.Lo+r.Best))
	}
	for _, v := range r.Logits[vocab.Lo:vocab.Hi] {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// finish samples the rows that this rank owns, several in parallel: a row of a large vocabulary takes
// up to a millisecond.
func (h *head) finish(b *layer.Batch, rows []wanted, reply *results) error {
	n := len(b.Place.Slices)
	h.at, h.drawn = append(h.at[:0], make([]int, n)...), append(h.drawn[:0], make([]sampler.Result, len(rows))...)
	for i, w := range rows {
		h.at = append(h.at, h.at[i*n:]...)
		for r, s := range b.Place.Slices {
			if r != b.Rank && w.seq.Owner == b.Rank {
				h.at[(i+1)*n+r] += partBytes(w, s.Vocab)
			}
		}
	}
	h.runs = h.runs[:0]
	for i, w := range rows {
		if i == 0 || w.token == plan.None || w.seq != rows[i-1].seq { // the decode rows of one sequence are one task
			h.runs = append(h.runs, i)
		}
	}
	h.pool.Run(len(h.runs), func(i int) {
		end := len(rows)
		if i+1 < len(h.runs) {
			end = h.runs[i+1]
		}
		for i := h.runs[i]; i < end && rows[i].seq.Owner == b.Rank; i++ {
			w := rows[i]
			if w.draft && w.seq.Next != w.token { // a wrong draft, or a row after a wrong draft
				w.seq.Next, h.drawn[i].Err = plan.None, errWrongDraft
				continue
			}
			if w.token != plan.None {
				w.seq.Feed(w.token, w.position-1)
			}
			h.drawn[i] = h.result(b, i, w)
			if w.sample { // prompt rows without sampling are independent tasks
				h.drawn[i].Token = w.seq.Replayed(h.drawn[i].Token, w.position)
				w.seq.Next = h.drawn[i].Token
				if h.drawn[i].Err != nil {
					w.seq.Next = plan.None
				}
			}
		}
	})
	for i, w := range rows {
		switch err := h.drawn[i].Err; {
		case w.seq.Owner != b.Rank || errors.Is(err, errWrongDraft):
		case err != nil && !errors.Is(err, sampler.ErrNoCandidate) && !errors.Is(err, sampler.ErrBanned):
			return err
		case w.sample:
			reply.token(w.seq, h.drawn[i])
		default:
			reply.prompt(w, h.drawn[i])
		}
	}
	return nil
}

// result returns the token of row i, or the requested log-probabilities.
func (h *head) result(b *layer.Batch, i int, w wanted) sampler.Result {
	at := h.at[i*len(b.Place.Slices):]
	if w.greedy() {
		return h.best(b, i, at)
	}
	logits := h.rows[i].Logits
	for r, s := range b.Place.Slices {
		if r == b.Rank {
			continue
		}
		for j := range s.Vocab.Len() {
			logits[s.Vocab.Lo+j] = math.Float32frombits(binary.LittleEndian.Uint32(h.recv[r][at[r]+4*j:]))
		}
	}
	scratch, _ := h.draw.Get().(*sampler.Scratch)
	if scratch == nil {
		scratch = new(sampler.Scratch)
	}
	defer h.draw.Put(scratch)
	switch {
	case w.sample && w.seq.Grammar != nil:
		allowed, err := w.seq.Grammar.Allowed()
		switch { // errors of this sequence only; the step continues
		case errors.Is(err, constraint.ErrNoGrammars):
			return sampler.Result{Err: fmt.Errorf("%w: %w", sampler.ErrNoCandidate, err)}
		case err != nil:
			return sampler.Result{Err: fmt.Errorf("%w: %w", sampler.ErrBanned, err)}
		}
		return sampler.SampleAmong(logits, &w.seq.Params, w.position, w.seq.History, allowed, scratch)
	case w.sample:
		return sampler.Sample(logits, &w.seq.Params, w.position, w.seq.History, scratch)
	}
	return sampler.Logprobs(logits, w.score, w.top, scratch)
}

// best returns the argmax over all ranks' bests. On a tie the lowest index wins: ranks hold ascending
// rows, so a later one must be strictly greater.
func (h *head) best(b *layer.Batch, i int, at []int) sampler.Result {
	token, value := -1, float32(math.Inf(-1))
	for r, s := range b.Place.Slices {
		if s.Vocab.Len() == 0 {
			continue
		}
		var v float32
		var t int
		if r == b.Rank {
			t, v = s.Vocab.Lo+h.rows[i].Best, h.rows[i].Logit
		} else {
			v = math.Float32frombits(binary.LittleEndian.Uint32(h.recv[r][at[r]:]))
			t = int(binary.LittleEndian.Uint32(h.recv[r][at[r]+4:]))
		}
		if t < s.Vocab.Lo || t >= s.Vocab.Hi {
			return sampler.Result{Err: fmt.Errorf("socket: rank %d sent token %d, its rows are [%d,%d)", r, t, s.Vocab.Lo, s.Vocab.Hi)}
		}
		if v > value { // false for NaN
			token, value = t, v
		}
	}
	if token < 0 {
		return sampler.Result{Err: sampler.ErrNoCandidate}
	}
	return sampler.Result{Token: int32(token)}
}

// results collects the owner's results in the order of the rows.
type results struct {
	bySeq map[uint64]*proto.Sampled
	order []*proto.Sampled
}

func (r *results) of(s *caches.Sequence) *proto.Sampled {
	if r.bySeq == nil {
		r.bySeq = map[uint64]*proto.Sampled{}
	}
	p := r.bySeq[s.ID]
	if p == nil {
		p = &proto.Sampled{Seq: s.ID}
		r.bySeq[s.ID] = p
		r.order = append(r.order, p)
	}
	return p
}

// token reports the sampled token after the next row.
func (r *results) token(s *caches.Sequence, t sampler.Result) {
	p, d := r.of(s), &proto.Drawn{Banned: errors.Is(t.Err, sampler.ErrBanned)}
	if t.Err == nil { // otherwise there was nothing to sample from
		d.HasToken, d.Token, d.Logprob, d.Top = true, uint32(t.Token), t.Logprob, tops(t.Top)
	}
	p.Drawn = append(p.Drawn, d)
}

// prompt reports the log-probability of the prompt token that follows the row.
func (r *results) prompt(w wanted, t sampler.Result) {
	p := r.of(w.seq)
	p.Prompt = append(p.Prompt, &proto.PromptLogprob{Position: uint32(w.position), Logprob: t.Logprob, Top: tops(t.Top)})
}

func tops(in []sampler.TokenLogprob) []*proto.TokenLogprob {
	var out []*proto.TokenLogprob
	for _, t := range in {
		out = append(out, &proto.TokenLogprob{Token: uint32(t.Token), Logprob: t.Logprob})
	}
	return out
}
