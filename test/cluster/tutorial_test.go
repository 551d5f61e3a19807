package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTutorial runs docs/tutorial.md: what stands in its boxes, in one shell, at ports that
// are free.
func TestTutorial(t *testing.T) {
	if !full() {
		t.Skip("SHOAL_E2E=full: it starts seven processes, one after the other")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	text, err := os.ReadFile("../../docs/tutorial.md")
	if err != nil {
		t.Fatal(err)
	}
	script := "set -euxo pipefail\n"
	boxes := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(text, -1)
	if len(boxes) < 7 {
		t.Fatalf("%d boxes found", len(boxes))
	}
	for _, b := range boxes {
		script += string(b[1])
	}
	api, gossip := freePort(t), freePort(t)
	script = strings.ReplaceAll(script, "127.0.0.1:7070", gossip)
	dir, bin := t.TempDir(), filepath.Dir(built.shoal(t, ""))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bash, "-c", script)
	c.Dir = dir
	c.Env = append(os.Environ(), "PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "HOME="+dir, "XDG_STATE_HOME="+dir, "SHOAL_LISTEN="+api, "SHOAL_SERVER="+api)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with what it leaves in the background
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	if err != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		for _, name := range []string{"up.log", "coordinator.log"} {
			if log, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				out = append(out, "\n--- "+name+":\n"+string(log)...)
			}
		}
		t.Fatalf("the tutorial: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "\nthe same\n") || !strings.Contains(string(out), "node-1") {
		t.Errorf("the tutorial prints\n%s", out)
	}
}
