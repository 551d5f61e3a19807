// Package alone is one socket that holds a whole model, without a cluster and without
// a batcher: what measurements and evaluations of a single process drive.
package alone

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/kvcache"
	"github.com/shoal-llm/shoal/kvcache/tier"
	"github.com/shoal-llm/shoal/model"
	"github.com/shoal-llm/shoal/proto"
	"github.com/shoal-llm/shoal/sampler"
	"github.com/shoal-llm/shoal/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// Config is what a socket without a cluster is given.
type Config struct {
	Checkpoint *model.Checkpoint
	Pool       *tensor.Pool
	Weights    tensor.DType  // type of the matrices
	KV         tensor.DType  // type of the cache
	KVBudget   int64         // bytes of KV cache
	StepTokens int           // most rows of a step
	System     *System       // nil: one of its own
	Scratch    *tier.Scratch // takes rows of caches that are filled; nil: they stay in memory
}

// System is what sockets run in, one or several.
type System struct{ actors *actor.ActorSystem }

// NewSystem starts one; Close stops it.
func NewSystem() *System {
	quiet := slog.New(slog.DiscardHandler)
	return &System{actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))}
}

// Close ends the system, after its sockets.
func (s *System) Close() { s.actors.Shutdown() }

// Socket takes the commands that a node's socket takes from the coordinator. One
// goroutine uses it at a time.
type Socket struct {
	Load time.Duration // what loading took

	sys     *actor.ActorSystem
	own     *System // nil: Config.System
	pid     *actor.PID
	stopped chan struct{}
	step    uint64
	opens   []*proto.Open  // of caches that are there: the next step carries them
	rows    map[uint64]int // tokens of each sequence's last decode rows
}

// patience bounds every answer; loading a large model takes the longest.
const patience = 10 * time.Minute

// New loads the model and waits until it is ready.
func New(ctx context.Context, c Config) (_ *Socket, err error) {
	place, err := topology.Place(1, topology.Gather, socket.ShapeOf(&c.Checkpoint.Config), []topology.Member{{ID: "alone"}})
	if err != nil {
		return nil, err
	}
	a := &Socket{rows: map[uint64]int{}, stopped: make(chan struct{})}
	if c.System == nil {
		a.own = NewSystem()
		c.System = a.own
	}
	a.sys = c.System.actors
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	transport := collective.NewMemory(1)[0]
	cfg := socket.Config{Checkpoint: c.Checkpoint, Pool: c.Pool, KVBudget: c.KVBudget, Logger: slog.New(slog.DiscardHandler), Stopped: a.stopped, ParsePolicy: parse, Scratch: c.Scratch,
		Connect: func(context.Context, string, uint32, int, []uint32) (collective.Transport, error) {
			return transport, nil
		}}
	a.pid = a.sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: cfg} }))
	began := time.Now()
	_, err = ask(ctx, func(reply func(*proto.LoadReply, error)) {
		a.sys.Root.Send(a.pid, &socket.Load{Reply: reply, Request: &proto.LoadRequest{Placement: socket.PlacementMessage(place, []uint64{0}),
			ModelHash: c.Checkpoint.Hash(), WeightType: c.Weights.String(), KvType: c.KV.String(), MaxStepTokens: uint32(c.StepTokens)}})
	})
	if err != nil {
		return nil, err
	}
	a.Load = time.Since(began)
	_, err = ask(ctx, func(reply func(*proto.JoinReply, error)) {
		a.sys.Root.Send(a.pid, &socket.Join{Reply: reply, Request: &proto.JoinRequest{Epoch: 1, DeadlineMillis: 10000, Group: "alone", Incarnations: []uint32{0}}})
	})
	return a, err
}

// Close ends the socket and frees what it holds; the checkpoint and the pool are the caller's.
func (a *Socket) Close() {
	if a.pid != nil {
		socket.Stop(a.sys.Root, a.pid, a.stopped)
	}
	if a.own != nil {
		a.own.Close()
	}
}

// Step carries a step out and says how long it took, and where. It numbers the request,
// opens the sequences whose caches were made since the last, and accepts all rows.
func (a *Socket) Step(ctx context.Context, req *proto.StepRequest) (*proto.StepReply, time.Duration, socket.Stages, error) {
	a.step++
	req.Epoch, req.Step = 1, a.step
	req.Open, a.opens = append(a.opens, req.Open...), nil
	for _, o := range req.Open {
		delete(a.rows, o.Seq)
	}
	for _, c := range req.Chunks {
		if !c.Prefill {
			c.Accepted, a.rows[c.Seq] = uint32(a.rows[c.Seq]), len(c.Tokens)
		}
	}
	var stages socket.Stages
	began := time.Now()
	reply, err := ask(ctx, func(reply func(*proto.StepReply, error)) {
		a.sys.Root.Send(a.pid, &socket.Step{Request: req, Reply: reply, Stages: func(s socket.Stages) { stages = s }})
	})
	return reply, time.Since(began), stages, err
}

// Release drops sequences.
func (a *Socket) Release(ctx context.Context, seqs []uint64) error {
	a.opens = slices.DeleteFunc(a.opens, func(o *proto.Open) bool { return slices.Contains(seqs, o.Seq) })
	_, err := ask(ctx, func(reply func(*proto.ReleaseReply, error)) {
		a.sys.Root.Send(a.pid, &socket.Release{Request: &proto.ReleaseRequest{Epoch: 1, Seqs: seqs}, Reply: reply})
	})
	return err
}

// between has the socket do a job between steps.
func (a *Socket) between(ctx context.Context, do func(*socket.Caches) error) error {
	_, err := ask(ctx, func(reply func(struct{}, error)) {
		a.sys.Root.Send(a.pid, &socket.Between{Epoch: 1, Do: do, Reply: func(err error) { reply(struct{}{}, err) }})
	})
	return err
}

// resume has the next step open a sequence whose cache was made, greedy.
// of which `tail` more tokens of the prompt follow.
func (a *Socket) resume(seq uint64, p *kvcache.Policy, tokens []uint32, tail int) {
	a.opens = append(a.opens, &proto.Open{Seq: seq, Policy: p.Spec(), Sampling: greedy(), PromptTokens: uint32(len(tokens)), TailTokens: uint32(tail), Resume: tokens})
}

func greedy() *proto.Sampling {
	p := sampler.Default()
	p.Temperature = 0
	return socket.SamplingMessage(&p)
}

// ask sends a command and waits for its reply.
func ask[T any](ctx context.Context, send func(reply func(T, error))) (T, error) {
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 1)
	send(func(v T, err error) { c <- answer{v, err} })
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("alone: no answer in %v", patience))
	defer cancel()
	select {
	case a := <-c:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
