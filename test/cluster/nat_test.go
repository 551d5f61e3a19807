package cluster_test

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestNAT: a node whose address is translated cannot take part, because other nodes connect to it. With a
// token and with a key, its error says so, and the cluster goes on without it.
func TestNAT(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	w := newWire(t, true)
	head, node := &machine{t: t, at: w.plug(), home: t.TempDir()}, &machine{t: t, at: w.plug(), home: t.TempDir()}
	hidden := &machine{t: t, at: w.plugBehind(netip.MustParseAddr("192.168.7.2")), home: t.TempDir()}
	model, err := filepath.Abs("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if code, text := head.ends("keygen", "-o", key); code != 0 {
		t.Fatal(text)
	}
	gossip := head.at.ip() + ":7070"
	head.start("coordinator", "coordinator", "--bind", gossip, "--cluster-key", key, "--listen", "127.0.0.1:8080", "--nodes", "1", "-m", model)
	common := []string{"node", "--threads", "1", "--join", gossip, "--cluster-key", key, "--model", model}
	node.start("node", append(common, "--id", "seen", "--bind", node.at.ip()+":7070")...)
	api := newHTTPClient(t, "http://127.0.0.1:8080", "")
	dialFrom(api, head.at)
	api.waitReadyNodes(t, 1)
	reqs := streaming(2, 60)
	want, _ := api.undisturbed(t, reqs)
	f := api.open(reqs)
	f.reach(t, 10)
	code, text := hidden.ends(append(common, "--id", "hidden", "--bind", hidden.at.ip()+":7070")...)
	if code != 1 || !strings.Contains(text, "address translation") || !strings.Contains(text, "192.168.7.2") {
		t.Errorf("status %d: %s", code, text)
	}
	got, _ := f.wait(t)
	same(t, "while a node behind a NAT tries to join", reqs, want, got)
	api.waitReadyNodes(t, 1)
}
