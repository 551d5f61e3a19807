package batcher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/layered"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/states"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// hidden is the width of the residual stream of the test model.
var hidden = 8

// reserveSweep takes the memory of a sweep.
func (c *cluster) reserveSweep(w *plan.Sweep) {
	q := c.seqs[w.Seq]
	first, end := len(q.open.Prefix), w.Start+len(w.Tokens)
	at := q.next
	if w.From > 0 && w.Start == first {
		at = first
	}
	if q.open.PassRows == 0 || w.Start != at || w.From != q.from || w.To > geometry.Layers ||
		w.From < geometry.Later && w.To > geometry.Later || end < q.open.Read && len(w.Tokens)%q.open.PassRows != 0 {
		c.t.Fatalf("%s: tokens [%d,%d) through layers [%d,%d), it is at token %d of layer %d", q.open.ID,
			w.Start, end, w.From, w.To, q.next, q.from)
	}
	for rank, part := range q.parts {
		if w.Start == first {
			part.Enter(tensor.Span{Lo: w.From, Hi: w.To}, first)
			var err error
			needs := kvcache.Needs{PromptAttention: q.open.Policy.Needs.PromptAttention}
			q.seen[rank], err = kvcache.NewObservation(c.arenas[rank], layered.Only(geometry, w.From, w.To), c.spans[rank], needs, q.open.Read)
			c.must(err, "observation of layers of %s", q.open.ID)
		}
		c.must(part.Reserve(end), "sweep at %d on rank %d", w.Start, rank)
	}
	if end == q.open.Read && w.From == 0 {
		c.openCache(q, q.open.Owner)
	}
}

// sweep reads tokens with some layers. It returns the sample after the last layer.
func (c *cluster) sweep(w *plan.Sweep, requests map[string]*Spec) *Result {
	q := c.seqs[w.Seq]
	if q.next = w.Start; w.From == 0 {
		q.feed(c, requests, w.Start, w.Tokens)
	} else {
		for i, token := range w.Tokens {
			if token != q.text[w.Start+i] {
				c.t.Fatalf("%s: layer %d gets token %d at position %d", q.open.ID, w.From, token, w.Start+i)
			}
		}
		q.next = w.Start + len(w.Tokens)
	}
	for _, part := range q.parts {
		putLayers(part, w.Start, len(w.Tokens), w.From, w.To)
		if w.To == geometry.Layers { // the recurrent layers are among the last
			eachState(part, func(x *states.State) { x.Advanced(w.Start + len(w.Tokens)) })
		}
	}
	c.observeLayers(q, w.Start, len(w.Tokens), w.From, w.To)
	for _, part := range q.parts {
		part.Commit(len(w.Tokens))
	}
	if q.next < q.open.Read {
		return nil
	}
	c.handLayersOver(q, q.open.Owner, w.From, w.To)
	for rank, part := range q.parts {
		q.seen[rank].Release()
		part.Enter(tensor.Span{Lo: w.To, Hi: w.To}, q.next)
	}
	c.swept++
	if q.from = w.To; q.from < geometry.Layers {
		return nil
	}
	c.handedOver(q)
	for _, stream := range q.stream {
		stream.Release()
	}
	if !w.Sample {
		return nil
	}
	r := q.result(w.Seq, q.open.Read)
	return &r
}

// TestEverythingEndsByLayers is TestEverythingEnds with prompts that are read layer by layer, in a model
// with layers that attend to the newest tokens only.
func TestEverythingEndsByLayers(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers, geometry.Windows = 3, []int{0, 40, 0}
	everythingEnds(t)
}

// The same for a model with SwiftKV.
func TestEverythingEndsByLaterLayers(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers, geometry.Later = 4, 2
	everythingEnds(t)
}

// The same for a model with recurrent states.
func TestEverythingEndsByLayersWithStates(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry = recurrent()
	geometry.Layers = 3
	everythingEnds(t)
}

// policy returns the policy of a valid spec.
func policy(t testing.TB, spec string) *kvcache.Policy {
	p, err := kvpolicy.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A prompt is read layer by layer if it does not fit in chunks. It is refused if it fits neither way,
// or if it does not fit in chunks and its policy keeps all tokens.
func TestReadsByLayersIfNeeded(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers = 4
	const tokens = 640
	whole := 4 * 4 * tokens / tensor.BlockSlots * block // chunks
	for _, c := range []struct {
		prefill, policy string
		budget          int64
		want            string
	}{
		{booking.Auto, "snapkv:topk=60,obs=4", 2 * whole, "chunks"},
		{booking.Auto, "snapkv:topk=60,obs=4", whole * 3 / 4, "layers"},
		{booking.Layers, "snapkv:topk=60,obs=4", 2 * whole, "layers"},
		{booking.Chunks, "snapkv:topk=60,obs=4", whole * 3 / 4, "refused"},
		{booking.Auto, "snapkv:topk=60,obs=4", whole / 4, "refused"},
		{booking.Layers, "full", 2 * whole, "chunks"},
		{booking.Auto, "full", whole * 3 / 4, "refused"},
		{booking.Layers, "h2o:recent=20,topk=40", 2 * whole, "layers"},
	} {
		t.Run(fmt.Sprintf("%s %s %d", c.prefill, c.policy, c.budget), func(t *testing.T) {
			s := testState(t, func(cfg *Config) { cfg.Hidden, cfg.Prefill, cfg.Chunk = hidden, c.prefill, 32 })
			out := newClient(t)
			sockets := []Socket{{ID: "a", Budget: c.budget, Heads: tensor.Span{Lo: 0, Hi: 4}}}
			at := newCluster(t, 1, sockets)
			defer at.close()
			s.Step(Placed{Epoch: 1, Sockets: sockets})
			spec := Spec{ID: "r", Prompt: prompt("r", tokens), MaxTokens: 3, Sampling: greedy, PromptLogprobs: -1, Policy: policy(t, c.policy)}
			out.specs["r"] = &spec
			e := s.Step(Submit{spec})
			if refused := len(e.Rejects) > 0; refused != (c.want == "refused") {
				t.Fatalf("refused: %v %+v", refused, e.Rejects)
			} else if refused {
				if why := e.Rejects[0].Message; !strings.Contains(why, "do not fit") {
					t.Error(why)
				}
				return
			}
			steps, peak := 0, int64(0)
			for e.Start != nil {
				if swept := len(e.Start.Sweeps) > 0; swept && c.want != "layers" || len(e.Start.Chunks) > 0 && c.want != "chunks" {
					t.Fatalf("step %d has %d sweeps and %d chunks", e.Start.Step, len(e.Start.Sweeps), len(e.Start.Chunks))
				}
				if len(e.Start.Sweeps)+len(e.Start.Chunks) > 0 {
					steps++
				}
				d := at.run(e.Start, out.specs)
				peak = max(peak, at.arenas[0].Stats().Peak)
				e = s.Step(d)
				out.take(e)
				checkLedger(t, s)
			}
			if out.tokens["r"] != 3 {
				t.Errorf("%d tokens", out.tokens["r"])
			}
			if want := tokens / 32; steps != want {
				t.Errorf("%d steps for the prompt, want %d", steps, want)
			}
			if c.want == "layers" && peak > whole*3/4 {
				t.Errorf("a peak of %d bytes, chunks take %d", peak, whole)
			}
		})
	}
}

// The residual stream goes to files when memory lacks room for it, and to memory if a file fails.
func TestResidualInFiles(t *testing.T) {
	plain, was := geometry, hidden
	defer func() { geometry, hidden = plain, was }()
	geometry.Layers, hidden = 8, 128
	const tokens = 640
	for _, c := range []struct {
		scratch, budget int64
		inFile          bool
	}{{1 << 20, 12 << 10 << 4, true}, {1 << 20, 16 << 10 << 6, false}, {tokens*128*4 - 1, 16 << 10 << 6, false}} {
		s := testState(t, func(cfg *Config) { cfg.Hidden, cfg.Prefill, cfg.Chunk = hidden, booking.Layers, 32 })
		out := newClient(t)
		sockets := []Socket{{ID: "a", Budget: c.budget, Heads: tensor.Span{Lo: 0, Hi: 4}, Scratch: c.scratch}}
		at := newCluster(t, 1, sockets)
		defer at.close()
		s.Step(Placed{Epoch: 1, Sockets: sockets})
		spec := Spec{ID: "r", Prompt: prompt("r", tokens), MaxTokens: 3, Sampling: greedy, PromptLogprobs: -1,
			Policy: policy(t, "snapkv:topk=60,obs=4")}
		out.specs["r"] = &spec
		e := s.Step(Submit{spec})
		if e.Start == nil || e.Start.Open[0].InFile != c.inFile {
			t.Fatalf("with %d bytes of memory and %d of files: %+v", c.budget, c.scratch, e)
		}
		for lost := 0; e.Start != nil; {
			e = s.Step(at.run(e.Start, out.specs))
			out.take(e)
			checkLedger(t, s)
			if at.lost > lost { // it waits until the disk may work again
				if lost = at.lost; e.Start != nil {
					t.Error("a step starts while files fail")
				}
				e = s.Step(Tick{s.now + filesRest - 1})
				if e.Start == nil {
					e = s.Step(Tick{s.now + 1})
				} else {
					t.Error("a step starts too early")
				}
			}
		}
		if out.tokens["r"] != 3 {
			t.Errorf("%d tokens", out.tokens["r"])
		}
		if c.inFile && at.lost == 0 {
			t.Error("no file was lost")
		}
		if files := s.ledger.sockets[0].files; files != 0 {
			t.Errorf("%d bytes of files are booked", files)
		}
	}
}

// A prompt begins with blocks of the prefix cache in every layer, and leaves none.
func TestLayersBeginWithAPrefix(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers = 3
	s := testState(t, func(cfg *Config) { cfg.Hidden, cfg.Chunk = hidden, 32 })
	out := newClient(t)
	sockets := []Socket{{ID: "a", Budget: 1 << 24, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	at := newCluster(t, 1, sockets)
	defer at.close()
	s.Step(Placed{Epoch: 1, Sockets: sockets})
	for i, spec := range []Spec{
		{ID: "in chunks", Prompt: prompt("a text", 300), Policy: policy(t, "full")},
		{ID: "by layers", Prompt: prompt("a text", 500), Policy: policy(t, "snapkv:topk=60,obs=4")},
		{ID: "later", Prompt: prompt("a text", 500), Policy: policy(t, "full")},
	} {
		s.ledger.prefill.Mode = []string{booking.Chunks, booking.Layers, booking.Chunks}[i]
		spec.MaxTokens, spec.Sampling, spec.PromptLogprobs = 2, greedy, -1
		out.specs[spec.ID] = &spec
		e := s.Step(Submit{spec})
		if got := len(e.Start.Open[0].Prefix); i > 0 && got != 256 {
			t.Errorf("%s: begins with %d tokens of the cache", spec.ID, got)
		}
		if swept := e.Start.Open[0].PassRows > 0; swept != (i == 1) {
			t.Errorf("%s: layer by layer is %v", spec.ID, swept)
		}
		for e.Start != nil {
			e = s.Step(at.run(e.Start, out.specs))
			out.take(e)
			checkLedger(t, s)
		}
		if out.tokens[spec.ID] != 2 {
			t.Errorf("%s: %d tokens", spec.ID, out.tokens[spec.ID])
		}
	}
}

// TestStreamsBesideLayers: while a long prompt is read layer by layer, each step has a row of every stream, and no
// more of the prompt than a chunk has. So streams wait for no more work, and the prompt takes as many steps as in chunks,
// and at most one more for each layer.
func TestStreamsBesideLayers(t *testing.T) {
	plain := geometry
	defer func() { geometry = plain }()
	geometry.Layers = 6
	const streams, tokens, chunk, budget = 8, 1600, 32, 64
	steps := map[string]int{}
	for _, mode := range []string{booking.Chunks, booking.Layers} {
		s := testState(t, func(c *Config) {
			c.Hidden, c.Prefill, c.Chunk, c.TokenBudget, c.MaxRunning, c.NoPrefixCache = hidden, mode, chunk, budget, 2*streams, true
			c.ContextLimit, c.DecodeSteps = 2000, 1
		})
		out := newClient(t)
		sockets := []Socket{{ID: "a", Budget: 1 << 26, Heads: tensor.Span{Lo: 0, Hi: 4}}}
		at := newCluster(t, 1, sockets)
		e := s.Step(Placed{Epoch: 1, Sockets: sockets})
		submit := func(id string, n, answer int) {
			spec := Spec{ID: id, Prompt: prompt(id, n), MaxTokens: answer, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true,
				Policy: policy(t, "snapkv:topk=60,obs=4"), Speculate: "off"}
			out.specs[id] = &spec
			if more := s.Step(Submit{spec}); more.Start != nil {
				e = more
			}
		}
		for i := range streams {
			submit(fmt.Sprint(i), 10, 300)
		}
		for n := 0; out.tokens["long"] == 0; n++ {
			if n == 20 { // all streams decode
				submit("long", tokens, 1)
			}
			if e.Start == nil || n > 300 {
				t.Fatalf("%s: stuck: %+v", mode, s.Snapshot())
			}
			rows := 0 // of the long prompt, through all layers
			for _, w := range e.Start.Sweeps {
				rows += len(w.Tokens) * (w.To - w.From)
			}
			for _, c := range e.Start.Chunks {
				rows += len(c.Tokens) * geometry.Layers
			}
			if n > 20 && rows > 0 {
				if steps[mode]++; len(e.Start.Decode) != streams || rows > chunk*geometry.Layers {
					t.Fatalf("%s, step %d: %d of %d streams have a row, %d rows of the prompt pass a layer, a chunk has %d", mode, e.Start.Step,
						len(e.Start.Decode), streams, rows, chunk*geometry.Layers)
				}
			}
			e = s.Step(at.run(e.Start, out.specs))
			out.take(e)
			checkLedger(t, s)
		}
		at.close()
	}
	t.Log(steps)
	if steps[booking.Chunks] != tokens/chunk || steps[booking.Layers] > tokens/chunk+geometry.Layers {
		t.Errorf("steps of the prompt: %v", steps)
	}
}
