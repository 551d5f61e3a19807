package accelerator

import (
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	"github.com/shoal-llm/shoal/internal/engine/cuda/launch"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/topology"
)

// observer moves the attention that policies observe from the card to the host.
type observer struct {
	host    *pinned
	scratch grown
	sums    grown // of a prompt
	masses  grown // (decode rows, KV heads, slots) of some layers: attention that slots receive from decode rows
	used    int   // number of values in masses that wait for observe
	seen    []observed
}

// massBytes limits masses: when they are full, observe empties them between two layers. They have room for at
// least one layer.
const massBytes = 64 << 20

// observed is the attention of a decode row in a layer: (KV heads, ld) at an offset of masses.
type observed struct {
	store         *kvcache.Store
	layer, at, ld int
}

func (o *observer) close() {
	o.host.close()
	o.scratch.close()
	o.sums.close()
	o.masses.close()
}

// mass returns the operation for rows of a layer.
func (b *Backend) mass(a attention, rows topology.Range, described cuda.Pointer, slots int) launch.Mass {
	o := launch.Mass{Cache: b.cacheOf(a), Q: a.queries(rows.Lo), LdQ: a.ld, Heads: a.heads.Len() * b.group(),
		Scale: b.score.Scale, Cap: b.score.Cap,
		Rows: described, N: rows.Len(), Slots: slots, Ld: slots}
	o.Scratch = b.observer.scratch.grow(b, o.ScratchBytes())
	return o
}

// observePrompt gives the observation of a prompt the queries of its rows, and the attention that they pay.
func (b *Backend) observePrompt(a attention, s *layer.Segment, described cuda.Pointer) {
	c, ok := s.Cache.(layer.PromptCache)
	if !ok || c.Seen == nil || !c.Seen.Observes(a.index) {
		return
	}
	began := time.Now()
	defer func() { b.batch.Observed += time.Since(began) }()
	if first := max(0, c.Seen.First()-s.Start); first < s.N {
		n := 4 * (s.N - first) * a.ld
		b.observer.host = b.observer.host.grow(b, n)
		b.ops.Start()
		b.card.Must(b.card.Stream.Download(b.observer.host.bytes()[:n], a.queries(s.First+first)))
		b.card.Wait()
		q := cuda.Floats(b.observer.host.bytes()[:n])
		for h := range a.heads.Len() {
			c.Seen.KeepQueries(a.index, a.heads.Lo+h, s.Start+first, s.N-first, q[h*b.group()*b.dims.HeadDim:], a.ld)
		}
	}
	if c.Seen.Sums(a.index, a.heads.Lo) == nil {
		return
	}
	o := b.mass(a, topology.Range{Lo: s.First, Hi: s.First + s.N}, described, s.Start+s.N)
	o.Prompt = true
	n := 4 * o.KVHeads * o.Ld
	o.Out, b.observer.host = b.observer.sums.grow(b, int64(n)), b.observer.host.grow(b, n)
	memory := b.observer.host.bytes()[:n]
	for h := range o.KVHeads {
		copy(cuda.Floats(memory)[h*o.Ld:][:o.Ld], c.Seen.Sums(a.index, a.heads.Lo+h))
	}
	b.ops.Start()
	b.card.Must(b.card.Stream.Upload(o.Out, memory))
	b.card.Do(o)
	b.card.Must(b.card.Stream.Download(memory, o.Out))
	b.card.Wait()
	for h := range o.KVHeads {
		copy(c.Seen.Sums(a.index, a.heads.Lo+h), cuda.Floats(memory)[h*o.Ld:][:o.Ld])
	}
}

// observeRows computes the attention that slots receive from a run of decode rows, for policies that evict by it.
// observe gives it to their caches.
func (b *Backend) observeRows(a attention, run topology.Range, described cuda.Pointer) {
	p := &b.frame.placed
	for i := range b.batch.Segments {
		s := &b.batch.Segments[i]
		rows := topology.Range{Lo: max(s.First, run.Lo), Hi: min(s.First+s.N, run.Hi)}
		if s.Prefill || s.Cache == nil || rows.Len() <= 0 || !storeOf(s).Rule(a.index).Scored() {
			continue
		}
		c := storeOf(s)
		o := b.mass(a, rows, described.Add(int64(rows.Lo-run.Lo)*launch.RowBytes), p.scored)
		n := rows.Len() * o.KVHeads * o.Ld
		if int64(4*(b.observer.used+n)) > b.observer.masses.bytes {
			b.ops.Start()
			b.observe()
		}
		at := b.observer.used
		b.observer.used += n
		o.Out = b.observer.masses.at.Add(4 * int64(at))
		b.do(o)
		b.observer.seen = append(b.observer.seen, observed{c, a.index, at, o.Ld})
	}
}

// growMasses makes room for the attention of a step.
func (o *observer) growMasses(b *Backend) {
	p := &b.frame.placed
	one := int64(4*p.rows) * int64(p.heads*p.scored)
	n := max(one, min(int64(p.layers)*one, massBytes))
	o.masses.grow(b, n)
	o.host = o.host.grow(b, int(n))
}

// observe waits for the card, and gives the attention of decode rows to their caches.
func (b *Backend) observe() {
	all := b.observer.seen
	if len(all) == 0 {
		b.card.Wait()
		return
	}
	lo, hi := all[0].at, 0
	for _, x := range all {
		lo, hi = min(lo, x.at), max(hi, x.at+b.frame.placed.heads*x.ld)
	}
	memory := b.observer.host.bytes()[4*lo : 4*hi]
	b.card.Must(b.card.Stream.Download(memory, b.observer.masses.at.Add(4*int64(lo))))
	b.card.Wait()
	for _, x := range all {
		for h := range b.frame.placed.heads {
			head := x.store.Heads().Lo + h
			x.store.Observe(x.layer, head, cuda.Floats(memory)[x.at-lo+h*x.ld:][:x.store.Len(x.layer, head)])
		}
	}
	b.observer.seen, b.observer.used = all[:0], 0
}
