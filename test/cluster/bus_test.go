package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestWeightsOverTheBus runs three nodes, one of them without a checkpoint. That node fetches its
// slices, verified by content hash, and gives the same bits. After a restart it fetches nothing that is
// on its disk.
func TestWeightsOverTheBus(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	c, gossip := coordinate(t, config{args: []string{"--nodes", "3", "--mapping", "gather"}})
	cache := t.TempDir()
	start := func(model string) *process {
		return join(t, "c", gossip, nil, "--model", model, "--weights-cache", cache)
	}
	a := join(t, "a", gossip, nil)
	join(t, "b", gossip, nil)
	third := join(t, "c-with", gossip, nil)
	c.waitReady()
	reqs := streaming(6, 24)
	want, _ := c.undisturbed(t, reqs)
	if err := third.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	c.waitNodes(2, recoverLimit)
	started := start("bus")
	c.waitNodes(3, recoverLimit)
	got, _ := c.open(reqs).wait(t)
	same(t, "with a node without a checkpoint", reqs, want, got)
	n := c.node("c")
	whole := folderBytes(t, filepath.Join("..", "..", "models", "fry"))
	t.Logf("fetched %d bytes of a checkpoint of %d, for share %.2f", n.FetchedBytes, whole, n.Share)
	if n.FetchedBytes == 0 || n.FetchedBytes >= whole*8/10 || n.Share == 0 {
		t.Errorf("it fetched %d of %d bytes for share %.2f", n.FetchedBytes, whole, n.Share)
	}
	started.kill(t)
	c.waitNodes(2, recoverLimit)
	start("bus")
	c.waitNodes(3, recoverLimit)
	if n := c.node("c"); n.FetchedBytes != 0 {
		t.Errorf("it fetched %d bytes that were on its disk", n.FetchedBytes)
	}
	got, _ = c.open(reqs).wait(t)
	same(t, "started again", reqs, want, got)
	// An original node dies: its slices are fetched over the bus too.
	a.kill(t)
	c.waitNodes(2, recoverLimit)
	got, _ = c.open(reqs).wait(t)
	same(t, "with other slices", reqs, want, got)
	text := string(c.want(200, "GET", "/metrics", nil).body)
	if want := fmt.Sprintf("shoal_node_fetched_bytes{node=%q} %d",
		"c", c.node("c").FetchedBytes); !strings.Contains(text, "shoal_node_fetched_bytes") {
		t.Errorf("/metrics lacks %s", want)
	}
}

func folderBytes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() {
			sum += st.Size()
		}
	}
	return sum
}
