package socket

import (
	"context"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer/lowrank"
	"github.com/shoal-llm/shoal/actors/socket/adapter"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/proto"
)

// adapted holds the LoRA adapters of an epoch in memory.
type adapted struct {
	all   map[lora.ID]int64 // bytes
	bytes int64             // of all
}

// adapter handles the coordinator's requests for LoRA adapters.
func (a *Actor) adapter(c actor.Context, m *Adapter) {
	r := m.Request
	switch {
	case a.adapters == nil:
		m.Reply(nil, adapter.ErrOff)
		return
	case r.File != "":
		a.adapters.Receive(r, m.Reply)
		return
	}
	id, err := lora.IDOf(r.Id)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	dropped, err := a.machine.Adapt(r.Epoch, r.Number, r.Keep)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	e, number := a.epoch, r.Epoch
	for _, old := range dropped {
		a.adapted.bytes -= a.adapted.all[old]
		delete(a.adapted.all, old)
	}
	if len(dropped) > 0 { // after the executor's queued jobs
		a.exec.Submit(func() {
			for _, old := range dropped {
				_ = e.Adapters[old].Close() // unmaps memory, which cannot fail
				delete(e.Adapters, old)
			}
		})
	}
	if !r.Load || a.machine.HasAdapter(id) {
		m.Reply(&proto.AdapterReply{Bytes: a.adapted.all[id]}, nil)
		return
	}
	self, root := c.Self(), c.ActorSystem().Root
	a.adapters.Load(context.Background(), id, e.Place, e.Rank, func(ad *lowrank.Adapter, err error) {
		root.Send(self, &adapterLoaded{number, id, ad, err, m.Reply})
	})
}

// adapterLoaded gives a loaded adapter to the epoch that it was loaded for.
func (a *Actor) adapterLoaded(m *adapterLoaded) {
	if m.err != nil || m.adapter == nil {
		m.reply(&proto.AdapterReply{Missing: m.err == nil}, m.err)
		return
	}
	n, ad := m.adapter.Bytes(), m.adapter
	switch {
	case a.adapted.bytes+n > a.adaptable:
		_ = ad.Close()
		m.reply(nil, fmt.Errorf("socket: adapter %v takes %d bytes; %d of %d are in use", m.id, n, a.adapted.bytes, a.adaptable))
		return
	case !a.machine.Adapted(m.number, m.id):
		_ = ad.Close()
		m.reply(nil, fmt.Errorf("%w: adapter %v was loaded for epoch %d, which is over, or twice", machine.ErrStaleEpoch, m.id, m.number))
		return
	}
	if a.adapted.all == nil {
		a.adapted.all = map[lora.ID]int64{}
	}
	a.adapted.all[m.id] = n
	a.adapted.bytes += n
	e := a.epoch
	a.exec.Submit(func() { e.Adapters[m.id] = ad })
	m.reply(&proto.AdapterReply{Bytes: n}, nil)
}
