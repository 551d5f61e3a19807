package layer

import (
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/model/recurrent"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Mappings are chosen by the number of synchronizations of a layer. Quantized activations add those of
// the norms, and one for decode rows in a step with prompts. Decode-only steps add none.
func TestScheduleSynchronises(t *testing.T) {
	g, r := conditions{mapping: topology.Gather, decode: true}, conditions{mapping: topology.Reduce, decode: true}
	with := func(c conditions, set ...func(c *conditions)) conditions {
		for _, f := range set {
			f(&c)
		}
		return c
	}
	alone, prefill, local := func(c *conditions) { c.alone = true }, func(c *conditions) { c.prefill = true },
		func(c *conditions) { c.local = true }
	owned, last, latent := func(c *conditions) { c.owned, c.quantized = true, true },
		func(c *conditions) { c.last = true }, func(c *conditions) { c.latent = true }
	sparse, prompts := func(c *conditions) { c.sparse = true }, func(c *conditions) { c.prefill, c.decode = true, false }
	for _, x := range []struct {
		c    conditions
		want int
	}{
		{with(g, alone, prefill), 0}, {with(r, alone), 0}, {with(r, alone, latent, prefill), 0}, {with(g, alone, sparse), 0},
		{g, 5}, {with(g, last), 5}, {with(g, sparse), 5},
		// heads match the projection rows: no exchange before attention
		{with(g, prefill, local), 4}, {with(g, prefill, local, last), 4}, {with(g, prefill, local, sparse), 4},
		{r, 2}, {with(r, last), 2}, {with(r, sparse), 3}, {with(r, prefill), 3}, {with(r, prefill, last), 3}, {with(r, prefill, sparse), 4},
		{with(g, latent), 7}, {with(g, latent, local), 5}, {with(r, latent), 2}, {with(r, latent, prefill), 4},
		{with(g, owned, prompts, local), 6}, {with(g, owned, prefill), 7}, {with(g, owned, prompts, local, last), 7},
		{with(r, owned, prompts), 4}, {with(r, owned, prefill), 5}, {with(r, owned, prefill, last), 6},
		{with(r, owned), 2}, {with(r, owned, last), 2},
	} {
		stages := x.c.schedule()
		s := scheduled(stages)
		if got := len(s.exchanges); got != x.want {
			t.Errorf("%+v: %d synchronisations (%v), want %d", x.c, got, stages, x.want)
		}
		var parts []Part
		for _, op := range slices.Concat(s.runs...) {
			parts = append(parts, op.Part())
		}
		if !slices.Contains(parts, Attention) || parts[0] != Projections || parts[len(parts)-1] != FFN {
			t.Errorf("%v does not begin with the projections and end with the residual of the FFN", stages)
		}
	}
}

// TestScheduleWithoutFFN: a layer without an FFN ends after attention. Each rank has the residual stream of the
// rows that the next layer reads there: all rows with mapping gather; with reduce its own decode rows and
// all prompt rows.
func TestScheduleWithoutFFN(t *testing.T) {
	for _, x := range []struct {
		c    conditions
		want int
	}{
		{conditions{mapping: topology.Gather, decode: true, recurrent: true}, 3},
		{conditions{mapping: topology.Gather, prefill: true, last: true}, 3},
		{conditions{mapping: topology.Reduce, decode: true, recurrent: true}, 0},
		{conditions{mapping: topology.Reduce, decode: true, last: true}, 1},
		{conditions{mapping: topology.Reduce, prefill: true, recurrent: true}, 2},
		{conditions{mapping: topology.Reduce, prefill: true, owned: true}, 2},
		{conditions{mapping: topology.Gather, alone: true, prefill: true}, 0},
	} {
		x.c.bare = true
		stages := x.c.schedule()
		if got := len(scheduled(stages).exchanges); got != x.want {
			t.Errorf("%+v: %d synchronisations (%v), want %d", x.c, got, stages, x.want)
		}
		ops := slices.Concat(scheduled(stages).runs...)
		if last := ops[len(ops)-1]; last != OpAddAttention && last != OpAddOwnedAttention {
			t.Errorf("%v does not end with the residual of attention", stages)
		}
		x.c.sameNorm = true
		for _, stage := range x.c.schedule() {
			if stage == OpNormAttention || stage == OpNormOwnedAttention || stage == exchangeNorm {
				t.Errorf("%+v computes the norm again", x.c)
			}
		}
	}
}

// TestQuantizable checks which steps quantize rows before an exchange. All ranks must agree.
func TestQuantizable(t *testing.T) {
	d := Dims{Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 64}
	place := func(n int, m topology.Mapping) topology.Placement {
		p, err := topology.Place(1, m, topology.Shape{Hidden: 64, Heads: 4, KVHeads: 2, HeadDim: 16, FFN: 64, Vocab: 64,
			FFNUnits: 2, FFNUnitStart: func(u int) int { return 32 * u }}, make([]topology.Member, n))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	narrow := d
	narrow.HeadDim = 8
	for _, c := range []struct {
		d            Dims
		dt           tensor.DType
		ranks, n     int
		want, reduce bool // norms too: with gather, with reduce
		gather       bool // outputs of attention and FFN, with gather
	}{
		{d, tensor.Q8_0, 3, quantizedRows, true, true, true},
		{d, tensor.Q4_0, 2, quantizedRows, true, true, true},
		{d, tensor.Q8_0, 1, quantizedRows, true, true, true},
		{d, tensor.Q8_0, 3, quantizedRows - 1, false, false, true},
		{d, tensor.BF16, 3, quantizedRows, false, false, false},
		{narrow, tensor.Q8_0, 3, quantizedRows, false, false, false}, // the heads of a rank do not fill whole blocks
		{d, tensor.Q8_0, 2, 0, false, true, true},                    // decode only
		{d, tensor.Q8_0, 1, 0, true, true, true},
		{d, tensor.F32, 2, 0, false, false, false},
	} {
		for _, m := range []topology.Mapping{topology.Gather, topology.Reduce} {
			p, want := place(c.ranks, m), c.want
			if m == topology.Reduce {
				want = c.reduce
			}
			for rank := range c.ranks {
				b := newBatch(c.d, 64, tensor.KVLayout{Type: tensor.F32, KDim: c.d.HeadDim, VDim: c.d.HeadDim}, nil)
				b.Type = c.dt
				segments := []Segment{{Seq: 1, N: 1, Owner: 0}}
				if c.n > 0 {
					segments = append(segments, Segment{Seq: 2, N: c.n, Prefill: true})
				}
				if err := b.Reset(p, rank, segments); err != nil {
					t.Fatal(err)
				}
				if on := want || m == topology.Gather && c.gather; b.step.owned != want || b.step.quantized != on {
					t.Errorf("%v, %s, %d ranks, %d prompt rows, rank %d: norms %v, the rest %v", c.dt,
						m, c.ranks, c.n, rank, b.step.owned, b.step.quantized)
				}
			}
		}
	}
}

// Sums must arrive where the next layer reads the row: at its owner in a decode-only step, everywhere
// before the head and before a prompt's projections.
func TestScheduleScattersDecode(t *testing.T) {
	for _, c := range []struct{ prefill, owned, last, want bool }{{false, false, false, true},
		{false, false, true, false}, {true, false, false, false}, {true, false, true, false},
		{false, true, false, true}, {false, true, true, false}} {
		s := conditions{mapping: topology.Reduce, prefill: c.prefill, decode: true, owned: c.owned, quantized: c.owned, last: c.last}.schedule()
		if got := slices.Contains(s, Stage(scatterDown)); got != c.want || slices.Contains(s, Stage(reduceDown)) == c.want {
			t.Errorf("%+v: %v", c, s)
		}
		if gives := slices.Contains(s, Stage(exchangeResidual)); gives == (c.owned && !c.last) {
			t.Errorf("%+v: %v", c, s)
		}
	}
}

// An owner's decode rows are contiguous and prefill rows come last, for any order of the plan.
func TestBatchOrdersRows(t *testing.T) {
	d := Dims{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 64}
	p, err := topology.Place(1, topology.Reduce, topology.Shape{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 64, Vocab: 64,
		FFNUnits: 2, FFNUnitStart: func(u int) int { return 32 * u }}, []topology.Member{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	b := newBatch(d, 16, tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}, nil)
	segs := []Segment{{Seq: 1, N: 4, Prefill: true}, {Seq: 2, N: 1, Owner: 2}, {Seq: 3, N: 1, Owner: 0},
		{Seq: 4, N: 1, Owner: 2}, {Seq: 5, N: 3, Prefill: true}}
	if err := b.Reset(p, 0, segs); err != nil {
		t.Fatal(err)
	}
	for rank, want := range []topology.Range{{Lo: 0, Hi: 1}, {}, {Lo: 1, Hi: 3}} {
		if got := b.decodeRows(rank); got != want {
			t.Errorf("rank %d decodes rows %v, want %v", rank, got, want)
		}
	}
	at := 3
	for _, r := range b.rows {
		if r.Lo != at {
			t.Errorf("prefill rows %v, want to start at %d", r, at)
		}
		at = r.Hi
	}
	if at != b.T || b.T != 10 {
		t.Errorf("%d rows, cut up to %d", b.T, at)
	}
	if err := b.Reset(p, 0, []Segment{{N: 17}}); err == nil {
		t.Error("a step larger than the batch was accepted")
	}
}

// TestScheduleFollowsOwners: a batch that has run a step of one owner's sequences has the same schedules as
// a new one in a step of another owner's. With a single FFN unit one rank computes the columns of
// all heads, and only its own sequences need no exchange.
func TestScheduleFollowsOwners(t *testing.T) {
	d := Dims{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 16,
		Recurrent: states.Shape{Layers: 1, KeyHeads: 2, ValueHeads: 2, KeyDim: 8, ValueDim: 8, Taps: 4},
		Delta:     recurrent.Mixer{Kind: recurrent.GatedDelta, KeyHeads: 2, ValueHeads: 2, KeyDim: 8, ValueDim: 8, Taps: 4}}
	p, err := topology.Place(1, topology.Gather, topology.Shape{Hidden: 32, Heads: 4, KVHeads: 2, HeadDim: 8, FFN: 16, Vocab: 64,
		FFNUnits: 1, FFNUnitStart: func(u int) int { return 16 * u }}, make([]topology.Member, 3))
	if err != nil {
		t.Fatal(err)
	}
	fresh := func() *Batch { return newBatch(d, 16, tensor.KVLayout{Type: tensor.F32, KDim: 8, VDim: 8}, nil) }
	used, exchanges := fresh(), map[int]bool{}
	for _, owner := range []int{0, 1, 2, 0, 2, 1, 0} {
		b := fresh()
		for _, x := range []*Batch{used, b} {
			if err := x.Reset(p, 0, []Segment{{Seq: 1, N: 1, Owner: owner}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, k := range []Kind{{Recurrent: true}, {KVComputed: true}, {VFromK: true}, {}} {
			got, want := used.scheduleOf(k, false), b.scheduleOf(k, false)
			if !slices.Equal(got.exchanges, want.exchanges) {
				t.Errorf("owner %d, %+v: exchanges %v, a new batch has %v", owner, k, got.exchanges, want.exchanges)
			}
			if k.Recurrent {
				exchanges[len(want.exchanges)] = true
			}
		}
	}
	if len(exchanges) != 2 {
		t.Errorf("all owners need the same number of exchanges: %v", exchanges)
	}
}
