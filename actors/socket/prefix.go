package socket

import (
	"crypto/sha256"
	"errors"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
)

// prefix handles the coordinator's requests for blocks in files.
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
	heads := e.promptHeads(plan.None)
	if len(r.Blocks) > 0 {
		if err := a.machine.Restore(r); err != nil {
			m.Reply(nil, err)
			return
		}
	}
	switch {
	case heads.Len() == 0: // latent attention: this rank reads no heads, so it has no rows
		tell(n)
		return
	case r.Seq != 0:
		list, until := a.expect(r, heads)
		if !a.blockFetcher.fetch(e.blockLink, r, list, until, tell) {
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

// expect records the blocks that will be read, and returns the deadline.
func (a *Actor) expect(r *proto.PrefixRequest, heads tensor.Span) (list []*incoming, until time.Time) {
	e, held := a.epoch, a.caches
	for i, id := range r.Blocks {
		at := int(r.From) + i
		list = append(list, &incoming{at: at, heads: heads, g: e.geometry, named: offer{id: id, at: at, before: keyAt(r.Keys, i), key: keyAt(r.Keys, i+1), form: e.form}})
	}
	a.exec.Submit(func() {
		for _, x := range list {
			held.incoming[x.named.id] = x
		}
	})
	return list, time.Now().Add(min(time.Duration(r.Millis)*time.Millisecond*4/5, maxRead)) // leave time for the reply
}

var errBusy = errors.New("socket: the disk of the prefix cache is busy")
