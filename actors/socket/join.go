package socket

import (
	"context"
	"errors"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Bounds of the time in which a group must form. Between them it is the timeout of a collective.
const (
	minJoinTimeout = 3 * time.Second
	maxJoinTimeout = 15 * time.Second
)

func (a *Actor) join(c actor.Context, m *Join) {
	if err := a.machine.Join(m.Request.Epoch); err != nil {
		m.Reply(nil, err)
		return
	}
	deadline := time.Duration(m.Request.DeadlineMillis) * time.Millisecond
	e, r, self, root, connect := a.epoch, m.Request, c.Self(), c.ActorSystem().Root, a.Config.Connect
	link, onPost := e.OpenLink()
	a.link = link
	cfg := collective.Config{OnPost: onPost, Rank: e.Rank, Size: len(e.Place.Slices), Epoch: e.Place.Epoch, Incarnations: r.Incarnations,
		Deadline: deadline, Parallel: a.Config.Pool.Run,
		OnFail: func(err error) { root.Send(self, &groupFailed{number: r.Epoch, err: err}) }}
	child := &collectiveActor{
		timeout: min(max(deadline, minJoinTimeout), maxJoinTimeout),
		form: func(ctx context.Context) (*collective.Group, error) {
			t, err := connect(ctx, r.Group, cfg.Epoch, cfg.Rank, r.Incarnations)
			if err != nil {
				return nil, err
			}
			g, err := collective.NewGroup(cfg, t)
			if err != nil {
				t.Close()
			}
			return g, err
		},
		formed: func(x *exchanges, err error, took time.Duration) {
			root.Send(self, &joined{number: r.Epoch, group: x, err: err, took: took, reply: m.Reply})
		},
	}
	a.collective = c.Spawn(actor.PropsFromProducer(func() actor.Actor { return child }, actor.WithDispatcher(layer.Dispatcher)))
}

func (a *Actor) joined(_ actor.Context, m *joined) {
	if err := a.machine.Joined(m.number, m.err == nil); err != nil || m.err != nil {
		var cut interface{ Missing() []int }
		if err == nil && errors.As(m.err, &cut) {
			r := &proto.JoinReply{Millis: uint32(m.took.Milliseconds())}
			for _, rank := range cut.Missing() {
				r.Unreachable = append(r.Unreachable, uint32(rank))
			}
			a.Config.Logger.Warn("group not formed", "epoch", m.number, "error", m.err)
			m.reply(r, nil)
			return
		}
		m.reply(nil, errors.Join(m.err, err))
		return
	}
	a.epoch.Group = m.group
	a.link.Connect(m.group.group)
	m.reply(&proto.JoinReply{Millis: uint32(m.took.Milliseconds())}, nil)
}
