package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
)

// behavior names what a child of these tests does in place of the tests.
const behavior = "SHOAL_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(behavior) {
	case "writes": // some lines, then it waits for the end of its parent
		for i := range 10 {
			fmt.Fprintln(os.Stderr, "line", i)
			time.Sleep(time.Millisecond)
		}
		fmt.Fprintln(os.Stderr, "still here")
		_, _ = io.Copy(io.Discard, bufio.NewReader(os.Stdin))
		os.Exit(0)
	case "leaves": // a process that keeps standard error open
		cmd := exec.Command("sleep", "60")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "pid", cmd.Process.Pid)
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// fullDisk fails after some writes.
type fullDisk struct {
	left  int
	calls atomic.Int64
}

func (f *fullDisk) Write(p []byte) (int, error) {
	if f.calls.Add(1) > int64(f.left) {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

// TestLogThatCannotBeWritten: a full disk of --log-dir costs lines of a log, not the process that writes them.
func TestLogThatCannotBeWritten(t *testing.T) {
	c := New(security.NewKey(), slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	full := &fullDisk{left: 1}
	x := Child{ID: "a", Env: []string{behavior + "=writes"}, Stderr: full, Exited: func(err error) { ended <- err }}
	if err := c.Start(x); err != nil {
		t.Fatal(err)
	}
	defer c.Stop(time.Second)
	c.mu.Lock()
	k := c.list[0]
	c.mu.Unlock()
	deadline := time.After(time.Minute)
	for !strings.Contains(k.tail.String(), "still here") {
		select {
		case err := <-ended:
			t.Fatalf("the process ended because its log cannot be written: %v", err)
		case <-deadline:
			t.Fatalf("after a minute the process has written %q", k.tail.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
	if full.calls.Load() < 2 {
		t.Error("the log was never full")
	}
}

// TestEndWithOpenOutput: the end of a process is noticed although a process that it started keeps its standard error open.
func TestEndWithOpenOutput(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Skip("NOT TESTED: there is no sleep here")
	}
	c := New(security.NewKey(), slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	var out lastLines
	x := Child{ID: "a", Env: []string{behavior + "=leaves"}, Stderr: &out, Exited: func(err error) { ended <- err }}
	if err := c.Start(x); err != nil {
		t.Fatal(err)
	}
	defer func() {
		var pid int
		if _, err := fmt.Sscanf(out.String(), "pid %d", &pid); err == nil {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		c.Stop(time.Second)
	}()
	select {
	case err := <-ended:
		var failed *exec.ExitError
		if !errors.As(err, &failed) || failed.ExitCode() != 3 {
			t.Errorf("ended with %v, want exit status 3", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the end was not noticed within 30 s")
	}
}
