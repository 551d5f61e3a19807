package batcher

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-llm/shoal/actors/batcher/prefillgroup"
	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// saves is the module for caches of idle sessions in files. The owner of an idle cache writes it to a file
// after a short time, or at once when memory is short. The memory can then be freed without loss. The next
// turn requests from all sockets the newest cache of its session, unless one waits in memory. If a socket has
// one, it becomes the owner: the batcher books the bytes before the rows are read. The rows after it come as
// decode rows, as with a cache in memory. So a cache in a file survives its epoch, and the coordinator. If
// its node is lost, or the file is damaged, the turn reads its text.
type saves struct {
	s     *State
	last  uint64                 // number of the newest order
	turns map[uint64]*request    // that wait for an answer, by number of the order
	idle  map[uint64]*request    // whose caches are written
	slow  map[string]*saved.Disk // by ID of the socket, also of one that is not in this epoch while memory does not wait for it
	stale saved.Stale
}

const (
	findMillis = 1000 // limit of a lookup, which reads no file
	roomMillis = 5000 // maximum time that a request waits for memory of idle caches until they are in files
	maxWrites  = 4    // caches that a socket has orders for at once
)

// plan writes idle caches to files, and looks for those of waiting turns.
func (x *saves) plan() {
	x.dropStale()
	for _, r := range slices.Backward(x.s.running) { // the oldest first
		if x.savable(r) && (x.s.now >= r.idleSince+x.s.cfg.IdleMillis || x.short(r.owner)) {
			x.write(r)
		}
	}
	for _, r := range x.s.waiting {
		if r.saved.Away() && x.s.now >= r.saved.Until {
			r.saved.Phase = saved.None
		}
		if r.Session == "" || r.saved.Phase != saved.Undecided || r.NoCache || r.unfit != "" || r.idle || r.remote.Pending() ||
			r.Policy.RebuildsByPrefill() || x.s.sessions.source(r) != nil {
			continue
		}
		ranks := x.disks()
		if len(ranks) == 0 || !r.saved.Search(x.last+1, x.s.now+2*findMillis) {
			r.saved.Phase = saved.None
			continue
		}
		x.last++
		x.turns[x.last] = r
		x.order(saved.Order{Do: saved.Find, Number: x.last, Key: x.key(r.Session), Ranks: ranks, Text: r.text(),
			Millis: findMillis})
	}
}

func (x *saves) order(o saved.Order) {
	o.Epoch = x.s.epoch
	x.s.out.Saved = append(x.s.out.Saved, o)
}

func (x *saves) key(session string) saved.Key { return saved.NewKey(x.s.cfg.Identity, session) }

// disks returns the ranks of the sockets with a scratch folder.
func (x *saves) disks() (ranks []int) {
	for i := range x.s.ledger.sockets {
		if x.s.ledger.sockets[i].Scratch > 0 {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// disk returns the state of a socket's disk.
func (x *saves) disk(rank int) *saved.Disk {
	id := x.s.ledger.sockets[rank].ID
	if x.slow == nil {
		x.slow = map[string]*saved.Disk{}
	}
	if x.slow[id] == nil {
		x.slow[id] = &saved.Disk{}
	}
	return x.slow[id]
}

// short reports whether less than 1/memoryShort of a socket's budget is free.
func (x *saves) short(rank int) bool {
	a := &x.s.ledger.sockets[rank]
	return a.room() < a.Budget/memoryShort
}

// savable reports whether the cache of a request is idle and can go to a file. One with rows in a file has
// little memory, and stays.
func (x *saves) savable(r *request) bool {
	return r.idle && r.phase == decoding && r.resides.file.blocks == 0 && x.s.ledger.sockets[r.owner].Scratch > 0 &&
		x.s.now < r.until
}

// free returns the bytes of a disk that running sequences do not use. Older caches of idle sessions are removed for a
// new one.
func (x *saves) free(rank int) int64 {
	a := &x.s.ledger.sockets[rank]
	return a.Scratch - a.files
}

// orders returns the number of caches that a socket has orders to write.
func (x *saves) orders(rank int) (n int) {
	for number, r := range x.idle {
		if r.write.Number == number && r.owner == rank {
			n++
		}
	}
	return n
}

// write orders the owner to write an idle cache to a file, unless it is written, ordered or not possible at this time.
func (x *saves) write(r *request) {
	if !r.write.Ready(x.s.now, x.free(r.owner)) || x.orders(r.owner) >= maxWrites {
		return
	}
	x.last++
	x.stale.Writes(r.Session, x.s.ledger.sockets[r.owner].ID)
	r.write.Order(x.last, x.s.now)
	x.idle[x.last] = r
	x.order(saved.Order{Do: saved.Write, Number: x.last, Key: x.key(r.Session), Ranks: []int{r.owner}, Seq: r.seq,
		Cache: saved.Cache{Prompt: r.read, Tokens: r.cached}, Text: r.text(), Millis: r.until - x.s.now})
}

// text returns the tokens of a request. They are only appended to.
func (r *request) text() saved.Text {
	return saved.Text{Policy: r.Policy.Spec(), Adapter: r.Adapter.ID, Prompt: r.Prompt, Output: r.out[:len(r.out):len(r.out)]}
}

// awaits reports whether a request should wait for the memory of an idle cache until that is in a file. It waits for
// roomMillis in all, for however many caches.
func (x *saves) awaits(idle, r *request) bool {
	disk := x.disk(idle.owner)
	if !x.savable(idle) || idle.write.Written || disk.Paused(x.s.now) {
		return false
	}
	x.write(idle)
	if idle.write.Number == 0 && !idle.write.Ready(x.s.now, x.free(idle.owner)) {
		return false
	}
	if r.waits == 0 {
		r.waits = max(1, x.s.now)
	}
	if x.s.now < r.waits+roomMillis {
		return true
	}
	if idle.write.Hangs(x.s.now, roomMillis) {
		disk.RecordTimeout(x.s.now)
	}
	return false
}

// done processes the answer to an order.
func (x *saves) done(d saved.Done) {
	x.stale.Done(d, x.s.now)
	if r := x.idle[d.Number]; r != nil {
		delete(x.idle, d.Number)
		x.written(r, d)
		return
	}
	r := x.turns[d.Number]
	delete(x.turns, d.Number)
	switch {
	case r == nil || r.ended || r.saved.Number != d.Number:
	case r.saved.Phase == saved.Searching:
		x.found(r, d.Found)
	case r.saved.Phase == saved.Loading:
		x.loaded(r, d.Err)
	}
}

// written processes the end of a write. The files of the session on other sockets are then useless.
func (x *saves) written(r *request, d saved.Done) {
	over := x.s.now >= r.until && !x.lives(r.Session) // the session has ended meanwhile
	if d.Err == "" {
		x.s.totals.Saved++
		if over {
			x.end(r.Session)
		}
	}
	if r.write.Number != d.Number {
		return
	}
	if r.write.End(d, x.s.now); r.write.Written {
		x.disk(r.owner).RecordSuccess()
		if !over {
			x.stale.Wrote(r.Session, x.s.ledger.sockets[r.owner].ID)
		}
	}
}

// found chooses the cache with which a turn begins: the newest cache that has the first tokens of its text.
func (x *saves) found(r *request, list []saved.Found) {
	r.saved.Phase = saved.None
	best := saved.Found{Rank: none}
	for _, f := range list {
		if f.Rank >= 0 && f.Rank < len(x.s.ledger.sockets) && r.canOwn(f.Rank) && f.Prompt == r.toRead() && f.Tokens >= f.Prompt &&
			f.Tokens < len(r.Prompt)+len(r.out) && f.Tokens > best.Tokens {
			best = f
		}
	}
	if best.Rank != none {
		r.saved.Phase, r.saved.Found = saved.Located, best
	}
}

// coming returns the number of caches that sockets read from files or take from the prefill group.
func (s *State) coming() (n int) {
	for _, r := range s.running {
		if r.saved.Phase == saved.Loading || r.remote.Phase == prefillgroup.Receiving {
			n++
		}
	}
	return n
}

// load admits a turn whose cache is in a file of a socket. It books the bytes before the rows are read.
func (x *saves) load(r *request) bool {
	owner, need := none, []int64(nil)
	if x.s.coming() < plan.MaxTaking {
		owner, need = x.s.fit(r, 0)
	}
	if owner == none {
		// After roomMillis the turn reads its text, which any node can do.
		if r.saved.Since = cmp.Or(r.saved.Since, max(1, x.s.now)); x.s.now >= r.saved.Since+roomMillis {
			r.saved.Phase = saved.None
		}
		return false
	}
	x.s.waiting.remove(r)
	x.s.ledger.admit(r, owner, need)
	x.s.sequences++
	x.last++
	r.phase, r.seq, r.read, r.saved.Phase, r.saved.Number = prefill, x.s.sequences, r.saved.Found.Prompt, saved.Loading, x.last
	x.turns[x.last] = r
	x.s.running.insert(r)
	x.order(saved.Order{Do: saved.Load, Number: x.last, Key: x.key(r.Session), Ranks: []int{owner}, Seq: r.seq, Cache: r.saved.Found.Cache,
		Text: saved.Text{Policy: r.Policy.Spec(), Adapter: r.Adapter.ID}})
	return true
}

// loaded processes the end of a load. After an error the turn reads its text.
func (x *saves) loaded(r *request, err string) {
	if err != "" {
		x.s.totals.LoadErrors++
		r.saved.Fail()
		x.s.remote.requeue(r)
		return
	}
	x.s.totals.Loaded++
	r.phase, r.cached, r.staged, r.saved.Phase = decoding, r.saved.Found.Tokens, 0, saved.None
	r.reached = max(r.reached, r.cached)
	r.begun(x.s, r.cached)
	x.s.drafts.index(r)
	x.s.resumed = append(x.s.resumed, resumption{r, r.seq})
}

// lives reports whether a session of this name has a request, such as one that began after another of the name had ended.
func (x *saves) lives(session string) bool {
	for _, list := range [...]queue{x.s.waiting, x.s.running} {
		for _, r := range list {
			if r.Session == session && (!r.idle || x.s.now < r.until) && !r.ended {
				return true
			}
		}
	}
	return false
}

// end orders the removal of the files of a session.
func (x *saves) end(session string) {
	if session != "" {
		x.stale.End(session)
	}
}

// dropStale orders the removal of stale files, also from sockets that were away when the files became stale.
func (x *saves) dropStale() {
	if !x.stale.Asks(x.s.epoch, x.s.now) {
		return
	}
	ranks := x.disks()
	ids := make([]string, len(ranks))
	for i, rank := range ranks {
		ids[i] = x.s.ledger.sockets[rank].ID
	}
	for _, r := range x.stale.Due(x.s.epoch, x.s.now, ids, func() uint64 { x.last++; return x.last }) {
		o := saved.Order{Do: saved.Drop, Number: r.Number, Key: x.key(r.Session)}
		for _, i := range r.Sockets {
			o.Ranks = append(o.Ranks, ranks[i])
		}
		x.order(o)
	}
}

// interrupted drops the orders of an epoch that is over.
func (x *saves) interrupted() {
	for _, list := range []queue{x.s.waiting, x.s.running} {
		for _, r := range list {
			r.saved.Restart()
		}
	}
	clear(x.turns)
	clear(x.idle)
	maps.DeleteFunc(x.slow, func(_ string, d *saved.Disk) bool { return !d.Paused(x.s.now) })
}
