//go:build unix

package cli

import (
	"context"
	"io"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestConfigPipeIsInterrupted checks that a command that waits for its config file ends at the first
// signal.
func TestConfigPipeIsInterrupted(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "flags")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan int, 1)
	go func() {
		status <- run(ui.Env{Ctx: ctx, Stdout: io.Discard, Stderr: io.Discard}, []string{"version", "--config", pipe})
	}()
	select {
	case s := <-status:
		t.Fatalf("it did not wait for the pipe: status %d", s)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	select {
	case s := <-status:
		if s != exitInterrupted {
			t.Errorf("status %d, want %d", s, exitInterrupted)
		}
	case <-time.After(time.Minute):
		t.Error("the signal has no effect while the file is read")
	}
}
