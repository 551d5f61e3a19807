// Package alone runs one socket that holds a whole model, or several that share it, without a
// cluster and a batcher. Measurements and evaluations of a single process use it.
package alone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Config configures a socket without a cluster.
type Config struct {
	Checkpoint *checkpoint.Checkpoint
	Pool       *tensor.Pool
	Weights    tensor.DType     // type of the matrices
	KV         tensor.DType     // type of the cache
	KVBudget   int64            // bytes of KV cache per socket
	StepTokens int              // maximum of rows in a step
	System     *System          // nil: one of its own
	Scratch    *tier.Scratch    // stores spilled rows of filled caches; nil: they stay in memory
	Peers      []Peer           // sockets that share the model evenly; nil: one, with Pool
	Mapping    topology.Mapping // default: gather
	Device     layer.Device     // nil: the CPU
	Adapters   *lora.Store      // files of LoRA adapters; nil: none can be loaded
}

// Peer is one of several sockets: its compute threads, and its connection to the others.
type Peer struct {
	Pool    *tensor.Pool
	Connect func(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error)
}

// System is an actor system for one or several sockets.
type System struct{ actors *actor.ActorSystem }

// NewSystem starts a system; Close stops it.
func NewSystem() *System {
	quiet := slog.New(slog.DiscardHandler)
	return &System{actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))}
}

// Close stops the system. Close its sockets first.
func (s *System) Close() { s.actors.Shutdown() }

// Socket accepts the commands that a node's socket gets from the coordinator, and forwards them to
// every socket if there are several. One goroutine uses it at a time.
type Socket struct {
	Load time.Duration // duration of the load
	// Adapters has the LoRA adapters of sequences that Fill and Prefill begin. They must be loaded.
	Adapters map[uint64]lora.ID

	sys     *actor.ActorSystem
	own     *System // nil: Config.System
	ranks   []rank
	layers  int // of the model
	step    uint64
	adapted uint64         // decisions about adapters
	opens   []*proto.Open  // sequences whose caches exist; the next step opens them
	rows    map[uint64]int // tokens of each sequence's last decode rows
	saved   int            // blocks of a text in the prefix cache
	evict   []uint64       // blocks to drop in the next step
}

type rank struct {
	pid     *actor.PID
	stopped chan struct{}
}

// replyTimeout bounds every reply; loading a large model takes the longest.
const replyTimeout = 10 * time.Minute

// New loads the model and waits until it is ready.
func New(ctx context.Context, c Config) (_ *Socket, err error) {
	peers := c.Peers
	if peers == nil {
		transport := collective.NewMemory(1)[0]
		peers = []Peer{{c.Pool, func(context.Context, string, uint32, int, []uint32) (collective.Transport, error) {
			return transport, nil
		}}}
	}
	members, incarnations := make([]topology.Member, len(peers)), make([]uint32, len(peers))
	for i := range members {
		members[i].ID = fmt.Sprintf("alone-%d", i)
	}
	place, err := topology.Place(1, cmp.Or(c.Mapping, topology.Gather), shard.ShapeOf(&c.Checkpoint.Config), members)
	if err != nil {
		return nil, err
	}
	a := &Socket{rows: map[uint64]int{}, layers: c.Checkpoint.Config.CacheLayers()}
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
	for _, p := range peers {
		cfg := socket.Config{Checkpoint: c.Checkpoint, Pool: p.Pool, Device: c.Device, KVBudget: c.KVBudget,
			Logger: slog.New(slog.DiscardHandler), Stopped: make(chan struct{}), ParsePolicy: parse, Scratch: c.Scratch, Connect: p.Connect,
			Adapters: c.Adapters, AdapterBudget: math.MaxInt64}
		a.ranks = append(a.ranks,
			rank{a.sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: cfg} })), cfg.Stopped})
	}
	began := time.Now()
	_, err = each(ctx, a, func(i int, pid *actor.PID, reply func(*proto.LoadReply, error)) {
		a.sys.Root.Send(pid, &socket.Load{Reply: reply,
			Request: &proto.LoadRequest{Placement: socket.PlacementMessage(place, make([]uint64, len(peers))), Rank: uint32(i),
				ModelHash: c.Checkpoint.Hash(), WeightType: c.Weights.String(), KvType: c.KV.String(), MaxStepTokens: uint32(c.StepTokens)}})
	})
	if err != nil {
		return nil, err
	}
	a.Load = time.Since(began)
	_, err = each(ctx, a, func(_ int, pid *actor.PID, reply func(*proto.JoinReply, error)) {
		a.sys.Root.Send(pid,
			&socket.Join{Reply: reply, Request: &proto.JoinRequest{Epoch: 1, DeadlineMillis: 60000, Group: "alone", Incarnations: incarnations}})
	})
	return a, err
}

// Close ends the sockets and frees their memory. The checkpoint and the pools belong to the caller.
func (a *Socket) Close() {
	for _, r := range a.ranks {
		socket.Stop(a.sys.Root, r.pid, r.stopped)
	}
	if a.own != nil {
		a.own.Close()
	}
}

// Step runs a step. It returns the reply, its duration, and where the first socket spent the time.
// It numbers the request, opens the sequences whose caches were created since the last step, and
// accepts all rows. The reply has the samples of all sockets, and the largest cache size of any.
func (a *Socket) Step(ctx context.Context, req *proto.StepRequest) (*proto.StepReply, time.Duration, step.Times, error) {
	a.step++
	req.Epoch, req.Step = 1, a.step
	req.Open, a.opens = append(a.opens, req.Open...), nil
	req.Evict, a.evict = append(req.Evict, a.evict...), nil
	for _, o := range req.Open {
		delete(a.rows, o.Seq)
	}
	for _, c := range req.Chunks {
		if !c.Prefill {
			c.Accepted, a.rows[c.Seq] = uint32(a.rows[c.Seq]), len(c.Tokens)
		}
	}
	var stages step.Times
	began := time.Now()
	replies, err := each(ctx, a, func(i int, pid *actor.PID, reply func(*proto.StepReply, error)) {
		s := &socket.Step{Request: req, Reply: reply}
		if i == 0 {
			s.Times = func(s step.Times) { stages = s }
		}
		a.sys.Root.Send(pid, s)
	})
	took := time.Since(began)
	if err != nil {
		return nil, took, stages, err
	}
	for _, r := range replies[1:] {
		replies[0].Sampled = append(replies[0].Sampled, r.Sampled...)
		replies[0].KvUsedBytes = max(replies[0].KvUsedBytes, r.KvUsedBytes)
	}
	return replies[0], took, stages, nil
}

// LoadAdapters has every socket load LoRA adapters of Config.Adapters, and drop all others. It returns
// their bytes on the socket with the most.
func (a *Socket) LoadAdapters(ctx context.Context, ids []lora.ID) (bytes int64, err error) {
	var keep [][]byte
	for _, id := range ids {
		keep = append(keep, id.Bytes())
	}
	for _, id := range append([]lora.ID{{}}, ids...) {
		a.adapted++
		replies, err := each(ctx, a, func(_ int, pid *actor.PID, reply func(*proto.AdapterReply, error)) {
			a.sys.Root.Send(pid, &socket.Adapter{Request: &proto.AdapterRequest{Epoch: 1, Number: a.adapted, Id: id.Bytes(),
				Load: id != lora.ID{}, Keep: keep}, Reply: reply})
		})
		if err != nil {
			return 0, err
		}
		most := int64(0)
		for _, r := range replies {
			if most = max(most, r.Bytes); r.Missing {
				return 0, fmt.Errorf("alone: the store has no adapter %v", id)
			}
		}
		bytes += most
	}
	return bytes, nil
}

// Release releases sequences.
func (a *Socket) Release(ctx context.Context, seqs []uint64) error {
	a.opens = slices.DeleteFunc(a.opens, func(o *proto.Open) bool { return slices.Contains(seqs, o.Seq) })
	_, err := each(ctx, a, func(_ int, pid *actor.PID, reply func(*proto.ReleaseReply, error)) {
		a.sys.Root.Send(pid, &socket.Release{Request: &proto.ReleaseRequest{Epoch: 1, Seqs: seqs}, Reply: reply})
	})
	return err
}

// between runs a job on one socket between steps.
func (a *Socket) between(ctx context.Context, rank int, do func(*step.Job) error) error {
	_, err := call(ctx, func(reply func(struct{}, error)) {
		a.sys.Root.Send(a.ranks[rank].pid, &socket.Between{Epoch: 1, Do: do, Reply: func(err error) { reply(struct{}{}, err) }})
	})
	return err
}

// resume makes the next step open a sequence whose cache its owner has created, greedy. tail more
// tokens of the prompt follow.
func (a *Socket) resume(seq uint64, owner int, p *kvcache.Policy, tokens []uint32, tail int) {
	a.opens = append(a.opens, &proto.Open{Seq: seq, Owner: uint32(owner), Policy: p.Spec(), Sampling: greedy(),
		PromptTokens: uint32(len(tokens)), TailTokens: uint32(tail), Resume: tokens, Adapter: a.Adapters[seq].Bytes()})
}

func greedy() *proto.Sampling {
	p := sampler.Default()
	p.Temperature = 0
	return plan.EncodeSampling(&p)
}

// each sends a command to every socket and waits for all replies, in the order of the sockets.
func each[T any](ctx context.Context, a *Socket, send func(rank int, pid *actor.PID, reply func(T, error))) ([]T, error) {
	return call(ctx, func(reply func([]T, error)) {
		var mu sync.Mutex
		var failed error
		all, left := make([]T, len(a.ranks)), len(a.ranks)
		for i, r := range a.ranks {
			send(i, r.pid, func(v T, err error) {
				mu.Lock()
				defer mu.Unlock()
				all[i], failed = v, errors.Join(failed, err)
				if left--; left == 0 {
					reply(all, failed)
				}
			})
		}
	})
}

// call sends a command and waits for its reply.
func call[T any](ctx context.Context, send func(reply func(T, error))) (T, error) {
	type answer struct {
		v   T
		err error
	}
	c := make(chan answer, 1)
	send(func(v T, err error) { c <- answer{v, err} })
	ctx, cancel := context.WithTimeoutCause(ctx, replyTimeout, fmt.Errorf("alone: no answer in %v", replyTimeout))
	defer cancel()
	select {
	case a := <-c:
		return a.v, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
