package socket

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testutil"
	"github.com/shoal-llm/shoal/topology"
)

// arenaDevice is a layer.Host whose arena the test can see.
type arenaDevice struct {
	layer.Host
	arena **memory.Arena
}

func (d arenaDevice) Arena(budget int64) *memory.Arena {
	*d.arena = d.Host.Arena(budget)
	return *d.arena
}

// TestFailedOpenLeavesNoCache ends an epoch with a step whose first effects failed: there was no memory for a fork, and
// the sequence after it did not take over its cache. In the next epoch the socket has neither of them, and no memory is lost.
func TestFailedOpenLeavesNoCache(t *testing.T) {
	r, arena, open, prompt, token := failedOpen(t)
	var held []uint64
	for _, h := range r.place(2)[0] {
		held = append(held, h.Seq)
	}
	if !slices.Equal(held, []uint64{1}) {
		t.Errorf("the socket has the caches of sequences %v, want [1]", held)
	}
	resumed := open(1)
	resumed.Resume = prompt
	r.run(&proto.StepRequest{Open: []*proto.Open{resumed}, Chunks: []*proto.Chunk{
		{Seq: 1, Start: uint32(len(prompt)), Tokens: []uint32{token}, Sample: true}}})
	released := make(chan error, 1)
	r.sys.Root.Send(r.pids[0], &Release{Request: &proto.ReleaseRequest{Epoch: 2, Seqs: []uint64{1, 2, 11, 12}},
		Reply: func(_ *proto.ReleaseReply, err error) { released <- err }})
	r.all(released)
	if n := arena.Used(); n != 0 {
		t.Errorf("%d bytes of caches are in use after the last sequence", n)
	}
}

// TestRetireAfterFailedOpen: a socket without an epoch has no memory in use.
func TestRetireAfterFailedOpen(t *testing.T) {
	r, arena, _, _, _ := failedOpen(t)
	r.sys.Root.Send(r.pids[0], &Retire{Request: &proto.RetireRequest{Epoch: 1}, Reply: func(error) {}})
	testutil.Eventually(t, 10*time.Second, "the socket frees its memory", func() (bool, string) {
		return arena.Used() == 0, fmt.Sprint(arena.Used(), " bytes are in use")
	})
}

// failedOpen runs a step whose first effects fail, after sequences 1 and 2 have read their prompts: sequence 11 forks the
// first without memory, and 12 takes over the cache of the second. There is memory again afterwards.
func failedOpen(t *testing.T) (r *rig, arena *memory.Arena, open func(seq uint64) *proto.Open, prompt []uint32, token uint32) {
	const policy = "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64"
	r = newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Reduce, kv: tensor.BF16,
		device: func(p *tensor.Pool) layer.Device { return arenaDevice{layer.Host{Pool: p}, &arena} }})
	params := greedy(0)
	sampling := plan.EncodeSampling(&params)
	for _, token := range somePrompt(70, 1) {
		prompt = append(prompt, uint32(token))
	}
	open = func(seq uint64) *proto.Open {
		return &proto.Open{Seq: seq, Policy: policy, Sampling: sampling, PromptTokens: uint32(len(prompt))}
	}
	first := &proto.StepRequest{}
	for seq := uint64(1); seq <= 2; seq++ {
		first.Open = append(first.Open, open(seq))
		first.Chunks = append(first.Chunks, &proto.Chunk{Seq: seq, Prefill: true, Last: true, Sample: true, Tokens: prompt})
	}
	token = uint32(r.run(first)[1].Drawn[0].Token)

	fork, take := open(11), open(12)
	fork.Fork, fork.Resume, fork.TailTokens = 1, prompt, 1
	take.Fork, take.Resume, take.Take, take.TailTokens = 2, prompt, true, 1
	arena.SetBudget(arena.Used())
	r.step++
	failed := make(chan error, 1)
	r.sys.Root.Send(r.pids[0], &Step{Reply: func(_ *proto.StepReply, err error) { failed <- err }, Request: &proto.StepRequest{
		Epoch: 1, Step: r.step, Open: []*proto.Open{fork, take}, Chunks: []*proto.Chunk{
			{Seq: 11, Start: uint32(len(prompt)), Tokens: []uint32{token}, Sample: true},
			{Seq: 12, Start: uint32(len(prompt)), Tokens: []uint32{token}, Sample: true}}}})
	select {
	case err := <-failed:
		if err == nil {
			t.Fatal("a fork without memory succeeded")
		}
	case <-time.After(time.Minute):
		t.Fatal("no reply")
	}
	arena.SetBudget(1 << 30)
	return r, arena, open, prompt, token
}
