package cluster_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestNames: machines have names and IPv6 only. They join by name with a token, and reach each other after they
// return with other addresses. A name that does not resolve is tried again.
func TestNames(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	w := newWireOf(t, wireKind{keyed: true, six: true, named: true})
	one, two, three := &machine{t: t, at: w.plug(), home: t.TempDir()}, &machine{t: t, at: w.plug(), home: t.TempDir()},
		&machine{t: t, at: w.plug(), home: t.TempDir()}
	w.setNames(map[string]*port{"one": one.at, "two": two.at})
	model, err := filepath.Abs("../../models/fry")
	if err != nil {
		t.Fatal(err)
	}
	up := []string{"up", "--nodes", "1", "--threads", "1", "--cluster", "lab", "-m", model, "--listen", "127.0.0.1:8080", "--no-advertise"}
	head := one.start("up", append(up, "--bind", "one")...)
	line := head.line(t, head.out, joinCommand, startLimit)
	if line[1] != "one:7069" {
		t.Errorf("the first machine prints --join %s, want its name", line[1])
	}
	client := func() *httpClient {
		c := newHTTPClient(t, "http://127.0.0.1:8080", "")
		dialFrom(c, one.at)
		return c
	}
	node := []string{"node", "--id", "two", "--threads", "1", "--bind", "two"}
	second := two.start("node", append(node, "--join", line[1], "--token", line[2])...)
	second.line(t, second.err, regexp.MustCompile(`node joined" id=two .* gossip=two:\d+ control=two:\d+ routes=two:\d+`), startLimit)
	api := client()
	api.waitReadyNodes(t, 2)
	reqs := streaming(2, 40)
	want, _ := api.undisturbed(t, reqs)

	head.kill(t)
	one.at = w.plug()
	w.setNames(map[string]*port{"one": one.at, "two": two.at})
	head = one.start("up", up...) // the name is that of the last start
	if line := head.line(t, head.out, joinCommand, startLimit); line[1] != "one:7069" {
		t.Errorf("after the move, the first machine prints --join %s", line[1])
	}
	api = client()
	api.waitReadyNodes(t, 2)
	got, _ := api.open(reqs).wait(t)
	same(t, "after the first machine has moved", reqs, want, got)

	second.kill(t)
	two.at = w.plug()
	w.setNames(map[string]*port{"one": one.at, "two": two.at})
	two.start("node", node...)
	api.waitReadyNodes(t, 2)

	key := filepath.Join(one.home, "state", "shoal", "clusters", "lab", "key")
	common := []string{"node", "--id", "three", "--threads", "1", "--cluster", "lab", "--cluster-key", key, "--model", model}
	late := three.start("node", append(common, "--bind", "three:7070", "--join", "late:7070")...)
	late.line(t, late.err, regexp.MustCompile(`waiting for a name.*three.*does not resolve.*for=1m0s`), patience)
	w.setNames(map[string]*port{"one": one.at, "two": two.at, "three": three.at})
	late.line(t, late.err, regexp.MustCompile(`joining the cluster fails, retrying" .*join=late:7070 .*late`), patience)
	w.setNames(map[string]*port{"one": one.at, "two": two.at, "three": three.at, "late": one.at})
	api.waitReadyNodes(t, 3)
	got, _ = api.open(reqs).wait(t)
	same(t, "with a node whose name resolved late", reqs, want, got)

	for _, c := range [][]string{{"[fe80::1%wire0]:7070", "one:7070"}, {"three:7071", "[fe80::1%wire0]:7070"}} {
		if code, text := three.ends(append(common, "--bind", c[0], "--join", c[1])...); code != 1 ||
			!strings.Contains(text, "fe80::1%wire0 is a link-local address") {
			t.Errorf("--bind %s --join %s: status %d: %s", c[0], c[1], code, text)
		}
	}
	code, text := three.ends("node", "--join", "[fe80::1%wire0]:7069", "--token", line[2])
	if code != 1 || !strings.Contains(text, "fe80::1%wire0 is a link-local address") {
		t.Errorf("a token for a link-local address: status %d: %s", code, text)
	}
}
