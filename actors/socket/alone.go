package socket

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"shoal/collective"
	"shoal/model"
	"shoal/proto"
	"shoal/tensor"
	"shoal/topology"
)

// AloneConfig is what a socket without a cluster is given.
type AloneConfig struct {
	Checkpoint *model.Checkpoint
	Pool       *tensor.Pool
	Weights    tensor.DType // type of the matrices
	KV         tensor.DType // type of the cache
	KVBudget   int64        // bytes of KV cache
	StepTokens int          // most rows of a step
}

// Alone is one socket that holds a whole model and takes the commands that a node's
// socket takes from the coordinator: what measurements and evaluations of a single
// process drive, without a batcher. One goroutine uses it at a time.
type Alone struct {
	Load time.Duration // what loading took

	sys     *actor.ActorSystem
	pid     *actor.PID
	stopped chan struct{}
	step    uint64
}

// alonePatience bounds every answer; loading a large model takes the longest.
const alonePatience = 10 * time.Minute

// NewAlone loads the model and waits until it is ready.
func NewAlone(ctx context.Context, c AloneConfig) (_ *Alone, err error) {
	place, err := topology.Place(1, topology.Gather, ShapeOf(&c.Checkpoint.Config), []topology.Member{{ID: "alone"}})
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	a := &Alone{stopped: make(chan struct{}), sys: actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))}
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	transport := collective.NewMemory(1)[0]
	cfg := Config{Checkpoint: c.Checkpoint, Pool: c.Pool, KVBudget: c.KVBudget, Logger: quiet, Stopped: a.stopped,
		Connect: func(context.Context, string, uint32, int, []uint32) (collective.Transport, error) {
			return transport, nil
		}}
	a.pid = a.sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &Actor{Config: cfg} }))
	began := time.Now()
	_, err = ask(ctx, func(reply func(*proto.LoadReply, error)) {
		a.sys.Root.Send(a.pid, &Load{Reply: reply, Request: &proto.LoadRequest{Placement: PlacementMessage(place, []uint64{0}),
			ModelHash: c.Checkpoint.Hash(), WeightType: c.Weights.String(), KvType: c.KV.String(), MaxStepTokens: uint32(c.StepTokens)}})
	})
	if err != nil {
		return nil, err
	}
	a.Load = time.Since(began)
	_, err = ask(ctx, func(reply func(*proto.JoinReply, error)) {
		a.sys.Root.Send(a.pid, &Join{Reply: reply, Request: &proto.JoinRequest{Epoch: 1, DeadlineMillis: 10000, Group: "alone", Incarnations: []uint32{0}}})
	})
	return a, err
}

// Close ends the socket and frees what it holds; the checkpoint and the pool are the caller's.
func (a *Alone) Close() {
	if a.pid != nil {
		Stop(a.sys.Root, a.pid, a.stopped)
	}
	a.sys.Shutdown()
}

// Step carries a step out and says how long it took, and where. It numbers the request.
func (a *Alone) Step(ctx context.Context, req *proto.StepRequest) (*proto.StepReply, time.Duration, Stages, error) {
	a.step++
	req.Epoch, req.Step = 1, a.step
	var stages Stages
	began := time.Now()
	reply, err := ask(ctx, func(reply func(*proto.StepReply, error)) {
		a.sys.Root.Send(a.pid, &Step{Request: req, Reply: reply, Stages: func(s Stages) { stages = s }})
	})
	return reply, time.Since(began), stages, err
}

// Fill opens sequences with random caches, see the command of that name.
func (a *Alone) Fill(ctx context.Context, seqs []uint64, tokens int, policy string) error {
	return a.do(ctx, func(reply func(error)) any {
		return &Fill{Epoch: 1, Seqs: seqs, Tokens: tokens, Policy: policy, Reply: reply}
	})
}

// Compare opens one prompt under several policies, see the command of that name.
func (a *Alone) Compare(ctx context.Context, seq uint64, prompt int, policies []string) error {
	return a.do(ctx, func(reply func(error)) any {
		return &Compare{Epoch: 1, Seq: seq, Prompt: prompt, Policies: policies, Reply: reply}
	})
}

// Release drops sequences.
func (a *Alone) Release(ctx context.Context, seqs []uint64) error {
	return a.do(ctx, func(reply func(error)) any {
		return &Release{Request: &proto.ReleaseRequest{Epoch: 1, Seqs: seqs}, Reply: func(_ *proto.ReleaseReply, err error) { reply(err) }}
	})
}

func (a *Alone) do(ctx context.Context, message func(reply func(error)) any) error {
	_, err := ask(ctx, func(reply func(struct{}, error)) {
		a.sys.Root.Send(a.pid, message(func(err error) { reply(struct{}{}, err) }))
	})
	return err
}

// ask sends a command and waits for its reply.
func ask[T any](ctx context.Context, send func(reply func(T, error))) (T, error) {
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 1)
	send(func(v T, err error) { c <- answer{v, err} })
	ctx, cancel := context.WithTimeoutCause(ctx, alonePatience, fmt.Errorf("socket: no answer in %v", alonePatience))
	defer cancel()
	select {
	case a := <-c:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
