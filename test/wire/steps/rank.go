// Package steps times steps of a model over the ranks of a simulated network, one process each, without a
// coordinator: all ranks derive the same plans. Blocks of steps with one and with two micro-batches alternate.
package steps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// Rank is one process.
type Rank struct {
	Model   string // folder, or a shape of random weights
	Random  bool
	Weights tensor.DType
	Mapping topology.Mapping
	Rank    int
	Hosts   []string // addresses of all ranks
	Rows    int      // sequences that decode; 0: a chunk of a prompt
	Chunk   int      // tokens of the chunk
	Blocks  int      // of steps, for each number of micro-batches
	Steps   int      // of a block
	Timeout time.Duration
}

// Result is the first quartile of steps with one and with two micro-batches.
type Result struct {
	Wall, Compute, Wait [plan.MaxMicroBatches]time.Duration
	Exchanges           int // collectives of a step with one micro-batch, one after the other
}

const (
	firstPort  = 26190 // of two on every host
	cacheBytes = 512 << 20
	warmSteps  = 4
)

// Run joins the other ranks and returns the times of this rank.
func (r *Rank) Run(ctx context.Context) (res Result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("rank %d: not finished in %v", r.Rank, r.Timeout))
	defer cancel()
	open := checkpoint.Open
	if r.Random {
		open = checkpoint.Random
	}
	ck, err := open(r.Model)
	if err != nil {
		return res, err
	}
	defer ck.Close()
	bus, err := natsbus.Start(natsbus.Config{Name: fmt.Sprintf("rank-%d", r.Rank),
		Listen: net.JoinHostPort(r.Hosts[r.Rank], strconv.Itoa(firstPort)), ClientPort: firstPort + 1,
		Seeds: []string{net.JoinHostPort(r.Hosts[0], strconv.Itoa(firstPort))}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return res, err
	}
	defer bus.Shutdown()
	pool := tensor.NewPool(1)
	defer pool.Close()
	quiet := slog.New(slog.DiscardHandler)
	ops := &counter{}
	stopped := make(chan struct{})
	cfg := socket.Config{Checkpoint: ck, Pool: pool, Threads: topology.Threads{Max: 1, Min: 1}, OnThreads: processors,
		KVBudget: cacheBytes, Logger: quiet, Stopped: stopped,
		Connect: func(ctx context.Context, group string, epoch uint32, rank int, incarnations []uint32) (collective.Transport, error) {
			t, err := bus.Join(ctx, group, epoch, rank, incarnations)
			if err != nil {
				return nil, err
			}
			ops.Transport = t.(*natsbus.Transport) // the group polls and recycles it through these interfaces
			return ops, nil
		}}
	sys := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
	defer sys.Shutdown()
	pid := sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &socket.Actor{Config: cfg} }))
	defer socket.Stop(sys.Root, pid, stopped)
	s := &session{rank: r, ask: func(m any) { sys.Root.Send(pid, m) }}
	if err := s.join(ctx, ck); err != nil {
		return res, err
	}
	res, err = s.measure(ctx, ops)
	time.Sleep(lastMessages)
	return res, err
}

// lastMessages is the time that a rank stays after its last step, so that the others get its messages.
const lastMessages = time.Second

// processors sets the number of Go processors, as a node does.
func processors(n int) { runtime.GOMAXPROCS(n) }

// counter counts the collectives of steps with one micro-batch. All ranks give them the same numbers, also those in which
// this rank sends nothing.
type counter struct {
	*natsbus.Transport
	mu           sync.Mutex
	newest, last uint64 // sequence numbers
}

func (c *counter) Broadcast(msg []byte) error { c.count(msg); return c.Transport.Broadcast(msg) }

func (c *counter) Send(dst int, msg []byte) error { c.count(msg); return c.Transport.Send(dst, msg) }

func (c *counter) count(msg []byte) {
	if h, _, bad := collective.ParseMessage(msg); bad == collective.DropNone && h.Op.MicroBatch() == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.newest = max(c.newest, h.Op.Sequence())
	}
}

// take returns the number of collectives since the last call.
func (c *counter) take() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.newest - c.last
	c.last = c.newest
	return int(n)
}

// session is one rank's socket and the sequences of its plans.
type session struct {
	rank *Rank
	ask  func(m any)
	step uint64
	seq  uint64
	at   int // position of the next decode rows
}

func (s *session) join(ctx context.Context, ck *checkpoint.Checkpoint) error {
	n := len(s.rank.Hosts)
	members := make([]topology.Member, n)
	for i := range members {
		members[i].ID = fmt.Sprint("rank-", i)
	}
	place, err := topology.Place(1, s.rank.Mapping, shard.ShapeOf(&ck.Config), members)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	s.ask(&socket.Load{Request: &proto.LoadRequest{Placement: socket.PlacementMessage(place, make([]uint64, n)),
		Rank: uint32(s.rank.Rank), ModelHash: ck.Hash(),
		WeightType: s.rank.Weights.String(), KvType: tensor.BF16.String(), MaxStepTokens: 512},
		Reply: func(_ *proto.LoadReply, err error) { done <- err }})
	if err := wait(ctx, done); err != nil {
		return err
	}
	s.ask(&socket.Join{Request: &proto.JoinRequest{Epoch: 1, DeadlineMillis: uint32(s.rank.Timeout.Milliseconds()),
		Group: "steps", Incarnations: make([]uint32, n)},
		Reply: func(_ *proto.JoinReply, err error) { done <- err }})
	return wait(ctx, done)
}

func wait(ctx context.Context, done chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run runs one step.
func (s *session) run(ctx context.Context, m *proto.StepRequest) (wall time.Duration, t step.Times, reply *proto.StepReply, err error) {
	s.step++
	m.Epoch, m.Step = 1, s.step
	done, began := make(chan error, 1), time.Now()
	s.ask(&socket.Step{Request: m, Times: func(x step.Times) { t = x }, Reply: func(r *proto.StepReply, err error) { reply = r; done <- err }})
	err = wait(ctx, done)
	return time.Since(began), t, reply, err
}

// open begins a sequence.
func (s *session) open(m *proto.StepRequest, prompt, owner int) uint64 {
	params := sampler.Default()
	params.Temperature = 0
	s.seq++
	m.Open = append(m.Open, &proto.Open{Seq: s.seq, Owner: uint32(owner % len(s.rank.Hosts)), Policy: "full",
		Sampling: plan.EncodeSampling(&params), PromptTokens: uint32(prompt)})
	return s.seq
}

func tokens(n int, seed uint64) (list []uint32) {
	for i := range n {
		list = append(list, uint32(7+(31*i+17*int(seed))%400))
	}
	return list
}

// promptTokens is the length of the prompts of sequences that decode.
const promptTokens = 16

// next returns the plan of the next step.
func (s *session) next() *proto.StepRequest {
	m := &proto.StepRequest{}
	if s.rank.Rows == 0 { // the same chunk of a new prompt
		if s.seq > 0 {
			m.Release = []uint64{s.seq}
		}
		id := s.open(m, s.rank.Chunk+1, int(s.seq))
		m.Chunks = []*proto.Chunk{{Seq: id, Tokens: tokens(s.rank.Chunk, 1), Prefill: true}}
		return m
	}
	for i := range s.rank.Rows {
		if s.at == 0 {
			id := s.open(m, promptTokens, i)
			m.Chunks = append(m.Chunks, &proto.Chunk{Seq: id, Tokens: tokens(promptTokens, id), Prefill: true, Last: true, Sample: true})
			continue
		}
		c := &proto.Chunk{Seq: uint64(i + 1), Start: uint32(s.at), Tokens: tokens(1, s.step), Sample: true}
		if s.at > promptTokens {
			c.Accepted = 1
		}
		m.Chunks = append(m.Chunks, c)
	}
	s.at = max(promptTokens, s.at+1)
	return m
}

func (s *session) measure(ctx context.Context, ops *counter) (res Result, err error) {
	for range warmSteps {
		if _, _, _, err := s.run(ctx, s.next()); err != nil {
			return res, err
		}
	}
	ops.take()
	var all [plan.MaxMicroBatches][3][]time.Duration
	for block := range 2 * s.rank.Blocks {
		micro := (block + block/2) % 2 // 1 2 2 1
		for i := range s.rank.Steps + 1 {
			m := s.next()
			m.MicroBatches = uint32(1 + micro)
			wall, t, reply, err := s.run(ctx, m)
			if err != nil {
				return res, err
			}
			if n := ops.take(); micro == 0 {
				res.Exchanges = n
			}
			if i == 0 { // not comparable with earlier steps
				continue
			}
			for j, d := range []time.Duration{wall, time.Duration(reply.ComputeMicros) * time.Microsecond, t.Wait} {
				all[micro][j] = append(all[micro][j], d)
			}
		}
	}
	for micro := range all {
		res.Wall[micro], res.Compute[micro], res.Wait[micro] = quartile(all[micro][0]), quartile(all[micro][1]), quartile(all[micro][2])
	}
	if res.Exchanges == 0 {
		return res, errors.New("the ranks have exchanged nothing")
	}
	return res, nil
}

// quartile returns the first quartile: other programs on the machine only make steps longer.
func quartile(of []time.Duration) time.Duration {
	slices.Sort(of)
	return of[len(of)/4]
}
