package socket

import (
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/proto"
)

// saved finds, writes or removes the cache of an idle session in a file.
func (a *Actor) saved(m *Saved) {
	r := m.Request
	key, err := caches.SavedKey(r.Key)
	if err == nil && r.Drop {
		err = a.machine.Drop(r)
	}
	switch {
	case err != nil:
		m.Reply(nil, err)
	case r.Drop:
		a.caches.DropSaved(key, func(err error) { m.Reply(&proto.SavedReply{}, err) })
	case r.Seq == 0:
		m.Reply(a.caches.FindSaved(key), nil)
	default:
		a.save(m)
	}
}

// save begins to write the cache of an idle session to a file.
func (a *Actor) save(m *Saved) {
	r := m.Request
	effects, err := a.machine.Save(r)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	e := a.epoch.Epoch
	a.epoch.SaveIdle(caches.SaveOrder{Request: r, Until: time.Now().Add(time.Duration(r.Timeout) * time.Millisecond),
		Effects: func() error {
			if e.Seqs[r.Seq] == nil {
				return fmt.Errorf("socket: sequence %d was released", r.Seq)
			}
			return e.Do(effects)
		},
		Done: func(bytes int64, err error) {
			if errors.Is(err, tier.ErrRoom) {
				m.Reply(&proto.SavedReply{Bytes: bytes}, nil)
				return
			}
			m.Reply(&proto.SavedReply{Tokens: r.Tokens, Bytes: bytes}, err)
		}})
}
