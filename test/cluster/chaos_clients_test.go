package cluster_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestChaosAborts: half of the clients disconnect while a node dies: before, during and after the
// recovery. The others get their text, and no cache byte leaks.
func TestChaosAborts(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	reqs := streaming(12, 60)
	c := up(t, 3)
	want, _ := c.undisturbed(t, reqs)
	stay, leave := reqs[:6], reqs[6:]
	ctx, goAway := context.WithCancel(context.Background())
	defer goAway()
	left := make(chan error, len(leave))
	for i, r := range leave {
		go func() {
			_, err := c.stream(ctx, r.path, r.body, func(n int, _ string) error {
				if n == 5*(i+1) { // after 5 to 30 of 60 tokens
					return context.Canceled
				}
				return nil
			})
			left <- err
		}()
	}
	surviveFault(t, c, "clients leave, kill -9 node-1", stay, want[:6], func() {
		c.signal("node-1", syscall.SIGKILL)
		time.AfterFunc(200*time.Millisecond, goAway) // the rest disconnects during the recovery
	})
	for range leave {
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
	}
	c.waitNodes(2, recoverLimit)
	c.waitIdle(patience)
}

// TestChaosFlapping: while streams decode, a node is killed repeatedly, after or during its restart.
func TestChaosFlapping(t *testing.T) {
	testlevel.NeedFull(t)
	reqs := streaming(8, 48)
	c, gossip := coordinate(t, config{args: []string{"--nodes", "3"}})
	join(t, "a", gossip, nil)
	join(t, "b", gossip, nil)
	flapping := join(t, "c", gossip, nil)
	c.waitReady()
	want, _ := c.undisturbed(t, reqs)
	before := c.state().Epoch
	c.busy(t, "a node flaps", reqs, want, func() {
		for i := range 6 {
			flapping.kill(t)
			c.waitNodes(2, recoverLimit)
			flapping = join(t, "c", gossip, nil)
			if i%2 == 1 {
				c.waitNodes(3, recoverLimit)
				continue
			}
			time.Sleep(time.Duration(i) * 700 * time.Millisecond) // it dies while starting or joining
		}
		c.waitNodes(3, recoverLimit)
	})
	c.waitIdle(patience)
	if s := c.state(); s.Epoch < before+6 || s.Epoch > before+40 {
		t.Errorf("epoch %d before, %d after six deaths of one node", before, s.Epoch)
	}
}
