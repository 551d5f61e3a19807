package supervise

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestEnding: an ended process gives one short log line, with the reason if known.
func TestEnding(t *testing.T) {
	killed := exec.Command("sh", "-c", "kill -9 $$").Run()
	failed := exec.Command("sh", "-c", "exit 1").Run()
	trace := "panic: out of order\n\ngoroutine 1 [running]:\n" + strings.Repeat("main.main()\n\t/a/b.go:1\n", 40)
	for _, c := range []struct {
		err             error
		file, tail, out string
	}{
		{killed, "", "time=1 level=INFO msg=x\n", "[id n pid 7 how signal: killed log none kept; --log-dir DIR keeps it]"},
		{killed, "/l/n.log", trace, "[id n pid 7 how signal: killed log /l/n.log]"},
		{failed, "", "time=1 msg=x\nshoal: no such file\n\n",
			"[id n pid 7 how exit status 1 log none kept; --log-dir DIR keeps it last shoal: no such file]"},
		{failed, "/l/n.log", "x\n" + trace, "[id n pid 7 how exit status 1 log /l/n.log last panic: out of order]"},
		{failed, "", strings.Repeat("y", 5000),
			"[id n pid 7 how exit status 1 log none kept; --log-dir DIR keeps it last " + strings.Repeat("y", 300) + "]"},
		{nil, "", "", "[id n pid 7 how exit status 0 log none kept; --log-dir DIR keeps it]"},
		{errors.New("wait: no child"), "", "", "[id n pid 7 how wait: no child log none kept; --log-dir DIR keeps it]"},
	} {
		if got := fmt.Sprint(exitAttrs("n", 7, c.err, c.file, c.tail)); got != c.out {
			t.Errorf("%v, %q: %s, want %s", c.err, c.file, got, c.out)
		}
	}
}
