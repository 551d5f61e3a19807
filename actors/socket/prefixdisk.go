package socket

import (
	"crypto/sha256"
	"errors"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// files moves blocks of the prefix cache between memory and disk: one goroutine writes, one
// reads, and neither the socket's actor nor its executor ever waits for them. Rows go by a
// buffer each, so that nothing of the arena is held over the disk.
type files struct {
	*background
	store  *tier.Store
	reads  chan func()
	writes chan offer
	form   tier.Form // of the epoch; the executor's
}

// offer is a block that memory has and the disk may keep.
type offer struct {
	id          uint64
	at          int
	key, before tier.Key
	form        tier.Form
}

const (
	waitingReads  = 16
	waitingWrites = 4096 // of 64 tokens each
)

func newFiles(store *tier.Store, exec *layer.Executor, c *caches) *files {
	if store == nil {
		return nil
	}
	f := &files{background: newBackground(exec, c), store: store, reads: make(chan func(), waitingReads), writes: make(chan offer, waitingWrites)}
	f.goroutines.Go(func() { f.doAll(f.reads) })
	f.goroutines.Go(f.write)
	return f
}

// close ends the goroutines, and waits for them unless the disk hangs.
func (f *files) close() {
	if f != nil {
		f.end()
	}
}

// longest is how long a read may take at most, whatever is asked.
const longest = 10 * time.Second

// begin is told of each epoch: files of other processes are looked for.
func (f *files) begin(e *epoch) {
	e.form.HeadBytes = kvcache.HeadBytes(e.geometry)
	if f != nil {
		e.form.Hash = kvcache.Form(e.geometry)
		f.exec.Submit(func() { f.form = e.form })
		f.read(f.store.Rescan)
	}
}

// read queues a job for the reader; false: too many wait, or it ends.
func (f *files) read(do func()) bool {
	select {
	case f.reads <- do:
		return true
	default:
		return false
	}
}

// keep offers blocks to the disk; the executor calls it. keys are as in plan.Run.
func (f *files) keep(from int, blocks []uint64, keys []plan.Key) {
	if f == nil || len(keys) != len(blocks)+1 {
		return
	}
	for i, id := range blocks {
		f.offer(offer{id: id, at: from + i, before: tier.Key(keys[i]), key: tier.Key(keys[i+1]), form: f.form})
	}
}

// offer queues a block for the writer, unless the disk has it.
func (f *files) offer(o offer) {
	b := f.caches.blocks[o.id]
	if b == nil || !f.store.Lacks(o.key, o.at, b.Heads()) {
		return
	}
	f.caches.named[o.id] = o
	select {
	case f.writes <- o:
	default:
		f.store.Drop()
	}
}

// again offers blocks that are used and that the disk may have lost or never had.
func (f *files) again(blocks []uint64) {
	if f == nil {
		return
	}
	for _, id := range blocks {
		if o, ok := f.caches.named[id]; ok {
			f.offer(o)
		}
	}
}

func keyAt(keys []byte, i int) tier.Key { return tier.Key(keys[i*sha256.Size:]) }

// write is the writer: a block at a time, copied by the executor.
func (f *files) write() {
	var rows []byte
	for {
		var o offer
		select {
		case <-f.quit:
			return
		case o = <-f.writes:
		}
		var heads tensor.Span
		copied := f.onExecutor(func() error {
			b := f.caches.blocks[o.id]
			if b == nil || f.caches.named[o.id] != o {
				return errEvicted
			}
			heads = b.Heads()
			if n := heads.Len() * o.form.HeadBytes; len(rows) != n {
				rows = make([]byte, n)
			}
			b.Bytes(rows)
			return nil
		})
		if copied == nil {
			f.store.Write(o.key, o.before, o.at, heads, o.form, rows)
		}
	}
}

// restore reads blocks until one is missing or the time is over, and tells how many came.
func (f *files) restore(list []*coming, until time.Time, reply func(blocks int)) {
	var rows []byte
	n := 0
	for _, x := range list {
		if rows == nil {
			rows = make([]byte, x.heads.Len()*x.named.form.HeadBytes)
		}
		if time.Now().After(until) || !f.store.Read(x.named.key, x.at, x.heads, x.named.form, rows) || !f.arrive(x, rows, until) {
			break
		}
		n++
	}
	reply(n)
}

// prefix answers what the coordinator asks of the files.
func (a *Actor) prefix(m *Prefix) {
	r, e := m.Request, a.epoch
	tell := func(blocks int) { m.Reply(&proto.PrefixReply{Blocks: uint32(max(0, blocks))}, nil) }
	n := len(r.Keys)/sha256.Size - 1
	switch {
	case r.Forget && a.files != nil:
		if !a.files.read(func() { a.files.store.Forget(); tell(0) }) {
			m.Reply(nil, errBusy)
		}
		return
	case r.Forget:
		tell(0)
		return
	case e == nil || r.Epoch != a.machine.Epoch || len(r.Keys)%sha256.Size != 0 || n < 1:
		tell(0)
		return
	}
	heads := e.promptHeads(none)
	if len(r.Blocks) > 0 {
		if err := a.machine.Restore(r); err != nil {
			m.Reply(nil, err)
			return
		}
	}
	switch {
	case heads.Len() == 0: // of latent attention: it reads no heads, so it keeps no rows
		tell(n)
		return
	case r.Seq != 0:
		list, until := a.expect(r, heads)
		if !a.answers.bring(e.line, r, list, until, tell) {
			tell(0)
		}
		return
	case a.files == nil:
		tell(0)
		return
	case len(r.Blocks) == 0:
		keys := make([]tier.Key, n)
		for i := range keys {
			keys[i] = keyAt(r.Keys, i+1)
		}
		tell(a.files.store.Has(keys, int(r.From), heads))
		return
	}
	list, until := a.expect(r, heads)
	if !a.files.read(func() { a.files.restore(list, until, tell) }) {
		tell(0)
	}
}

// expect notes blocks that are about to be brought in, and until when.
func (a *Actor) expect(r *proto.PrefixRequest, heads tensor.Span) (list []*coming, until time.Time) {
	e, held := a.epoch, a.caches
	for i, id := range r.Blocks {
		at := int(r.From) + i
		list = append(list, &coming{at: at, heads: heads, g: e.geometry, named: offer{id: id, at: at, before: keyAt(r.Keys, i), key: keyAt(r.Keys, i+1), form: e.form}})
	}
	a.exec.Submit(func() {
		for _, x := range list {
			held.coming[x.named.id] = x
		}
	})
	return list, time.Now().Add(min(time.Duration(r.Millis)*time.Millisecond*4/5, longest)) // the answer takes time too
}

var errBusy = errors.New("socket: the disk of the prefix cache is busy")

// diskFigures are those of the files; nil: there are none.
func (f *files) figures() *proto.PrefixDisk {
	if f == nil {
		return nil
	}
	s := f.store.Stats()
	return &proto.PrefixDisk{Bytes: s.Bytes, Limit: s.Limit, Blocks: uint64(s.Blocks), Written: s.Written, Read: s.Read, Dropped: s.Dropped, Damaged: s.Damaged, Failed: s.Failed, Removed: s.Out}
}
