package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestDisconnect: a disconnecting client frees its cache bytes within a few steps, streaming or
// not, during prefill or decode. Other clients are not affected.
func TestDisconnect(t *testing.T) {
	parallel(t)
	c := up(t, 2, "--chunk", "64")
	long := mixed(false)[1].body["prompt"] // 2000 tokens
	for _, x := range []struct {
		what   string
		stream bool
		after  int // number of events before it disconnects; 0: during prefill
	}{{"a stream in decode", true, 3}, {"a stream in prefill", true, 0}, {"a plain request", false, 0}} {
		ctx, leave := context.WithCancel(context.Background())
		body := map[string]any{"prompt": long, "max_tokens": 3000, "ignore_eos": true, "stream": x.stream, "logprobs": 1}
		left := make(chan error, 1)
		go func() {
			if !x.stream {
				_, err := c.try(ctx, "POST", "/v1/completions", body)
				left <- err
				return
			}
			_, err := c.stream(ctx, "/v1/completions", body, func(n int, _ string) error {
				if n == x.after {
					leave()
				}
				return nil
			})
			left <- err
		}()
		if x.after == 0 {
			testutil.Eventually(t, requestLimit, x.what+" holds bytes", func() (bool, string) { return c.used() > 0, "nothing is held" })
			leave()
		}
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v", x.what, err)
		}
		began := time.Now()
		leave()
		c.waitIdle(patience)
		t.Logf("%s: bytes were free %.2f s after it left", x.what, time.Since(began).Seconds())
	}
	// One of several choices and prompts: all of them end.
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	_, err := c.stream(ctx, "/v1/completions",
		map[string]any{"prompt": [][]int{{100}, {200}}, "n": 4, "max_tokens": 3000, "ignore_eos": true, "stream": true},
		func(n int, _ string) error {
			if n == 20 {
				leave()
			}
			return nil
		})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	c.waitIdle(patience)
	for _, n := range c.state().Nodes {
		if n.Sequences != 0 {
			t.Errorf("%s still owns %d sequences", n.ID, n.Sequences)
		}
	}
}

// used returns the sum of the cache bytes in use.
func (s *system) used() (sum int64) {
	s.t.Helper()
	for _, n := range s.state().Nodes {
		sum += n.KVUsedBytes
	}
	return sum
}

// TestDrain: Ctrl-C lets running requests finish, refuses new ones, and exits with status 0 and
// without leftover processes.
func TestDrain(t *testing.T) {
	parallel(t)
	c := up(t, 3)
	pids := c.children()
	if len(pids) != 3 {
		t.Fatalf("%d node processes, want 3", len(pids))
	}
	reqs := streaming(4, 60)
	want, _ := c.undisturbed(t, reqs)
	f := c.open(reqs)
	f.reach(t, 20)
	began := time.Now()
	if err := c.head.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the message that it stops", func() (bool, string) {
		b, err := os.ReadFile(c.head.err)
		return err == nil && strings.Contains(string(b), "stopping: "), "nothing"
	})
	t.Logf("the message came after %v", time.Since(began).Round(time.Millisecond))
	got, _ := f.wait(t)
	same(t, "drained", reqs, want, got)
	if _, err := c.try(context.Background(), "POST", "/v1/completions", `{"prompt":"a","max_tokens":1}`); err == nil {
		t.Log("a request was taken in the last moment")
	}
	if code := c.head.end(t, patience); code != 0 {
		t.Errorf("status %d after Ctrl-C, want 0", code)
	}
	t.Logf("drained and ended in %.1f s", time.Since(began).Seconds())
	c.waitEnded(pids)
}

// waitEnded waits until the processes have ended, and fails the test if they do not.
func (s *system) waitEnded(pids []int) {
	s.t.Helper()
	testutil.Eventually(s.t, patience, "the node processes end", func() (bool, string) {
		left := ""
		for _, pid := range pids {
			if name := built.running()[pid]; name != "" {
				left += fmt.Sprintf("%d %s; ", pid, name)
			}
		}
		return left == "", left
	})
}

// TestParentDies: nodes of `shoal up` end with it, however it ends.
func TestParentDies(t *testing.T) {
	parallel(t)
	c := up(t, 2)
	pids := c.children()
	c.head.kill(t)
	c.waitEnded(pids)
}

// TestAllNodesDie: a local cluster without nodes exits with a reason.
func TestAllNodesDie(t *testing.T) {
	parallel(t)
	c := up(t, 2)
	for _, pid := range c.children() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	code := c.head.end(t, patience)
	if text := tail(c.head.err); code == 0 || !strings.Contains(text, "every node process has ended") {
		t.Errorf("status %d: %s", code, text)
	}
}

// TestEnvironment: `shoal up` passes settings to its nodes as flags; they do not inherit the
// parent's environment settings.
func TestEnvironment(t *testing.T) {
	parallel(t)
	key, _, _ := command(t, startLimit, nil, "keygen")
	c := start(t,
		config{nodes: 2, env: []string{"SHOAL_CLUSTER_KEY=" + strings.TrimSpace(key), "SHOAL_KV_MEMORY=64MiB", "SHOAL_UP_SHARE=1,3"}})
	shares := ""
	for _, n := range c.state().Nodes {
		shares += fmt.Sprintf("%.2f ", n.Share)
		if n.KVBudgetBytes != 64<<20 {
			t.Errorf("%s has %d bytes of cache, want 64 MiB", n.ID, n.KVBudgetBytes)
		}
	}
	if shares != "0.25 0.75 " {
		t.Errorf("shares are %s", shares)
	}
}
