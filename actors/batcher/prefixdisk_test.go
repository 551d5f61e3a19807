package batcher

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/prefix"
	"github.com/shoal-llm/shoal/actors/batcher/textkeys"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/rowblock"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// disks simulates the disks of all sockets: the texts of saved blocks by key, and the unanswered
// requests.
type disks struct {
	texts  map[plan.Key][]int32
	states map[plan.Key]bool // the texts with a snapshot
	asked  []Disk
	late   []Disk          // requests that may arrive at the sockets after the next step
	coming map[uint64]bool // blocks that were requested and not evicted since
	came   int
}

// wrote saves the blocks of a plan, except some that the disk was too slow for.
func (k *disks) wrote(at *cluster, rng *rand.Rand, keys []plan.Key, blocks []uint64) {
	for i, id := range blocks {
		if text := at.texts[id]; text != nil && len(keys) > 0 && rng.IntN(20) > 0 {
			k.texts[keys[i+1]] = slices.Clone(text)
		}
	}
}

// wroteState saves the snapshot of a run, unless the disk was too slow for it.
func (k *disks) wroteState(rng *rand.Rand, c *plan.Run) {
	if c.Snapshot && len(c.Keys) > 0 && rng.IntN(20) > 0 {
		if k.states == nil {
			k.states = map[plan.Key]bool{}
		}
		k.states[c.Keys[len(c.Keys)-1]] = true
	}
}

// hasStates reports whether a prompt can start after a text in files.
func (k *disks) hasStates(key plan.Key) bool {
	return geometry.Recurrent.Layers == 0 || k.states[key]
}

// ask sends requests. Some arrive after the step that begins at the same time.
func (k *disks) ask(all []Disk) {
	for _, d := range all {
		k.asked = append(k.asked, d)
		if k.late = append(k.late, d); d.Number%4 < 2 {
			k.hear(0)
		}
	}
}

// hear delivers late requests to sockets that have begun a step. The sockets ignore requests that
// were made before that step.
func (k *disks) hear(step uint64) {
	for _, d := range k.late {
		for _, id := range d.Blocks {
			if d.Step >= step {
				k.coming[id] = true
			}
		}
	}
	k.late = nil
}

// begin begins a step on the sockets.
func (k *disks) begin(p *plan.Plan) {
	k.evict(p.Evict)
	k.evict(p.DropExtras)
	k.hear(p.Step)
}

func (k *disks) evict(blocks []uint64) {
	for _, id := range blocks {
		delete(k.coming, id)
	}
}

// forget ends an epoch.
func (k *disks) forget() { k.asked, k.late, k.coming = nil, nil, map[uint64]bool{} }

// answer answers one of the requests with all, some or none of the blocks.
func (k *disks) answer(at *cluster, rng *rand.Rand) (DiskDone, bool) {
	if len(k.asked) == 0 {
		return DiskDone{}, false
	}
	k.hear(0)
	i := rng.IntN(len(k.asked))
	d := k.asked[i]
	k.asked = slices.Delete(k.asked, i, i+1)
	done := DiskDone{Number: d.Number}
	most := len(d.Keys)
	if rng.IntN(4) == 0 {
		most = rng.IntN(most + 1)
	}
	if d.Seq != 0 {
		done.Blocks = k.fetch(at, &d, most)
		return done, true
	}
	before := k.texts[d.Before]
	for i, name := range d.Keys[:most] {
		text := k.texts[name]
		if text == nil || d.From+i > 0 && before != nil && !slices.Equal(text[:len(before)], before) {
			break
		}
		before = text
		last := i == len(d.Blocks)-1
		if len(d.Blocks) > 0 && (last && !k.hasStates(name) || !k.arrives(at, d.Blocks[i], d.From+i, text, last)) {
			break
		}
		done.Blocks++
	}
	for len(d.Blocks) == 0 && done.Blocks > 0 && !k.hasStates(d.Keys[done.Blocks-1]) {
		done.Blocks--
	}
	return done, true
}

// fetch brings at most this number of blocks from the owner of an ended sequence, and returns their number.
func (k *disks) fetch(at *cluster, d *Disk, most int) (n int) {
	q := at.seqs[d.Seq]
	if q != nil {
		q.settleLast((d.From + len(d.Blocks)) * tensor.BlockSlots)
	}
	for ; n < most && q != nil; n++ {
		block := d.From + n
		states := geometry.Recurrent.Layers > 0 && n == len(d.Blocks)-1
		if _, err := q.own.AppendCopy(nil, block); states && err != nil {
			at.t.Fatalf("%s: %v", q.open.ID, err)
		}
		if !k.arrives(at, d.Blocks[n], block, q.text[:(block+1)*tensor.BlockSlots], states) {
			break
		}
	}
	return n
}

// zeroRows is a cache of zeros.
type zeroRows struct{ kvcache.Geometry }

func (z zeroRows) ReadRows(dst []byte, b rowblock.Block) ([]byte, error) {
	return append(dst, make([]byte, b.Bytes(z)-rowblock.HeaderBytes)...), nil
}

// arrives stores a block in the arenas. If its reserved memory is not free yet, the block is a miss.
func (k *disks) arrives(at *cluster, id uint64, number int, text []int32, states bool) bool {
	if !k.coming[id] {
		return false
	}
	if at.blocks[id] != nil { // a prompt has written it meanwhile
		return !states || k.statesArrive(at, at.blocks[id], number)
	}
	var all []*kvcache.Segment
	for i, a := range at.arenas {
		var rows []byte
		for head := at.spans[i].Lo; head < at.spans[i].Hi; head++ {
			rows, _ = geometry.SegmentBlock(head, number).Append(rows, zeroRows{geometry})
		}
		seg, err := kvcache.NewSegment(a, geometry, at.spans[i], number, rows)
		if err != nil {
			for _, seg := range all {
				seg.Release()
			}
			return false
		}
		all = append(all, seg)
	}
	if states && !k.statesArrive(at, all, number) {
		for _, seg := range all {
			seg.Release()
		}
		return false
	}
	at.blocks[id], at.texts[id] = all, text
	k.came++
	return true
}

// statesArrive stores the snapshot of a block in all arenas, or in none if one lacks memory.
func (k *disks) statesArrive(at *cluster, all []*kvcache.Segment, number int) bool {
	for i, seg := range all {
		var rows []byte
		for head := at.spans[i].Lo; head < at.spans[i].Hi; head++ {
			rows, _ = geometry.StatesBlock(head, number).Append(rows, zeroRows{geometry})
		}
		if geometry.Recurrent.Layers == 0 || seg.HasStates() {
			continue
		}
		if seg.WriteStates(rows) != nil {
			for _, seg := range all[:i] {
				seg.DropExtras()
			}
			return false
		}
	}
	return true
}

// textBlocks returns the blocks of the prefix cache.
func (s *State) textBlocks() map[plan.Key]*prefix.Block { return s.prefix.tree.Blocks() }

// pinned counts, for each block, the fetches that hold it or wait for it.
func (s *State) pinned() map[*prefix.Block]int32 {
	held := map[*prefix.Block]int32{}
	for _, f := range s.prefix.fetches.List {
		for _, b := range slices.Concat(f.Chain, f.Coming) {
			held[b]++
		}
	}
	return held
}

// absent returns the bytes of reserved blocks that have not arrived on a socket, and the bytes that
// only waiting requests have.
func (k *disks) absent(s *State, at *cluster, rank int) (booked, alone int64) {
	a := &s.ledger.sockets[rank]
	for b, n := range s.pinned() {
		if arrived := at.blocks[b.ID]; b.Extras != 0 && b.Extras != b.Written && (arrived == nil || !arrived[rank].HasStates()) {
			bytes := s.prefix.tree.ExtrasBytes(b, b.Extras&^b.Written, rank)
			booked, alone = booked+bytes, alone-bytes
		}
		if at.blocks[b.ID] == nil {
			booked += a.Block + a.Window
		} else if b.Pins[rank] == n {
			alone += a.Block
		}
	}
	for _, b := range s.textBlocks() { // a prompt writes it and counts it as its own
		if !b.Ready && at.blocks[b.ID] == nil && s.pinned()[b] == 0 {
			booked += a.Block + a.Window
		}
	}
	return booked, alone
}

// A fetch that is cancelled in the same Step is not sent. Otherwise a socket could get it after the
// step that drops the blocks, would keep them, and a later step would lack the memory.
func TestGivenUpAsAsked(t *testing.T) {
	s := testState(t, func(c *Config) { c.TokenBudget, c.Chunk, c.MaxRunning = 300, 128, 4 })
	out := newClient(t)
	at := newCluster(t, 1, []Socket{{ID: "n", Budget: 20 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}})
	defer at.close()
	disk := &disks{texts: map[plan.Key][]int32{}}
	disk.forget()
	var flight *plan.Plan
	dropped := 0
	step := func(in Input) {
		e := s.Step(in)
		out.take(e)
		checkLedger(t, s)
		disk.asked, disk.late = append(disk.asked, e.Disk...), append(disk.late, e.Disk...)
		if e.Start != nil {
			flight = e.Start
		}
	}
	submit := func(id string, tokens, most int) {
		spec := &Spec{ID: id, Prompt: prompt(id, tokens), MaxTokens: most, Sampling: greedy, PromptLogprobs: -1, Policy: kvcache.Full()}
		out.specs[id] = spec
		step(Submit{*spec})
	}
	run := func() {
		p := flight
		flight = nil
		disk.begin(p)
		dropped += len(p.Evict)
		step(at.run(p, out.specs))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	answer := func() {
		if d, ok := disk.answer(at, rng); ok {
			step(d)
		}
	}
	step(Placed{Epoch: 1, Sockets: []Socket{{ID: "n", Budget: 20 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}, Disk: true})
	submit("b", 60, 20)
	submit("c", 61, 20)
	for range 4 {
		run()
	}
	tokens := prompt("a", 140)
	a := &prefix.Text{Text: textkeys.Text{Adapter: lora.ID{}.Bytes(), Token: func(pos int) int32 { return tokens[pos] }}}
	for i := range 2 {
		disk.texts[s.prefix.tree.Key(a, i)] = tokens[:(i+1)*tensor.BlockSlots]
	}
	submit("a", 140, 2)
	step(DiskDone{Number: disk.asked[0].Number, Blocks: 2})
	disk.asked = nil
	run() // the memory of both blocks is booked, and b and c grow into it
	run()
	for range len(disk.asked) {
		answer()
	}
	if dropped != 2 || disk.came != 0 {
		t.Errorf("%d blocks were dropped and %d came: 2 had to be cancelled", dropped, disk.came)
	}
	for !s.Idle() {
		run()
	}
}
