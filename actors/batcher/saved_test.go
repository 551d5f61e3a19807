package batcher

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// idleFiles simulates the files of idle caches of all sockets, with the orders that are not answered.
type idleFiles struct {
	files   map[string]map[saved.Key]idleFile // by ID of the socket
	pending []saved.Order
	loads   int
	drops   int
	hangs   bool             // writes are not answered
	deaf    bool             // files are not removed
	lacks   map[string]int64 // sizes of files for which a socket has no room, by ID
	writes  int              // orders to write
}

type idleFile struct {
	saved.Cache
	policy *kvcache.Policy
	rows   []byte
}

func newIdleFiles() *idleFiles { return &idleFiles{files: map[string]map[saved.Key]idleFile{}} }

func (f *idleFiles) ask(s *State, at *cluster, orders []saved.Order) {
	for _, o := range orders {
		switch o.Do {
		case saved.Load:
			at.released[o.Seq] = true // it may be released before its rows arrive
		case saved.Write:
			f.writes++
		}
		if o.Do == saved.Write && o.Cache.Digest != [32]byte{} {
			at.t.Fatalf("the state hashed %d tokens, which takes long", o.Cache.Tokens)
		}
		o.Identify()
		f.pending = append(f.pending, o)
		if o.Do != saved.Drop {
			continue
		}
		if f.drops++; f.deaf {
			continue
		}
		for _, rank := range o.Ranks {
			delete(f.files[s.ledger.sockets[rank].ID], o.Key)
		}
	}
}

// answer answers the oldest order as sockets do, or with an error if fails is set.
func (f *idleFiles) answer(s *State, at *cluster, fails bool) (d saved.Done, ok bool) {
	next := slices.IndexFunc(f.pending, func(o saved.Order) bool { return !f.hangs || o.Do != saved.Write })
	if next < 0 {
		return d, false
	}
	o := f.pending[next]
	f.pending = slices.Delete(f.pending, next, next+1)
	if d.Number = o.Number; o.Epoch != at.epoch || !s.placed || fails {
		d.Err = "it fails"
		return d, true
	}
	id := func(rank int) string { return s.ledger.sockets[rank].ID }
	q := at.seqs[o.Seq]
	switch o.Do {
	case saved.Drop:
		if f.deaf {
			d.Err = "it fails"
		}
	case saved.Find:
		for _, rank := range o.Ranks {
			if x, ok := f.files[id(rank)][o.Key]; ok {
				d.Found = append(d.Found, saved.Found{Rank: rank, Cache: x.Cache})
			}
		}
		d.Found = o.Text.Beginnings(d.Found)
	case saved.Write:
		if d.Lacks = f.lacks[id(o.Ranks[0])]; d.Lacks > 0 {
			d.Err = "no room"
			break
		}
		if q == nil || q.own == nil || !q.own.Sealed() { // the next turn has it, or it was released
			d.Err = "it is gone"
			break
		}
		n := o.Cache.Tokens - q.own.Tokens()
		if n < 0 || n > q.own.Staged() || o.Cache.Prompt != q.own.Prompt() {
			at.t.Fatalf("%s is idle with %d tokens after %d, the cache has %d and %d after %d", q.open.ID, o.Cache.Tokens, o.Cache.Prompt,
				q.own.Tokens(), q.own.Staged(), q.own.Prompt())
		}
		q.own.Commit(n)
		if q.copy != nil {
			q.copy.Commit(n)
		}
		x := idleFile{Cache: o.Cache, policy: q.open.Policy}
		for layer := range geometry.Layers + geometry.Recurrent.Layers {
			var err error
			x.rows, err = q.own.LayerBlock(layer, q.own.Tokens()).Append(x.rows, q.own)
			at.must(err, "rows of an idle cache")
		}
		if f.files[id(o.Ranks[0])] == nil {
			f.files[id(o.Ranks[0])] = map[saved.Key]idleFile{}
		}
		f.files[id(o.Ranks[0])][o.Key] = x
	case saved.Load:
		f.load(s, at, o, &d)
	}
	return d, true
}

func (f *idleFiles) load(s *State, at *cluster, o saved.Order, d *saved.Done) {
	x, ok := f.files[s.ledger.sockets[o.Ranks[0]].ID][o.Key]
	name, prompt := "", 0
	for _, r := range s.running {
		if r.seq == o.Seq {
			name, prompt = r.ID, len(r.Prompt)
		}
	}
	switch {
	case name == "": // it was released
		d.Err = "it was released"
		return
	case !ok || x.Cache != o.Cache || x.policy.Spec() != o.Text.Policy:
		d.Err = "another cache"
		return
	}
	own := kvcache.NewStore(at.arenas[o.Ranks[0]], geometry, x.policy)
	own.Score = tensor.Score{Scale: 1}
	if err := own.OpenMoved(x.Prompt, x.Tokens); err != nil { // the step that frees the memory has not run
		d.Err = err.Error()
		return
	}
	rows := x.rows
	for layer := range geometry.Layers + geometry.Recurrent.Layers {
		var err error
		rows, err = own.LayerBlock(layer, x.Tokens).Store(rows, own)
		at.must(err, "rows of a file")
	}
	at.must(own.Seal(), "seal of a file")
	at.seqs[o.Seq] = &sequence{open: plan.Open{ID: name, Policy: x.policy, Read: x.Prompt}, own: own, owner: o.Ranks[0], replica: none,
		prompt: prompt, held: true}
	f.loads++
}

// idleRig runs turns of sessions on a simulated cluster with files.
type idleRig struct {
	t       *testing.T
	s       *State
	out     *client
	at      *cluster
	sockets []Socket
	files   *idleFiles
	flight  *plan.Plan
	now     int64
	texts   map[string][]int32
	policy  *kvcache.Policy
	rows    int  // tokens of decode rows since the last turn began
	broken  bool // files cannot be written or read
}

func newIdleRig(t *testing.T, sockets []Socket) *idleRig {
	t.Helper()
	endless, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	g := &idleRig{t: t, out: newClient(t), sockets: sockets, files: newIdleFiles(), texts: map[string][]int32{}, policy: endless,
		s: testState(t, func(c *Config) { c.MaxRunning, c.NoPrefixCache, c.Identity = 4, true, "a model" })}
	g.at = newCluster(t, 1, sockets)
	t.Cleanup(func() { g.at.close() })
	g.step(Placed{Epoch: 1, Sockets: sockets})
	return g
}

func (g *idleRig) step(in Input) {
	e := g.s.Step(in)
	g.files.ask(g.s, g.at, e.Saved)
	g.out.take(e)
	g.at.release(e.Release)
	checkLedger(g.t, g.s)
	if e.Start != nil {
		g.flight = e.Start
	}
	for _, r := range e.Rejects {
		g.t.Fatalf("%+v", r)
	}
}

// advance answers an order, or runs the step in flight, or advances the clock by 100 ms.
func (g *idleRig) advance() {
	g.t.Helper()
	if d, ok := g.files.answer(g.s, g.at, g.broken); ok {
		g.step(d)
		return
	}
	if p := g.flight; p != nil {
		g.flight = nil
		for _, d := range p.Decode {
			g.rows += len(d.Tokens)
		}
		g.step(g.at.run(p, g.out.specs))
		return
	}
	g.now += 100
	g.step(Tick{g.now})
}

// rest advances 40 times, which is enough for the caches of ended turns to be written.
func (g *idleRig) rest() {
	g.t.Helper()
	for range 40 {
		g.advance()
	}
}

func (g *idleRig) turn(session string, added int) {
	g.t.Helper()
	spec := Spec{ID: fmt.Sprint(session, len(g.texts[session])), Session: session, SessionMillis: 1 << 40,
		Prompt:    append(slices.Clone(g.texts[session]), prompt(session, added)...),
		MaxTokens: 20, Policy: g.policy, Context: 50, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
	g.out.specs[spec.ID] = &spec
	g.rows = 0
	g.step(Submit{spec})
	for steps := 0; g.out.finished[spec.ID].ID == ""; steps++ {
		if steps > 1000 {
			g.t.Fatalf("%s has not ended after %d steps: %+v", spec.ID, steps, g.s.Snapshot())
		}
		g.advance()
	}
	if f := g.out.finished[spec.ID]; f.Reason != ReasonLength {
		g.t.Fatalf("%+v", f)
	}
	g.texts[session] = spec.Prompt
	for k := range 20 {
		g.texts[session] = append(g.texts[session], modelToken(spec.ID, k))
	}
}

// place begins an epoch. from has the rank of each socket in the last epoch, or none.
func (g *idleRig) place(sockets []Socket, from ...int) {
	g.t.Helper()
	next, held := g.at.inherit(g.at.epoch+1, sockets, from)
	g.at, g.flight, g.sockets = next, nil, sockets
	g.step(Placed{Epoch: next.epoch, Sockets: sockets, Held: held})
}

// TestIdleCachesInFiles: memory has room for one of two sessions' caches. Each turn loads its cache from a
// file, and computes only its new tokens. The files survive the loss of all memory. After the loss of a node
// with a file, and after the loss of a file, a turn reads its text. The end of a session drops its files.
func TestIdleCachesInFiles(t *testing.T) {
	endless, err := kvpolicy.Parse("streaming:sink=4,recent=60,positions=cache")
	if err != nil {
		t.Fatal(err)
	}
	one := kvcache.ResidentBytes(geometry, 50, 80, endless)
	node := func(id string, lo, hi int) Socket {
		return Socket{ID: id, Budget: one + one/2, Heads: tensor.Span{Lo: lo, Hi: hi}, Scratch: 1 << 30}
	}
	g := newIdleRig(t, []Socket{node("a", 0, 4)})
	reads := func(session string, added, before, loads int) {
		t.Helper()
		g.files.loads = 0
		g.turn(session, added)
		if g.rows > before || g.files.loads != loads {
			t.Fatalf("%s: %d decode rows, want at most %d; %d loads, want %d", session, g.rows, before, g.files.loads, loads)
		}
	}
	g.turn("s", 50)
	g.turn("t", 50) // at once: the cache of s is written before its memory is used
	if g.s.totals.Saved == 0 {
		t.Fatal("the memory of an idle cache was freed before the cache was in a file")
	}
	for range 3 {
		reads("s", 10, 10+2*20, 1)
		reads("t", 10, 10+2*20, 1)
	}
	if g.s.totals.LoadErrors > 0 || g.s.totals.Loaded != 6 {
		t.Fatalf("%+v", g.s.totals)
	}

	// All memory is lost, and ranks change.
	g.rest()
	g.place([]Socket{node("b", 0, 2), node("a", 2, 4)}, none, none)
	reads("s", 10, 10+2*20, 1)
	reads("t", 10, 10+2*20, 1)

	// The node with the files is lost.
	g.rest()
	for id := range g.files.files {
		delete(g.files.files, id)
	}
	g.place([]Socket{node("c", 0, 4)}, none)
	before := len(g.texts["s"])
	reads("s", 10, before, 0)
	if g.rows < before-50 {
		t.Fatalf("%d decode rows of %d tokens without a file, want at least %d", g.rows, before, before-50)
	}
	reads("t", 10, len(g.texts["t"])+30, 0)

	// A file cannot be read: the turn reads its text.
	g.rest()
	g.turn("u", 50)
	key := saved.NewKey("a model", "s")
	x, ok := g.files.files["c"][key]
	if !ok {
		t.Fatalf("%v have files", slices.Collect(maps.Keys(g.files.files["c"])))
	}
	x.policy = kvcache.Full()
	g.files.files["c"][key] = x
	reads("s", 10, len(g.texts["s"])+30, 0)
	if g.s.totals.LoadErrors != 1 {
		t.Fatalf("%+v", g.s.totals)
	}

	// A file of other tokens is not used.
	g.rest()
	g.turn("u", 10)
	g.texts["s"][60]++
	reads("s", 10, len(g.texts["s"])+30, 0)

	g.rest()
	g.turn("u", 10)
	if _, ok := g.files.files["c"][key]; !ok {
		t.Fatal("the session has no file")
	}
	g.step(EndSession{"s"})
	if _, ok := g.files.files["c"][key]; ok || g.files.drops == 0 {
		t.Fatal("a session that has ended has a file")
	}

	// With a broken disk, turns run as without files.
	g.broken = true
	g.turn("v", 50)
	g.rest()
	g.turn("w", 50)
	reads("v", 10, len(g.texts["v"])+30, 0)
}

// TestSharedIdleCachesAreSaved: idle caches that share the memory of their first tokens go to files.
func TestSharedIdleCachesAreSaved(t *testing.T) {
	const first = 200
	s := testState(t, func(c *Config) {
		c.TokenBudget, c.Chunk, c.Replicas, c.NoPrefixCache, c.IdleMillis = 400, 200, 0, true, 10
	})
	out := newClient(t)
	sockets := []Socket{{ID: "a", Budget: 1 << 24, Heads: tensor.Span{Lo: 0, Hi: geometry.KVHeads}, Scratch: 1 << 30}}
	at := newCluster(t, 1, sockets)
	defer func() { at.close() }()
	out.take(s.Step(Placed{Epoch: 1, Sockets: sockets}))
	files, written := newIdleFiles(), map[saved.Key]bool{}
	handle := func(e Effects) {
		for {
			out.take(e)
			at.release(e.Release)
			for _, o := range e.Saved {
				if o.Do == saved.Write {
					written[o.Key] = true
				}
			}
			files.ask(s, at, e.Saved)
			if e.Start != nil {
				e = s.Step(at.run(e.Start, out.specs))
				continue
			}
			d, ok := files.answer(s, at, false)
			if !ok {
				return
			}
			e = s.Step(d)
		}
	}
	for i, session := range []string{"x", "y"} { // y has no cache, and begins as a fork of x
		spec := Spec{ID: session, Prompt: append(slices.Clone(prompt("a text", first)), prompt(fmt.Sprint(i), 10*i)...), MaxTokens: 8,
			Policy: squeezed, Context: first, Session: session, SessionMillis: 1 << 30, Sampling: greedy, PromptLogprobs: -1, IgnoreEOS: true}
		out.specs[spec.ID] = &spec
		handle(s.Step(Submit{spec}))
	}
	if at.forks != 1 {
		t.Fatalf("%d forks", at.forks)
	}
	clear(written)
	handle(s.Step(Tick{1000}))
	handle(s.Step(Tick{2000}))
	if len(written) != 2 {
		t.Errorf("%d of two caches that share their first tokens were written to files", len(written))
	}
}
