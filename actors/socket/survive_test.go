package socket

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// TestSurvivesAPanic: a message panics, alone and while a step is in flight. All that wait get the error at once. In the
// next epoch the socket computes the same tokens as before, and all memory of the earlier one is free.
func TestSurvivesAPanic(t *testing.T) {
	r := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather})
	tokens := func() []int32 {
		p := sampler.Default()
		p.Temperature = 0
		q := &request{prompt: somePrompt(40, 1), max: 8, params: p, policy: "full"}
		r.generate(16, q)
		return q.tokens
	}
	want := tokens()
	answer := func(answers chan error) {
		t.Helper()
		select {
		case err := <-answers:
			if err == nil || !strings.Contains(err.Error(), "broken invariant") {
				t.Errorf("a message that panics: %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("a message that panics has no answer")
		}
	}
	answers := make(chan error, 4)
	breaks := &Prefix{Reply: func(_ *proto.PrefixReply, err error) { answers <- err }} // without a request
	for epoch := uint32(2); epoch < 4; epoch++ {
		sent := make(chan struct{})
		if epoch == 3 { // the socket is held up until both messages are in its mailbox, so the step cannot end before
			r.sys.Root.Send(r.pids[0], &Status{Reply: func(*proto.SocketStatus) { <-sent }})
			r.step++
			r.sys.Root.Send(r.pids[0], &Step{Request: &proto.StepRequest{Epoch: r.epoch, Step: r.step, MicroBatches: 1, Open: []*proto.Open{
				{Seq: 1000, Policy: "full", Sampling: &proto.Sampling{}, PromptTokens: 2}}, Chunks: []*proto.Chunk{
				{Seq: 1000, Tokens: []uint32{20, 21}, Prefill: true, Last: true}}}, Reply: func(_ *proto.StepReply, err error) { answers <- err }})
		}
		r.sys.Root.Send(r.pids[0], breaks)
		close(sent)
		answer(answers)
		if epoch == 3 {
			answer(answers)
		}
		r.place(epoch)
		r.step = 0
		if got := tokens(); !slices.Equal(got, want) {
			t.Errorf("epoch %d: %v, want %v", epoch, got, want)
		}
	}
	r.sys.Root.Send(r.pids[0], breaks)
	answer(answers)
	seen := make(chan *proto.SocketStatus, 1)
	r.sys.Root.Send(r.pids[0], &Status{Reply: func(s *proto.SocketStatus) { seen <- s }})
	if s := <-seen; s.Epoch != 3 || s.State != string(machine.Idle) {
		t.Errorf("after the panic it is %s, and the newest epoch is %d, want 3", s.State, s.Epoch)
	}
	r.sys.Root.Send(r.pids[0], &Load{Request: &proto.LoadRequest{Placement: &proto.Placement{Epoch: 3}},
		Reply: func(_ *proto.LoadReply, err error) { answers <- err }})
	if err := <-answers; err == nil {
		t.Error("an epoch was loaded twice")
	}
	r.place(4)
	used := make(chan int64, 1)
	r.sys.Root.Send(r.pids[0], &Status{Reply: func(s *proto.SocketStatus) { used <- s.KvUsedBytes }})
	if n := <-used; n != 0 {
		t.Errorf("%d bytes of caches are in use", n)
	}
}

// panics is a log that fails a test when a socket starts again after a panic.
type panics struct {
	slog.Handler
	t testing.TB
}

func (p panics) Enabled(context.Context, slog.Level) bool { return true }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if r.Message == afterPanic {
		r.Attrs(func(a slog.Attr) bool { p.t.Error(a); return true })
	}
	return nil
}
