package socket

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// TestStepCutByANewEpoch ends an epoch during any stage of a step. The step must get a reply and
// must not read freed memory, which would crash. The next epoch must work.
func TestStepCutByANewEpoch(t *testing.T) {
	rounds := 400
	if testing.Short() || raceEnabled {
		rounds = 60
	}
	for _, sockets := range []int{1, 3} {
		t.Run(fmt.Sprint(sockets), func(t *testing.T) { cutSteps(t, sockets, rounds) })
	}
}

func cutSteps(t *testing.T, sockets, rounds int) {
	r := newRig(t, rigConfig{dir: goldenDir, sockets: sockets, mapping: topology.Gather})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range rounds {
		s := &proto.StepRequest{Epoch: r.epoch, Step: 1}
		p := greedy(0)
		for seq := range sockets {
			prompt := make([]uint32, 64)
			s.Open = append(s.Open,
				&proto.Open{Seq: uint64(1000*i + seq + 1), Owner: uint32(seq), Policy: "full", Sampling: plan.EncodeSampling(&p), PromptTokens: 64})
			s.Chunks = append(s.Chunks, &proto.Chunk{Seq: uint64(1000*i + seq + 1), Prefill: true, Last: true, Sample: true, Tokens: prompt})
		}
		replies := make(chan error, len(r.pids))
		for _, p := range r.pids {
			r.sys.Root.Send(p, &Step{Request: s, Reply: func(_ *proto.StepReply, err error) { replies <- err }})
		}
		time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
		r.place(r.epoch + 1)
		for range r.pids {
			select {
			case <-replies: // done or retired; only the reply counts
			case <-time.After(2 * time.Minute):
				t.Fatalf("round %d: a step that a new epoch ended got no reply within 2 minutes", i)
			}
		}
	}
}
