package socket

import (
	"crypto/sha256"
	"errors"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
)

// prefix handles the coordinator's requests for blocks in files.
func (a *Actor) prefix(m *Prefix) {
	r, e := m.Request, a.epoch
	tell := func(blocks int) { m.Reply(&proto.PrefixReply{Blocks: uint32(max(0, blocks))}, nil) }
	n := len(r.Keys)/sha256.Size - 1
	switch {
	case r.Forget:
		if !a.caches.Forget(func() { tell(0) }) {
			m.Reply(nil, errBusy)
		}
		return
	case e == nil || r.Epoch != a.machine.Epoch || len(r.Keys)%sha256.Size != 0 || n < 1:
		tell(0)
		return
	}
	if len(r.Blocks) > 0 {
		effects, err := a.machine.Restore(r)
		if err != nil {
			m.Reply(nil, err)
			return
		}
		if len(effects) > 0 {
			a.exec.Submit(func() { a.caches.Release(effects) })
		}
	}
	switch {
	case e.PromptHeads(plan.None).Len() == 0: // latent attention: this rank reads no heads, so it has no rows
		tell(n)
	case r.Seq != 0:
		e.Fetch(a.link, r, tell)
	case len(r.Blocks) == 0:
		tell(e.InFiles(r.Keys, int(r.From)))
	default:
		e.ReadFiles(r, tell)
	}
}

var errBusy = errors.New("socket: the disk of the prefix cache is busy")
