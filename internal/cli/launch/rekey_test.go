//go:build unix

package launch

import (
	"bytes"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestHangupDuringStart: a service that gets SIGHUP before it has opened its files must not end. systemd counts that as a
// clean exit, after which Restart=on-failure starts nothing.
func TestHangupDuringStart(t *testing.T) {
	for name, run := range map[string]func(*ui.Env) error{
		"up": (&Up{}).Run, "coordinator": (&CoordinatorCmd{}).Run, "node": (&NodeCmd{}).Run,
	} {
		signal.Reset(syscall.SIGHUP)
		t.Cleanup(func() { signal.Reset(syscall.SIGHUP) })
		if signal.Ignored(syscall.SIGHUP) {
			t.Skip("NOT TESTED: this process was started with SIGHUP ignored")
		}
		var out bytes.Buffer
		if err := run(&ui.Env{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}); err == nil {
			t.Fatalf("%s without flags has started", name)
		}
		if !signal.Ignored(syscall.SIGHUP) {
			t.Errorf("%s ends at a SIGHUP before it handles it", name)
		}
	}
}
