package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestSecondSignal: a drain waits for requests that cannot end because the nodes are frozen. A
// second signal then ends `shoal up` immediately, with a separate status and an explanation.
func TestSecondSignal(t *testing.T) {
	parallel(t)
	c := up(t, 2)
	pids := c.children()
	signal := func(pid int, s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
	f := c.open(streaming(2, 400))
	f.reach(t, 5)
	for _, pid := range pids {
		signal(pid, syscall.SIGSTOP)
	}
	signal(c.head.cmd.Process.Pid, syscall.SIGTERM)
	testutil.Eventually(t, startLimit, "it drains", func() (bool, string) {
		a, err := c.try(context.Background(), "GET", "/ready", nil)
		return err != nil || strings.Contains(string(a.body), "draining"), string(a.body)
	})
	time.Sleep(200 * time.Millisecond) // an earlier signal would count as the first one
	signal(c.head.cmd.Process.Pid, syscall.SIGTERM)
	if code := c.head.end(t, startLimit); code != 130 || !strings.Contains(tail(c.head.err), "terminated during shutdown: stopped at once") {
		t.Errorf("status %d after the second signal, want 130 and a word on it", code)
	}
	for _, pid := range pids {
		signal(pid, syscall.SIGCONT)
	}
	c.waitEnded(pids)
}

// freeze stops a process and returns when all of its threads have stopped. After the signal, one of
// them may still answer a request.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, startLimit, "a stopped process stands still", func() (bool, string) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, f := range threads {
			if b, _ := os.ReadFile(f); !strings.Contains(string(b), ") T ") {
				return false, string(b)
			}
		}
		return len(threads) > 0, "no threads"
	})
}
