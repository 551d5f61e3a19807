package batcher

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var geometry = kvcache.Geometry{Layers: 1, KVHeads: 4, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 8, VDim: 8}}

var block = int64(geometry.Layout.BlockBytes())

// modelToken is the fake model: a function of the request's ID and the output index. Some IDs give
// text that repeats itself.
func modelToken(id string, index int) int32 {
	if strings.HasPrefix(id, "loop") {
		index %= 19
	}
	h := fnv.New32a()
	fmt.Fprintf(h, "%s/%d", id, index)
	if strings.Contains(id, "noise") { // few words in no order
		return int32(rand.New(rand.NewPCG(uint64(h.Sum32()), 1)).IntN(12))
	}
	return int32(h.Sum32() % 1000)
}

// cluster runs plans with the real arenas and stores of package kvcache. A step that the ledger
// allows must never get ErrBudget.
type cluster struct {
	t        fataler
	epoch    uint32
	arenas   []*memory.Arena
	spans    []tensor.Span
	seqs     map[uint64]*sequence
	released map[uint64]bool // released sequences

	blocks           map[uint64][]*kvcache.Segment // blocks of the prefix cache by rank
	texts            map[uint64][]int32            // tokens of each block and all blocks before it
	warm             int                           // number of tokens that sequences began with
	summed, unsummed int                           // ranks that continued from sums, and blocks whose sums were dropped

	swept    int // prompts' groups of layers
	inFiles  int // sweeps of prompts whose residual stream is in files
	accepted int // accepted drafts
	passes   int // passes after the first of a step
	forks    int
	unequal  int // layers whose heads got unequal numbers of tokens
	takes    int // caches of sessions that the next turn took over
	spills   int // caches that moved to files
	lost     int // files that were lost
	uncopied int // copies of states that were dropped
	cut      int // output tokens that cut sequences read
}

type fataler interface{ Fatalf(string, ...any) }

type sequence struct {
	open    plan.Open
	parts   []*kvcache.Store
	seen    []*kvcache.Observation // for policies that sum attention
	stream  []*layered.Streams     // of a prompt that is read layer by layer
	from    int                    // the layer that such a prompt is at
	own     *kvcache.Store
	copy    *kvcache.Store // store on the replica's rank
	owner   int
	replica int
	held    bool // its epoch is over, and no plan has opened it since
	prompt  int  // of the request
	text    []int32
	next    int  // required position of the next row
	ordered int  // blocks that must move to a file
	indexed int  // completed pieces of its clustering
	copies  bool // it has room for a copy of its states
	copied  int  // tokens of the copy
}

func newCluster(t fataler, epoch uint32, sockets []Socket) *cluster {
	c := &cluster{t: t, epoch: epoch, seqs: map[uint64]*sequence{}, released: map[uint64]bool{},
		blocks: map[uint64][]*kvcache.Segment{}, texts: map[uint64][]int32{}}
	for _, s := range sockets {
		c.arenas = append(c.arenas, memory.NewArena(s.Budget))
		c.spans = append(c.spans, s.Heads)
	}
	return c
}

func (c *cluster) close() {
	for _, a := range c.arenas {
		a.Close()
	}
}

// inherit creates the cluster of the next epoch. Rank i is rank from[i] of c with its caches, or a new
// socket for none. All other ranks are lost.
func (c *cluster) inherit(epoch uint32, sockets []Socket, from []int) (*cluster, []Held) {
	next := newCluster(c.t, epoch, nil)
	next.spills, next.lost, next.cut = c.spills, c.lost, c.cut
	c.evict(slices.Collect(maps.Keys(c.blocks)))
	now := map[int]int{}
	for i, s := range sockets {
		a := memory.NewArena(s.Budget)
		if from[i] != none {
			a.Close()
			a = c.arenas[from[i]]
			now[from[i]] = i
		}
		next.arenas, next.spans = append(next.arenas, a), append(next.spans, s.Heads)
	}
	var held []Held
	for _, seq := range slices.Sorted(maps.Keys(c.seqs)) {
		q := c.seqs[seq]
		for rank, part := range q.parts {
			if _, lives := now[rank]; lives {
				part.Release()
				q.seen[rank].Release()
				if q.stream != nil {
					q.stream[rank].Release()
				}
			}
		}
		add := func(s *kvcache.Store, rank int, copied bool) (*kvcache.Store, int) {
			at, lives := now[rank]
			switch {
			case s == nil || !lives:
				return nil, none
			case !s.Sealed(): // its hand-over had begun
				s.Release()
				return nil, none
			}
			held = append(held,
				Held{Seq: seq, Rank: at, Prompt: s.Prompt(), Tokens: s.Tokens(), Staged: s.Staged(), Replica: copied, Spilled: s.Spilled()})
			return s, at
		}
		k := &sequence{open: q.open, prompt: q.prompt, held: true}
		k.own, k.owner = add(q.own, q.owner, false)
		k.copy, k.replica = add(q.copy, q.replica, true)
		if k.own != nil || k.copy != nil {
			next.seqs[seq] = k
		}
	}
	for rank, a := range c.arenas {
		if _, lives := now[rank]; !lives {
			a.Close()
		}
	}
	return next, held
}

// resume opens a sequence with the cache that was kept.
func (c *cluster) resume(o plan.Open, requests map[string]*Spec) {
	q := c.seqs[o.Seq]
	if q == nil || !q.held || q.open.ID != o.ID {
		c.t.Fatalf("%s: resumes sequence %d, which no socket has", o.ID, o.Seq)
	}
	store := func(rank int) *kvcache.Store {
		s := q.own
		if q.owner != rank {
			s = q.copy
			if s == nil || q.replica != rank {
				c.t.Fatalf("%s: rank %d does not hold it", o.ID, rank)
			}
		}
		n := len(o.Resume) - s.Tokens()
		if n < 0 || n > s.Staged() {
			c.t.Fatalf("%s: resumes at %d, the cache has %d and %d", o.ID, len(o.Resume), s.Tokens(), s.Staged())
		}
		s.Commit(n)
		s.States().DropCopy()
		return s
	}
	own, copied := store(o.Owner), (*kvcache.Store)(nil)
	if o.Replica != none {
		copied = store(o.Replica)
	}
	for _, s := range []*kvcache.Store{q.own, q.copy} {
		if s != nil && s != own && s != copied {
			s.Release()
		}
	}
	*q = sequence{open: o, own: own, copy: copied, owner: o.Owner, replica: o.Replica, prompt: q.prompt}
	q.feed(c, requests, 0, o.Resume)
}

// settle commits the tokens of the previous step that a plan accepts.
func (c *cluster) settle(p *plan.Plan) {
	for _, d := range p.Decode {
		q := c.seqs[d.Seq]
		if q == nil || q.held {
			continue
		}
		q.settle(d.Accepted)
	}
}

// settle commits tokens of the last step.
func (q *sequence) settle(accepted int) {
	q.next = q.own.Tokens() + accepted
	if at := plan.CopyAfter(q.own.Tokens(), q.next, q.copied); q.copies && at > 0 && q.own.Staged() > 0 {
		q.copied = at
		q.own.States().Copy(at, accepted, func(n int, f func(int)) {
			for i := range n {
				f(i)
			}
		})
	}
	for _, s := range []*kvcache.Store{q.own, q.copy} {
		if s != nil && s.Sealed() {
			s.Commit(accepted)
		}
	}
}

// settleLast commits the tokens of the last step of an ended sequence, up to the end of a block.
func (q *sequence) settleLast(end int) {
	if n := end - q.own.Tokens(); n >= 0 && q.own.Staged() > 0 {
		q.settle(n)
	}
}

func (c *cluster) release(seqs []uint64) {
	for _, seq := range seqs {
		q := c.seqs[seq]
		if q == nil {
			if !c.released[seq] {
				c.t.Fatalf("release of sequence %d, which never existed", seq)
			}
			continue
		}
		c.released[seq] = true
		for i, part := range q.parts {
			part.Release()
			q.seen[i].Release()
		}
		for _, stream := range q.stream {
			stream.Release()
		}
		for _, s := range []*kvcache.Store{q.own, q.copy} {
			if s != nil {
				s.Release()
			}
		}
		delete(c.seqs, seq)
	}
}

// evict drops blocks of the prefix cache. Unknown blocks were dropped before.
func (c *cluster) evict(blocks []uint64) {
	for _, id := range blocks {
		for _, seg := range c.blocks[id] {
			seg.Release()
		}
		delete(c.blocks, id)
		delete(c.texts, id)
	}
}

// keep keeps blocks of sequences that end. An unknown sequence has left its blocks before.
func (c *cluster) keep(keep []plan.Keep) {
	for _, k := range keep {
		q := c.seqs[k.Seq]
		if q == nil {
			continue
		}
		q.settleLast((k.From + len(k.Blocks)) * tensor.BlockSlots)
		for i, id := range k.Blocks {
			if id == 0 {
				continue
			}
			seg, err := q.own.Share(k.From + i)
			c.must(err, "block %d of %s", k.From+i, q.open.ID)
			c.blocks[id] = []*kvcache.Segment{seg}
			c.texts[id] = q.text[:(k.From+i+1)*tensor.BlockSlots]
		}
		if k.Snapshot != 0 {
			if n := (k.From + len(k.Blocks)) * tensor.BlockSlots; q.copied != n || !slices.Equal(c.texts[k.Snapshot], q.text[:n]) {
				c.t.Fatalf("%s keeps states after %d tokens with a block that ends after %d", q.open.ID, q.copied, n)
			}
			c.blocks[k.Snapshot][0].TakeCopy(q.own)
			if !c.blocks[k.Snapshot][0].HasStates() {
				c.t.Fatalf("%s: the copy of the states did not move", q.open.ID)
			}
		}
	}
}

// attach begins a prompt with its blocks of the prefix cache.
func (c *cluster) attach(q *sequence, requests map[string]*Spec) {
	for rank, part := range q.parts {
		var chain []*kvcache.Segment
		for _, id := range q.open.Shared {
			if c.blocks[id] == nil {
				c.t.Fatalf("%s: begins with block %d, which does not exist", q.open.ID, id)
			}
			chain = append(chain, c.blocks[id][rank])
		}
		c.must(part.Attach(chain), "shared blocks")
		if q.open.PassRows > 0 {
			kept := layered.KeptRows(geometry, q.open.Policy, q.open.Read)
			stream, err := layered.NewStreams(len(q.open.Prefix), q.open.PassRows, q.open.Read, kept, func(first int) (*layered.Residual, error) {
				if q.open.InFile {
					file := func(int64) (layered.File, error) { return nil, errStep }
					return layered.NewInFile(file, hidden, q.open.PassRows, len(c.arenas), first, q.open.Read), nil
				}
				return layered.NewResidual(c.arenas[rank], geometry.Layout.BlockBytes(), hidden, q.open.PassRows,
					len(c.arenas), first, q.open.Read)
			})
			c.must(err, "residual stream of %s", q.open.ID)
			q.stream, q.seen = append(q.stream, stream), append(q.seen, nil)
			continue
		}
		needs := kvcache.Needs{PromptAttention: q.open.Policy.Needs.PromptAttention}
		seen, err := kvcache.NewObservation(c.arenas[rank], geometry, c.spans[rank], needs, q.open.Read)
		c.must(err, "observation of %s", q.open.ID)
		if n := len(chain); n > 0 && needs.PromptAttention {
			c.must(seen.Continue(chain[n-1]), "sums that %s goes on from", q.open.ID)
			c.summed++
		}
		q.seen = append(q.seen, seen)
	}
	if n := len(q.open.Shared); n > 0 {
		if text := c.texts[q.open.Shared[n-1]]; !slices.Equal(text, q.open.Prefix) {
			c.t.Fatalf("%s: begins with the blocks of another text: %d tokens", q.open.ID, len(text))
		}
	}
	q.feed(c, requests, 0, q.open.Prefix)
	c.warm += len(q.open.Prefix)
}

// save keeps the blocks of a prompt that a chunk completes.
func (c *cluster) save(q *sequence, k *plan.Run, requests map[string]*Spec) {
	for i, id := range k.Save {
		at := k.SaveFrom + i
		if have := c.blocks[id]; have != nil {
			for rank, part := range q.parts {
				c.must(part.Deduplicate(have[rank], at), "a block that is there already")
			}
			continue
		}
		for _, part := range q.parts {
			seg, err := part.Share(at)
			c.must(err, "block %d", at)
			c.blocks[id] = append(c.blocks[id], seg)
		}
		for pos := range (at + 1) * tensor.BlockSlots {
			c.texts[id] = append(c.texts[id], q.token(requests, pos))
		}
	}
	if k.Snapshot {
		for rank, seg := range c.blocks[k.Save[len(k.Save)-1]] {
			c.must(seg.KeepStates(q.parts[rank]), "snapshot of %s", q.open.ID)
		}
	}
	if k.Sums {
		for rank, seg := range c.blocks[k.Save[len(k.Save)-1]] {
			c.must(seg.KeepSums(q.seen[rank]), "sums of %s", q.open.ID)
		}
	}
}

// observe gives queries to a policy that sums attention. Each query adds the same weight to all
// tokens, 1 in all.
func (c *cluster) observe(q *sequence, start, n int) {
	c.observeLayers(q, start, n, 0, geometry.Layers)
}

func (c *cluster) observeLayers(q *sequence, start, n, from, to int) {
	for rank, part := range q.parts {
		for head := c.spans[rank].Lo; q.seen[rank] != nil && head < c.spans[rank].Hi; head++ {
			for layer := from; layer < to; layer++ {
				q.seen[rank].Observe(layer, head, start, n, make([]float32, n*geometry.Layout.KDim),
					geometry.Layout.KDim, tensor.Score{Scale: 1}, part.Blocks(layer, head), new(tensor.AttnScratch))
			}
		}
	}
}

// statistics checks those of a complete prompt: each query was observed once.
func (c *cluster) statistics(q *sequence, rank, layer, head int) *kvcache.Statistics {
	if q.seen[rank] == nil {
		return kvcache.StatisticsOf(q.parts[rank], layer, head)
	}
	seen, sum := q.seen[rank].Statistics(q.parts[rank], layer, head, tensor.Score{Scale: 1}), 0.0
	for _, a := range seen.Attention {
		sum += float64(a)
	}
	if queries := float64(q.open.Read); seen.Attention != nil && math.Abs(sum-queries) > 1e-3*queries {
		c.t.Fatalf("%s: the tokens of %d queries received the attention of %.3f", q.open.ID, q.open.Read, sum)
	}
	return seen
}

func (c *cluster) must(err error, what string, args ...any) {
	if err != nil {
		c.t.Fatalf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// run does a step in the order of sockets: release, open, reserve all memory, then compute.
func (c *cluster) run(p *plan.Plan, requests map[string]*Spec) StepDone {
	if p.Epoch != c.epoch {
		c.t.Fatalf("step of epoch %d, the cluster is in %d", p.Epoch, c.epoch)
	}
	c.settle(p)
	c.keep(p.Keep)
	c.release(p.Release)
	for _, seq := range p.DropStates {
		if q := c.seqs[seq]; q != nil && q.copies {
			q.copies, q.copied = false, 0
			q.own.States().DropCopy()
			c.uncopied++
		}
	}
	c.evict(p.Evict)
	for _, id := range p.DropExtras {
		for _, seg := range c.blocks[id] {
			seg.DropExtras()
		}
		c.unsummed++
	}
	for _, seq := range p.DropReplica {
		if q := c.seqs[seq]; q != nil {
			q.copy.Release()
			q.copy = nil
		}
	}
	for _, o := range p.Open {
		q := &sequence{open: o, prompt: len(requests[o.ID].Prompt)}
		switch {
		case o.Take:
			c.take(q, c.seqs[o.Fork], requests)
			continue
		case o.Fork != 0:
			c.fork(q, c.seqs[o.Fork], requests)
			continue
		case o.Resume != nil:
			c.resume(o, requests)
			continue
		}
		for i, a := range c.arenas {
			q.parts = append(q.parts, kvcache.NewPrefill(a, geometry, c.spans[i]))
		}
		c.seqs[o.Seq] = q
		c.attach(q, requests)
	}
	for _, k := range p.Copy {
		q := c.seqs[k.Seq]
		if q.copy != nil || k.Owner != q.owner || k.Replica == k.Owner {
			c.t.Fatalf("%s: a second copy, or one on its owner: %+v", q.open.ID, k)
		}
		q.copy, q.replica = kvcache.NewStore(c.arenas[k.Replica], geometry, q.open.Policy), k.Replica
		c.must(q.copy.OpenMoved(q.own.Prompt(), q.own.Tokens()), "copy of %d tokens", q.own.Tokens())
		for layer := range geometry.Layers + geometry.Recurrent.Layers {
			c.move(q.own.LayerBlock(layer, q.own.Tokens()), q.own, q.copy)
		}
		c.must(q.copy.Seal(), "seal of a copy")
	}
	for _, d := range p.Decode {
		q := c.seqs[d.Seq]
		c.must(q.own.Reserve(d.Start+len(d.Tokens)+p.PassCount()-1), "decode row of %d at %d", len(d.Tokens), d.Start)
		if d.Snapshot && !q.copies {
			q.copies = true
			c.must(q.own.States().ReserveCopy(), "copy of states at %d", d.Start)
		}
		if q.copy != nil {
			c.must(q.copy.Reserve(d.Start+len(d.Tokens)+p.PassCount()-1), "copied row at %d", d.Start)
		}
	}
	for _, k := range p.Chunks {
		q := c.seqs[k.Seq]
		for rank, part := range q.parts {
			c.must(part.Reserve(k.Start+len(k.Tokens)), "chunk at %d on rank %d", k.Start, rank)
		}
		if k.Last {
			c.openCache(q, k.Owner)
		}
	}
	for i := range p.Sweeps {
		c.reserveSweep(&p.Sweeps[i])
	}
	for _, x := range p.Index {
		q := c.seqs[x.Seq]
		if k := kvcache.IndexWorkOf(geometry, q.open.Read, q.open.Policy); x.From == k.Before {
			if q.next != q.open.Read {
				c.t.Fatalf("%s: the hand-over begins with %d tokens of %d", q.open.ID, q.next, q.open.Read)
			}
			c.openCache(q, q.open.Owner)
		}
	}
	if p.ThreadShift < 0 || p.ThreadShift > 2 || p.ThreadShift > 0 && len(p.Chunks)+len(p.Sweeps)+len(p.Index) > 0 {
		c.t.Fatalf("step %d: threads are halved %d times with %d chunks", p.Step, p.ThreadShift, len(p.Chunks))
	}
	done := StepDone{Epoch: p.Epoch, Step: p.Step}
	for _, d := range p.Decode {
		q := c.seqs[d.Seq]
		n := len(d.Tokens)
		first := d.Start + d.Known // the row of the first sample
		if end := d.Start + n; !d.Sample && (d.Known > 0 || end >= q.prompt) ||
			d.Sample && (first >= end || first+1 < q.prompt || d.Known > 0 && first+1 > q.prompt) {
			c.t.Fatalf("%s: rows [%d,%d) of a prompt of %d, %d are known, samples: %v", q.open.ID, d.Start, end, q.prompt, d.Known, d.Sample)
		}
		if p.PassCount() > 1 &&
			(n > 1 || !d.Sample || d.Draft > 0 || len(p.Chunks)+len(p.Sweeps)+len(p.Index)+len(p.Open)+len(p.Copy)+len(p.Spill) > 0) {
			c.t.Fatalf("%s: %d passes of a step that has more to do: %+v", q.open.ID, p.Passes, p)
		}
		if left := q.prompt + requests[q.open.ID].MaxTokens - 1 - d.Start; p.PassCount() > max(1, left) {
			c.t.Fatalf("%s: %d passes, %d tokens are left", q.open.ID, p.Passes, left)
		}
		put(q.own, d.Start, n)
		settle(q.own)
		if q.copy != nil {
			c.move(q.own.StepBlock(d.Start, n), q.own, q.copy)
		}
		if !d.Sample {
			q.feed(c, requests, d.Start, d.Tokens)
			continue
		}
		q.feed(c, requests, d.Start, d.Tokens[:d.Known+1])
		r := q.result(d.Seq, first+1)
		for i := d.Known + 1; i < n && d.Tokens[i] == r.Samples[i-d.Known-1].Token; i++ {
			q.feed(c, requests, d.Start+i, d.Tokens[i:i+1])
			r.Samples = append(r.Samples, q.result(d.Seq, d.Start+i+1).Samples[0])
			c.accepted++
		}
		for i := 1; i < p.PassCount(); i++ {
			put(q.own, d.Start+i, 1)
			settle(q.own)
			if q.copy != nil {
				c.move(q.own.StepBlock(d.Start+i, 1), q.own, q.copy)
			}
			q.feed(c, requests, d.Start+i, []int32{r.Samples[i-1].Token})
			r.Samples = append(r.Samples, q.result(d.Seq, d.Start+i+1).Samples[0])
			c.passes++
		}
		for i := range d.Draft { // a small model, which is right three times of four
			token := modelToken(q.open.ID, d.Start+len(r.Samples)+1+i-len(requests[q.open.ID].Prompt))
			if strings.Contains(q.open.ID, "noise") || token%4 == 0 {
				token++
			}
			r.Drafts, r.Odds = append(r.Drafts, token), append(r.Odds, 0.9)
		}
		done.Results = append(done.Results, r)
	}
	for _, k := range p.Chunks {
		q := c.seqs[k.Seq]
		if k.Sample && k.Start >= q.prompt && !k.Last {
			c.cut++
		}
		q.feed(c, requests, k.Start, k.Tokens)
		for _, part := range q.parts {
			put(part, k.Start, len(k.Tokens))
			eachState(part, func(x *states.State) {
				c.must(x.Prompt(k.Start), "states of %s", q.open.ID)
				x.Advanced(k.Start + len(k.Tokens))
			})
		}
		c.observe(q, k.Start, len(k.Tokens))
		c.save(q, &k, requests)
		for _, part := range q.parts {
			part.Commit(len(k.Tokens))
		}
		if k.Last {
			c.handOver(q, k.Owner)
		}
		r := q.result(k.Seq, k.Start+len(k.Tokens))
		if k.PromptLogprobs >= 0 {
			for pos := k.Start + 1; pos <= k.Start+len(k.Tokens) && pos < q.prompt; pos++ {
				if pos == k.Start+len(k.Tokens) && k.Next != requests[q.open.ID].Prompt[pos] {
					c.t.Fatalf("the token after the chunk is %d", k.Next)
				}
				r.Prompt = append(r.Prompt, PromptLogprob{Position: pos, Logprob: float32(-pos)})
			}
		}
		done.Results = append(done.Results, r)
	}
	for i := range p.Sweeps {
		if seq := p.Sweeps[i].Seq; c.seqs[seq].open.InFile {
			if c.inFiles++; (p.Step+57*seq*seq)%67 == 0 && c.lost < 12 { // some prompts have more sweeps than that
				done.Lost = append(done.Lost, seq, seq) // by two sockets
				c.lost++
			}
		}
		if r := c.sweep(&p.Sweeps[i], requests); r != nil {
			done.Results = append(done.Results, *r)
		}
	}
	for _, x := range p.Index {
		q := c.seqs[x.Seq]
		k := kvcache.IndexWorkOf(geometry, q.open.Read, q.open.Policy)
		if x.From != q.indexed || x.From < k.Before && x.From+x.Pieces > k.Before || x.From+x.Pieces > k.Pieces {
			c.t.Fatalf("%s: pieces [%d,%d+%d) of %d after %d", q.open.ID, x.From, x.From, x.Pieces, k.Pieces, q.indexed)
		}
		if q.indexed += x.Pieces; q.indexed == k.Pieces {
			c.handOver(q, q.owner)
		}
	}
	c.spill(p, &done)
	for _, a := range c.arenas {
		done.Used = append(done.Used, a.Used())
	}
	return done
}

// factored is a policy that keeps factors of the prompt's keys.
var factored = parsed("shadowkv:chunk=4,budget=8,outliers=1,local=1,keys=lowrank,rank=16")

func parsed(spec string) *kvcache.Policy {
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		panic(err)
	}
	return p
}

// ringed and ringedFactors are policies that keep the prompt, and a ring of the tokens after it.
var ringed, ringedFactors = parsed("quest:page=16,budget=32,ring=20"), parsed(factored.Spec() + ",ring=9")

// voting chooses tokens by the queries of a window, summing by those of the whole prompt.
var voting, summing = parsed("snapkv:topk=30,obs=4,pool=3"), parsed("h2o:recent=12,topk=20")

// divided gives the heads of a layer unequal numbers of tokens, repeated compresses again in decode.
var divided, repeated = parsed("adakv:topk=130,obs=4,pool=3"), parsed("resnap:topk=20,every=9,obs=8")

// squeezed is a policy that reads the end of a prompt as decode rows.
var squeezed = parsed("squeezed:clusters=0.2,levels=2,tail=9,obs=7")

// fork begins a sequence with the cache of another.
func (c *cluster) fork(q, from *sequence, requests map[string]*Spec) {
	if from == nil || from.held || from.own == nil || from.owner != q.open.Owner || from.open.Read != q.open.Read ||
		from.open.Policy != q.open.Policy || len(q.open.Resume) != q.open.Read {
		c.t.Fatalf("%s: a fork of %+v", q.open.ID, from)
	}
	q.feed(c, requests, 0, q.open.Resume)
	for i, token := range q.open.Resume {
		if from.text[i] != token {
			c.t.Fatalf("%s: position %d of the forked sequence is %d, not %d", q.open.ID, i, from.text[i], token)
		}
	}
	own, err := from.own.Fork()
	c.must(err, "fork")
	q.own, q.owner = own, q.open.Owner
	c.seqs[q.open.Seq] = q
	c.forks++
}

// take begins a sequence with all of the cache of another, which ends.
func (c *cluster) take(q, from *sequence, requests map[string]*Spec) {
	if from == nil || from.held || from.own == nil || from.owner != q.open.Owner || from.open.Read != q.open.Read ||
		from.open.Policy.Spec() != q.open.Policy.Spec() {
		c.t.Fatalf("%s: takes the cache of %+v", q.open.ID, from)
	}
	n := len(q.open.Resume) - from.own.Tokens()
	if n < 0 || n > from.own.Staged() {
		c.t.Fatalf("%s: takes %d tokens of %d and %d", q.open.ID, len(q.open.Resume), from.own.Tokens(), from.own.Staged())
	}
	from.own.Commit(n)
	from.own.States().DropCopy()
	q.feed(c, requests, 0, q.open.Resume)
	if !slices.Equal(from.text[:q.next], q.open.Resume) {
		c.t.Fatalf("%s: takes a cache of other tokens", q.open.ID)
	}
	q.own, q.owner, from.own = from.own, q.open.Owner, nil
	c.release([]uint64{q.open.Fork})
	c.seqs[q.open.Seq] = q
	c.takes++
}

func put(s *kvcache.Store, start, n int) { putLayers(s, start, n, 0, geometry.Layers) }

func putLayers(s *kvcache.Store, start, n, from, to int) {
	k, v := make([]float32, geometry.Layout.KDim), make([]float32, geometry.Layout.VDim)
	for pos := start; pos < start+n; pos++ {
		for layer := from; layer < to; layer++ {
			for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
				s.Write(layer, head, pos, k, v)
			}
		}
	}
}

// eachState calls f with each recurrent state of a store.
func eachState(s *kvcache.Store, f func(*states.State)) {
	for layer := range geometry.Recurrent.Layers {
		for head := s.Heads().Lo; head < s.Heads().Hi; head++ {
			f(s.State(layer, head))
		}
	}
}

// settle does the first part of a decode row: it applies the records of the tokens that count.
func settle(s *kvcache.Store) {
	out := make([]float32, geometry.Recurrent.ValueDim)
	eachState(s, func(x *states.State) {
		for head := x.Heads().Lo; head < x.Heads().Hi; head++ {
			x.Settle(head, out)
		}
		x.Advanced(x.Committed())
	})
}

// feed checks that the rows have the tokens of the request in order, each of them once.
func (q *sequence) feed(c *cluster, requests map[string]*Spec, start int, tokens []int32) {
	if start != q.next {
		c.t.Fatalf("%s: row at position %d, the cache has %d tokens", q.open.ID, start, q.next)
	}
	for i, token := range tokens {
		pos, want := start+i, q.token(requests, start+i)
		if token != want {
			c.t.Fatalf("%s: position %d gets token %d, want %d", q.open.ID, pos, token, want)
		}
	}
	q.next += len(tokens)
	q.text = append(q.text[:start], tokens...)
}

func (q *sequence) token(requests map[string]*Spec, pos int) int32 {
	if pos < q.prompt {
		return requests[q.open.ID].Prompt[pos]
	}
	return modelToken(q.open.ID, pos-q.prompt)
}

func (q *sequence) result(seq uint64, cached int) Result {
	return Result{Seq: seq, Samples: []sampler.Result{{Token: modelToken(q.open.ID, max(0, cached-q.prompt))}}}
}

func (c *cluster) openCache(q *sequence, owner int) {
	a := c.arenas[owner]
	q.own, q.owner = kvcache.NewStore(a, geometry, q.open.Policy), owner
	q.own.Score = tensor.Score{Scale: 1}
	adopted := tensor.Span{}
	if q.open.Policy.KeepsPrompt() {
		adopted = c.spans[owner]
	}
	c.must(q.own.Open(q.open.Read, q.open.Read, adopted), "hand-over of %d tokens", q.open.Read)
}

// move copies a block of rows from one cache to another.
func (c *cluster) move(b rowblock.Block, from rowblock.Source, to rowblock.Sink) {
	rows, err := b.Append(nil, from)
	c.must(err, "%v", b)
	rest, err := b.Store(rows, to)
	c.must(err, "%v, %d bytes are left", b, len(rest))
}

func (c *cluster) handOver(q *sequence, owner int) {
	c.handLayersOver(q, owner, 0, geometry.Layers)
	c.handedOver(q)
}

// handLayersOver moves the rows that the owner keeps of the layers [from, to).
func (c *cluster) handLayersOver(q *sequence, owner, from, to int) {
	blocks := map[int][]int{} // of each head, by layer
	for layer := from; layer < to; layer++ {
		if blocks[layer] = c.headBlocks(q, layer); blocks[layer] != nil {
			c.must(q.own.Divide(layer, blocks[layer]), "divide")
		}
	}
	for rank, part := range q.parts {
		for head := c.spans[rank].Lo; head < c.spans[rank].Hi; head++ {
			for layer := from; layer < to; layer++ {
				rule, whole := geometry.Rule(layer, q.open.Policy), q.open.Policy
				if blocks[layer] != nil {
					rule = rule.OfHead(q.open.Read, blocks[layer][head])
					whole = rule
				}
				seen := c.queried(q, rank, layer, head)
				kept := rule.Keep(seen)
				switch {
				case rank != owner:
					b := kvcache.PromptBlock(geometry, whole, q.open.Read, layer, tensor.Span{Lo: head, Hi: head + 1})
					c.move(b, kvcache.Selection{From: part, Policy: q.open.Policy,
						Kept: func(int) (kvcache.Kept, *kvcache.Statistics) { return kept, seen }}, q.own)
				case !rule.KeepsPrompt():
					c.must(q.own.Keep(part, layer, head, kept), "keep")
					c.must(q.own.KeepQueries(seen), "queries")
				}
			}
			if rank == owner && q.open.Policy.KeepsPrompt() {
				c.must(q.own.Adopt(part, head), "adopt")
			}
			for layer := range geometry.Recurrent.Layers {
				if to < geometry.Layers {
					break
				}
				span := tensor.Span{Lo: head, Hi: head + 1}
				if rank == owner {
					c.must(q.own.KeepState(part, layer, span), "keep of a state")
				} else {
					c.move(kvcache.PromptBlock(geometry, q.open.Policy, q.open.Read, geometry.Layers+layer, span),
						kvcache.Selection{From: part, Policy: q.open.Policy}, q.own)
				}
			}
		}
	}
}

// queried returns the statistics of a head, with its own queries of the window.
func (c *cluster) queried(q *sequence, rank, layer, head int) *kvcache.Statistics {
	rule, seen := geometry.Rule(layer, q.open.Policy), c.statistics(q, rank, layer, head)
	seen.Queries = make([]float32, min(rule.Needs.Window, q.open.Read)*seen.Group*geometry.Layout.KDim)
	if rule.HeadBudget != nil {
		for i := range seen.Queries {
			seen.Queries[i] = float32((head+1)*(i%7) - layer)
		}
	}
	return seen
}

// headBlocks returns the blocks of each head in a layer; nil: all heads have as many.
func (c *cluster) headBlocks(q *sequence, layer int) []int {
	rule := geometry.Rule(layer, q.open.Policy)
	if !rule.Divides(geometry, q.open.Read) {
		return nil
	}
	curves := make([][]float32, geometry.KVHeads)
	for rank := range q.parts {
		for head := c.spans[rank].Lo; head < c.spans[rank].Hi; head++ {
			curves[head] = rule.HeadCurve(c.queried(q, rank, layer, head), geometry.KVHeads)
		}
	}
	blocks := rule.HeadBlocks(q.open.Read, curves)
	if slices.Min(blocks) < slices.Max(blocks) {
		c.unequal++
	}
	return blocks
}

// handedOver frees the memory of prefill.
func (c *cluster) handedOver(q *sequence) {
	for rank, part := range q.parts {
		part.Release()
		q.seen[rank].Release()
	}
	q.parts = nil
	c.must(q.own.Seal(), "seal")
}

// client checks the effects: every token once and in order, one Finish, and nothing after it.
type client struct {
	t        fataler
	specs    map[string]*Spec
	tokens   map[string]int
	scored   map[string]int
	finished map[string]Finish
	opened   []string // IDs in the order of their first admission
	seen     map[string]bool
}

func newClient(t fataler) *client {
	return &client{t: t, specs: map[string]*Spec{}, tokens: map[string]int{}, scored: map[string]int{},
		finished: map[string]Finish{}, seen: map[string]bool{}}
}

// guess returns right tokens first, then wrong ones.
func (c *client) guess(id string, position int) (drafts []int32) {
	h := fnv.New32a()
	fmt.Fprintf(h, "drafts of %s at %d", id, position)
	n, right := int(h.Sum32()%10), int(h.Sum32()/10%10)
	for i := range n {
		token := modelToken(id, position+i-len(c.specs[id].Prompt))
		if i >= right {
			token++
		}
		drafts = append(drafts, token)
	}
	return drafts
}

func (c *client) take(e Effects) {
	for _, f := range e.Faults {
		c.t.Fatalf("fault %+v", f)
	}
	for _, s := range e.Scores {
		for _, p := range s.Prompt {
			c.scored[s.ID]++
			if p.Position != c.scored[s.ID] || p.Logprob != float32(-p.Position) || c.tokens[s.ID] > len(c.specs[s.ID].Emitted) {
				c.t.Fatalf("%s: score %+v after %d", s.ID, p, c.scored[s.ID]-1)
			}
		}
	}
	for _, m := range e.Emits {
		if _, over := c.finished[m.ID]; over || c.specs[m.ID] == nil {
			c.t.Fatalf("%s: token after its end", m.ID)
		}
		if m.Index != c.tokens[m.ID] || m.Token != modelToken(m.ID, m.Index) {
			c.t.Fatalf("%s: token %d at index %d, want %d at %d", m.ID, m.Token, m.Index, modelToken(m.ID, c.tokens[m.ID]), c.tokens[m.ID])
		}
		if c.tokens[m.ID]++; c.tokens[m.ID] > c.specs[m.ID].MaxTokens {
			c.t.Fatalf("%s: %d tokens of %d", m.ID, c.tokens[m.ID], c.specs[m.ID].MaxTokens)
		}
	}
	for _, f := range e.Finishes {
		if _, over := c.finished[f.ID]; over || f.Output != c.tokens[f.ID] {
			c.t.Fatalf("%s: finish %+v after %d tokens, finished before: %v", f.ID, f, c.tokens[f.ID], over)
		}
		c.finished[f.ID] = f
		spec := c.specs[f.ID]
		switch f.Reason {
		case ReasonLength:
			if f.Output != spec.MaxTokens && !(spec.Open && f.Output < spec.MaxTokens) {
				c.t.Fatalf("%s: length after %d of %d tokens", f.ID, f.Output, spec.MaxTokens)
			}
			resumed := spec.Open && f.Output == len(spec.Emitted) // a job that ends at once
			if spec.PromptLogprobs >= 0 && !resumed && c.scored[f.ID] != len(spec.Prompt)-1 {
				c.t.Fatalf("%s: %d of %d prompt tokens scored", f.ID, c.scored[f.ID], len(spec.Prompt)-1)
			}
		case ReasonStop:
			if last := modelToken(f.ID, f.Output-1); last != spec.Stop[0] {
				c.t.Fatalf("%s: stopped by %d", f.ID, last)
			}
		}
	}
	if e.Start != nil {
		for _, o := range e.Start.Open {
			if !c.seen[o.ID] {
				c.seen[o.ID] = true
				c.opened = append(c.opened, o.ID)
			}
		}
	}
}

func checkLedger(t fataler, s *State) {
	shares := map[*contextShare]bool{}
	sums := make([]int64, len(s.ledger.sockets))
	held := make([]map[*prefix.Block]int32, len(sums))
	for i := range held {
		held[i] = map[*prefix.Block]int32{}
	}
	for _, r := range holders(s) {
		if c := r.shares; c != nil && !shares[c] {
			shares[c] = true
			sums[r.owner] += c.bytes
		}
		for i, bytes := range r.booked {
			sums[i] += bytes
			if bytes < 0 {
				t.Fatalf("%s holds %d bytes on socket %d", r.ID, bytes, i)
			}
			for _, b := range r.prefix.Blocks {
				if r.phase == prefill || r.owner == i {
					held[i][b]++
				}
			}
		}
	}
	for b, n := range s.pinned() {
		for i := range held {
			held[i][b] += n
		}
	}
	for i, a := range s.ledger.sockets {
		files := int64(0)
		for _, r := range s.running {
			if files += r.sweeping.files; r.owner == i {
				files += r.resides.file.bytes
			}
		}
		if a.files != files {
			t.Fatalf("socket %s: %d bytes of files, requests have %d", a.ID, a.files, files)
		}
		shared, evictable, copies := int64(0), int64(0), int64(0)
		for b, n := range held[i] {
			if b.Pins[i] != n {
				t.Fatalf("block %d has %d holders on socket %d, %d are counted", b.ID, n, i, b.Pins[i])
			}
			shared += a.Block
		}
		for _, b := range s.textBlocks() {
			if held[i][b] == 0 {
				shared, evictable = shared+a.Block, evictable+a.Block
				if b.Pins[i] != 0 {
					t.Fatalf("block %d counts %d holders on socket %d and has none", b.ID, b.Pins[i], i)
				}
			}
			beside := a.Window
			if b.Extras&prefix.Sums != 0 {
				beside += kvcache.SumsBytes(geometry, a.heads(), b.Tokens)
			}
			if b.Extras&prefix.Snapshot != 0 {
				beside += kvcache.StateBytes(geometry, a.heads())
			}
			shared, evictable = shared+beside, evictable+beside
		}
		for _, r := range holders(s) {
			if r.prefix.copy.booked && r.owner == i {
				copies += kvcache.StateBytes(geometry, geometry.KVHeads)
			}
		}
		if a.copies != copies || a.reserved != sums[i]+copies || a.Shared != shared || a.Evictable != evictable || a.free() < 0 {
			t.Fatalf("socket %s: %d reserved, %d shared, %d evictable of %d; requests hold %d, blocks %d, %d",
				a.ID, a.reserved, a.Shared, a.Evictable, a.Budget, sums[i], shared, evictable)
		}
	}
	for _, b := range s.textBlocks() {
		if before := b.Parent; before != nil && b.Tokens != before.Tokens+tensor.BlockSlots || before == nil && b.Tokens != tensor.BlockSlots {
			t.Fatalf("block %d ends at token %d", b.ID, b.Tokens)
		}
		if b.Parent != nil && !b.Parent.Cached {
			t.Fatalf("block %d can be found, the one before it cannot", b.ID)
		}
	}
}

// holders returns the requests with memory: running ones, and ended ones whose output is fetched.
func holders(s *State) []*request {
	all := slices.Clone(s.running)
	for _, f := range s.prefix.fetches.List {
		if of, ok := f.Sequence.(endedSequence); ok {
			all = append(all, of.r)
		}
	}
	return all
}

func prompt(id string, n int) []int32 { return begin(make([]int32, n), id, 0) }

// begin returns a prompt that continues with the text of an ID from a token on.
func begin(p []int32, id string, from int) []int32 {
	for i := from; i < len(p); i++ {
		p[i] = modelToken("prompt of "+id, i)
	}
	return p
}

var errStep = errors.New("test: step failed")

func testState(t testing.TB, edit func(*Config)) *State {
	t.Helper()
	c := Config{Geometry: geometry, ContextLimit: 1000, TokenBudget: 64, Chunk: 32, MaxRunning: 8, MaxWaiting: 100}
	if edit != nil {
		edit(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
