package socket

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// TestStopInTheMidst stops a socket while it loads, reads a prompt or decodes. When Stop returns,
// nothing may read the checkpoint any more: the test unmaps it at once, and a read would crash.
func TestStopInTheMidst(t *testing.T) {
	rounds := 150
	if testing.Short() || raceEnabled {
		rounds = 30
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	random := rand.New(rand.NewPCG(3, 4))
	for range rounds {
		ck, err := checkpoint.Open(goldenDir)
		if err != nil {
			t.Fatal(err)
		}
		place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&ck.Config), []topology.Member{{ID: "alone"}})
		if err != nil {
			t.Fatal(err)
		}
		pool, sys := tensor.NewPool(2), actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }))
		cfg := Config{Checkpoint: ck, Pool: pool, KVBudget: 1 << 26, Logger: quiet, Stopped: make(chan struct{}),
			Connect: func(context.Context, string, uint32, int, []uint32) (collective.Transport, error) {
				return collective.NewMemory(1)[0], nil
			}}
		pid := sys.Root.Spawn(actor.PropsFromProducer(func() actor.Actor { return &Actor{Config: cfg} }))
		p := greedy(0)
		step := &proto.StepRequest{Epoch: 1, Step: 1,
			Open:   []*proto.Open{{Seq: 1, Policy: "full", Sampling: plan.EncodeSampling(&p), PromptTokens: 400}},
			Chunks: []*proto.Chunk{{Seq: 1, Prefill: true, Last: true, Sample: true, Tokens: make([]uint32, 400)}}}
		// Each command follows the reply to the one before. A stopped socket sends none.
		sys.Root.Send(pid, &Load{Request: &proto.LoadRequest{Placement: PlacementMessage(place, []uint64{0}), ModelHash: ck.Hash(),
			WeightType: "Q8", KvType: "BF16", MaxStepTokens: 512}, Reply: func(*proto.LoadReply, error) {
			sys.Root.Send(pid, &Join{Request: &proto.JoinRequest{Epoch: 1, DeadlineMillis: 120_000, Group: "t", Incarnations: []uint32{0}},
				Reply: func(*proto.JoinReply, error) {
					sys.Root.Send(pid, &Step{Request: step, Reply: func(*proto.StepReply, error) {}})
				}})
		}})
		time.Sleep(time.Duration(random.IntN(6000)) * time.Microsecond)
		Stop(sys.Root, pid, cfg.Stopped)
		ck.Close()
		pool.Close()
		sys.Shutdown()
	}
}
