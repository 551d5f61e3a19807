package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestHungLoad: of three sockets one leaves. The executor of another one hangs, so that it never
// loads its new slices although its actor responds. It is named and left out, and the third one
// serves alone with the same tokens.
func TestHungLoad(t *testing.T) {
	const deadline = 4 * time.Second
	g := goldens(t)[6]
	c := startLocal(t,
		LocalConfig{Sockets: 3, Threads: 1, Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32", LoadDeadline: deadline}})
	hung, free := make(chan bool, 1), make(chan struct{})
	c.system.Root.Send(c.sockets[1].pid, &socket.Release{Request: &proto.ReleaseRequest{Epoch: c.director.Serving(0).Placement.Epoch},
		Reply: func(_ *proto.ReleaseReply, err error) {
			hung <- err == nil
			if err == nil {
				<-free
			}
		}})
	defer close(free)
	if !<-hung {
		t.Fatal("an idle socket refused a release")
	}
	began, reported := time.Now(), 0.0
	if err := c.Drain(t.Context(), "socket-2"); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 20*deadline, "the hung node is left out", func() (bool, string) {
		s := c.Cluster()
		if s.Fences["hung"] == 0 {
			reported = max(reported, s.LoadSeconds)
		}
		return s.Fences["hung"] > 0, fmt.Sprintf("%+v", s)
	})
	if reported < 1 || reported > time.Since(began).Seconds()+0.1 {
		t.Errorf("in %.1f s of loading the state reported %.1f", time.Since(began).Seconds(), reported)
	}
	t.Logf("left out %.2f s after the load began, of a deadline of %v", time.Since(began).Seconds(), deadline)
	if got := generate(t, c, "r", g.Prompt, len(g.Greedy)); !slices.Equal(got, g.Greedy) {
		t.Errorf("got %v, want %v", got, g.Greedy)
	}
	if s := c.Cluster().LoadSeconds; s != 0 {
		t.Errorf("it serves, but its state reports loading for %v s", s)
	}
	want := map[string]string{"socket-0": "ready", "socket-1": "fenced", "socket-2": "drained"}
	for _, n := range c.Cluster().Nodes {
		if n.State != want[n.ID] || n.ID == "socket-1" && !strings.Contains(n.Reason, "no progress in loading") {
			t.Errorf("%s is %s (%s), want %s", n.ID, n.State, n.Reason, want[n.ID])
		}
	}
}
