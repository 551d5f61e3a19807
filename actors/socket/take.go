package socket

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/internal/proto"
)

// socketNames are the names of sockets' actors.
var socketNames = regexp.MustCompile(`^socket(-[1-9][0-9]{0,2})?$`)

var errNoRows = errors.New("socket: caches can be taken only between sockets of node processes")

// take begins to fetch a cache from a socket of the prefill group, or from a file.
func (a *Actor) take(c actor.Context, m *Take) {
	r := m.Request
	if len(r.Saved) == 0 && (a.Config.Rows == nil || !socketNames.MatchString(r.Socket)) {
		m.Reply(nil, errNoRows)
		return
	}
	p, err := a.machine.Take(r)
	if err != nil {
		m.Reply(nil, err)
		return
	}
	self, root, began := c.Self(), c.ActorSystem().Root, time.Now()
	a.epoch.Take(caches.Order{
		Request: r, Policy: p, Until: began.Add(time.Duration(r.Millis) * time.Millisecond),
		FetchRows: func(ctx context.Context, q *proto.RowsRequest) (*proto.RowsReply, error) {
			return a.Config.Rows(ctx, r.Address, r.Socket, q)
		},
		Done: func(bytes int64, err error) {
			root.Send(self, &taken{request: r, bytes: bytes, took: time.Since(began), err: err, reply: m.Reply})
		},
	})
}

// taken keeps a cache that has arrived.
func (a *Actor) taken(m *taken) {
	err := errors.Join(m.err, a.machine.Taken(m.request.Epoch, m.request.Seq, m.err == nil))
	if err != nil {
		m.reply(nil, err)
		return
	}
	m.reply(&proto.TakeReply{Bytes: m.bytes, Millis: uint32(m.took.Milliseconds())}, nil)
}

// lend reads rows of a cache for a socket of the decode group.
func (a *Actor) lend(m *Lend) {
	if err := a.machine.Lend(m.Request); err != nil {
		m.Reply(nil, err)
		return
	}
	held := a.caches
	a.exec.Submit(func() { m.Reply(held.Lend(m.Request)) })
}
