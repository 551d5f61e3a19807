package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestHungExecutor: the executor of one socket of three hangs while its actor responds. The socket
// is left out within the step deadline, and the request continues with the same tokens. No other
// socket may be blamed.
func TestHungExecutor(t *testing.T) {
	const deadline = 4 * time.Second
	g := goldens(t)[6]
	c := startLocal(t, LocalConfig{Sockets: 3, Threads: 1,
		Serve: ServeConfig{Model: goldenDir, Weights: "f32", KV: "f32", StepDeadline: deadline, SyncDeadline: 5 * time.Minute}})
	// The executor runs the reply of a release; this one does not return.
	hung, free := make(chan struct{}), make(chan struct{})
	hang := func() bool {
		taken := make(chan bool, 1)
		c.system.Root.Send(c.sockets[1].pid, &socket.Release{Request: &proto.ReleaseRequest{Epoch: c.director.Serving(0).Placement.Epoch},
			Reply: func(_ *proto.ReleaseReply, err error) {
				taken <- err == nil
				if err == nil {
					close(hung)
					<-free
				}
			}})
		return <-taken
	}
	defer close(free)
	if !hang() {
		t.Fatal("an idle socket refused a release")
	}
	<-hung
	began := time.Now()
	done := make(chan []int32, 1)
	go func() { done <- generate(t, c, "r", g.Prompt, len(g.Greedy)) }()
	testutil.Eventually(t, patience, "the hung socket is left out", func() (bool, string) { // the collective's deadline would be later
		s := c.Cluster()
		return s.Epoch >= 2, fmt.Sprintf("%+v", s)
	})
	t.Logf("left out %.2f s after the step began, of a deadline of %v", time.Since(began).Seconds(), deadline)
	if got := <-done; !slices.Equal(got, g.Greedy) {
		t.Errorf("got %v, want %v", got, g.Greedy)
	}
	for _, n := range c.Cluster().Nodes {
		if want := map[bool]string{true: "fenced", false: "ready"}[n.ID == "socket-1"]; n.State != want {
			t.Errorf("%s is %s (%s), want %s", n.ID, n.State, n.Reason, want)
		}
	}
	if f := c.Cluster().Fences; f["hung"] != 1 || f["slow"] != 0 {
		t.Errorf("fences: %v", f)
	}
	// While it hangs, no probe readmits it.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := c.director.View(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := v.Hosts["socket-1"].Handles[0].Status(ctx); err != nil || !st.Busy {
		t.Errorf("the status of the hung socket is %v, %v", st, err)
	}
}
