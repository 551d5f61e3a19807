package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestKeyRotation changes the key of a serving cluster in the three rounds of docs/machines.md:
// every process accepts the new key too, then uses it, then drops the old one. No stream and no
// epoch ends. Afterwards the old key is refused and the new one works.
func TestKeyRotation(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	dir := t.TempDir()
	before, after := security.NewKey(), security.NewKey()
	write := func(name string, keys ...security.Key) string {
		path, text := filepath.Join(dir, name), ""
		for _, k := range keys {
			text += k.Text() + "\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	names := []string{"coordinator", "a", "b", "c"}
	for _, n := range names {
		write(n, before)
	}
	c, gossip := coordinate(t, config{args: []string{"--nodes", "3", "--cluster-key", filepath.Join(dir, "coordinator")}})
	procs := []*process{c.head}
	for _, n := range names[1:] {
		procs = append(procs, join(t, n, gossip, nil, "--cluster-key", filepath.Join(dir, n)))
	}
	c.waitReady()
	reqs := streaming(6, 60)
	want, _ := c.undisturbed(t, reqs)
	epoch := c.state().Epoch
	c.busy(t, "the cluster key is changed", reqs, want, func() {
		for round, keys := range [][]security.Key{{before, after}, {after, before}, {after}} {
			var prints []string
			for _, k := range keys {
				prints = append(prints, k.Fingerprint())
			}
			for i, n := range names {
				write(n, keys...)
				if err := procs[i].cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
				line := `msg="cluster key file read" keys="` + strings.Join(prints, ", ") + `"`
				if len(prints) == 1 {
					line = `msg="cluster key file read" keys=` + prints[0]
				}
				testutil.Eventually(t, patience, fmt.Sprintf("round %d at %s", round, n), func() (bool, string) {
					log, err := os.ReadFile(procs[i].err)
					if err != nil {
						t.Fatal(err)
					}
					return strings.Contains(string(log), line), tail(procs[i].err)
				})
				time.Sleep(300 * time.Millisecond) // between machines it takes longer
			}
			time.Sleep(2 * time.Second) // several gossip probes
		}
	})
	if s := c.state(); s.Epoch != epoch || len(s.Nodes) != 3 {
		t.Errorf("epoch %d before, %d after the key was changed, of %d nodes", epoch, s.Epoch, len(s.Nodes))
	}
	_, stderr, code := command(t, patience, nil, "node", "--id", "late", "--join", gossip, "--cluster-key", write("old", before))
	if code != 1 || !strings.Contains(stderr, "another cluster key") {
		t.Errorf("a node with the key of before: status %d: %s", code, stderr)
	}
	join(t, "d", gossip, nil, "--cluster-key", write("d", after))
	c.waitNodes(4, recoverLimit) // every pair reconnects
	got, _ := c.open(reqs).wait(t)
	same(t, "with the new key", reqs, want, got)
	// An unreadable file changes nothing.
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("shoal1-nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := procs[1].cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "the bad file is refused", func() (bool, string) {
		return strings.Contains(tail(procs[1].err), "the previous keys stay in use"), tail(procs[1].err)
	})
	got, _ = c.open(reqs).wait(t)
	same(t, "after a bad file", reqs, want, got)
}

// TestUpRotatesItsKey: `shoal up` with a key file changes its key with three SIGHUPs to it alone,
// while streams run.
func TestUpRotatesItsKey(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	file, old := filepath.Join(t.TempDir(), "key"), filepath.Join(t.TempDir(), "old")
	before, after := security.NewKey(), security.NewKey()
	write := func(path string, keys ...security.Key) {
		text := ""
		for _, k := range keys {
			text += k.Text() + "\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, before)
	write(old, before)
	logs := t.TempDir()
	c := up(t, 2, "--cluster-key", file, "--log-dir", logs, "--log-level", "info")
	reqs := streaming(4, 60)
	want, _ := c.undisturbed(t, reqs)
	epoch := c.state().Epoch
	c.busy(t, "the key of up is changed", reqs, want, func() {
		for round, keys := range [][]security.Key{{before, after}, {after, before}, {after}} {
			write(file, keys...)
			if err := c.head.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{c.head.err, filepath.Join(logs, "node-0.log"), filepath.Join(logs, "node-1.log")} {
				testutil.Eventually(t, patience, fmt.Sprintf("round %d in %s", round, path), func() (bool, string) {
					log, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					return strings.Count(string(log), "cluster key file read") > round, tail(path)
				})
			}
			time.Sleep(time.Second) // several gossip probes
		}
	})
	if s := c.state(); s.Epoch != epoch || len(s.Nodes) != 2 {
		t.Errorf("epoch %d before, %d after the key was changed, of %d nodes", epoch, s.Epoch, len(s.Nodes))
	}
	join := c.joins(t)
	if _, stderr, code := command(t, patience, nil, "node", "--id", "late", "--join", join, "--cluster-key", old); code != 1 ||
		!strings.Contains(stderr, "another cluster key") {
		t.Errorf("a node with the key of before: status %d: %s", code, stderr)
	}
	spawn(t, built.shoal(t, ""), "further", nil, "node", "--id", "further", "--join", join, "--cluster-key", file)
	c.waitNodes(3, recoverLimit)
	got, _ := c.open(reqs).wait(t)
	same(t, "with the new key", reqs, want, got)
}
