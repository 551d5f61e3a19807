package cluster_test

import (
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestNAT: a node whose address is translated cannot take part, because other processes connect to it. With
// a token it ends, with a key it waits. Both errors name the reason, and the cluster continues without it.
func TestNAT(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	w := newWire(t, true)
	head, node := &machine{t: t, at: w.plug(), home: t.TempDir()}, &machine{t: t, at: w.plug(), home: t.TempDir()}
	hidden := &machine{t: t, at: w.plugBehind(netip.MustParseAddr("10.200.7.2")), home: t.TempDir()}
	model, err := filepath.Abs("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key")
	if code, text := head.ends("keygen", "-o", key); code != 0 {
		t.Fatal(text)
	}
	gossip := head.at.ip() + ":7070"
	coordinator := head.start("coordinator", "coordinator", "--bind", gossip, "--cluster-key",
		key, "--listen", "127.0.0.1:8080", "--nodes", "1", "-m", model)
	common := []string{"node", "--threads", "1", "--join", gossip, "--cluster-key", key, "--model", model}
	node.start("node", append(common, "--id", "seen", "--bind", node.at.ip()+":7070")...)
	api := newHTTPClient(t, "http://127.0.0.1:8080", "")
	dialFrom(api, head.at)
	api.waitReadyNodes(t, 1)
	reqs := streaming(2, 60)
	want, _ := api.undisturbed(t, reqs)
	f := api.open(reqs)
	f.reach(t, 10)
	p := hidden.start("hidden", append(common, "--id", "hidden", "--bind", hidden.at.ip()+":7070")...)
	p.line(t, p.err, regexp.MustCompile(`level=ERROR .*cannot connect to the address where this node listens.* address=10\.200\.7\.2:\d+ .*address translation.*--bind`), patience)
	coordinator.line(t, coordinator.err, regexp.MustCompile(`a node was seen but does not answer" node=hidden control=10\.200\.7\.2:.*address translation`), patience)
	got, _ := f.wait(t)
	same(t, "while a node behind a NAT tries to join", reqs, want, got)
	api.waitReadyNodes(t, 1)

	first := &machine{t: t, at: w.plug(), home: t.TempDir()}
	up := first.start("up", "up", "--nodes", "1", "--threads", "1", "--cluster", "lab", "-m", model, "--listen", "127.0.0.1:0")
	line := up.line(t, up.out, joinCommand, startLimit)
	code, text := hidden.ends("node", "--join", line[1], "--token", line[2])
	if code != 1 || !strings.Contains(text, "would listen at 10.200.7.2") || !strings.Contains(text, "address translation") {
		t.Errorf("with a token: status %d: %s", code, text)
	}
}
