package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestClusterKey runs coordinator and nodes as separate processes with a key from shoal keygen.
// Their traffic is encrypted and authenticated, and processes with another key or without one are
// refused.
func TestClusterKey(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	key, other := filepath.Join(dir, "key"), filepath.Join(dir, "other")
	for _, path := range []string{key, other} {
		if _, stderr, code := command(t, startLimit, nil, "keygen", "-o", path); code != 0 {
			t.Fatal(stderr)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%v %v", info.Mode(), err)
		}
	}
	c, gossip := coordinate(t, config{args: []string{"--nodes", "2", "--cluster-key", key, "--api-key", "secret"}, key: "secret"})
	for what, flags := range map[string][]string{"another key": {"--cluster-key", other}, "no key": {"--insecure"}} {
		began := time.Now()
		_, stderr, code := command(t, patience, nil, append([]string{"node", "--id", "stranger", "--join", gossip}, flags...)...)
		if code != 1 || !strings.Contains(stderr, "another cluster key") {
			t.Errorf("a node with %s: status %d after %v: %s", what, code, time.Since(began), stderr)
		}
	}
	text, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	join(t, "a", gossip, nil, "--cluster-key", key)
	b := join(t, "b", gossip, []string{"SHOAL_CLUSTER_KEY=" + strings.TrimSpace(string(text))}) // the key from the environment
	c.waitReady()
	if log := tail(b.err); !strings.Contains(log, "tls=true") {
		t.Errorf("the node does not report TLS: %s", log)
	}
	if out := tail(c.head.err); !strings.Contains(out, "--cluster-key FILE") {
		t.Errorf("the coordinator does not print the key option of nodes: %s", out)
	}
	reqs := streaming(4, 8)
	first, _ := c.open(reqs).wait(t)
	again, _ := c.open(reqs).wait(t)
	same(t, "with a key", reqs, first, again)
	for _, n := range c.state().Nodes {
		if n.ID == "stranger" {
			t.Errorf("the stranger is in the cluster: %+v", n)
		}
	}
	// The API's own key.
	open := newHTTPClient(t, c.base, "")
	wrong := newHTTPClient(t, c.base, "secretx")
	for _, cl := range []*httpClient{open, wrong} {
		for _, r := range []struct{ method, path, body string }{
			{"POST", "/v1/completions", `{"prompt":"a"}`}, {"POST", "/v1/chat/completions", `{}`}, {"GET", "/v1/models", ""}, {"GET", "/v1/cluster", ""},
			{"GET", "/metrics", ""}, {"POST", "/tokenize", `{"prompt":"a"}`}, {"GET", "/version", ""}, {"GET", "/", ""}, {"GET", "/debug/pprof/", ""},
		} {
			var body any
			if r.body != "" {
				body = r.body
			}
			cl.t = t
			cl.want(401, r.method, r.path, body)
		}
		cl.want(200, "GET", "/health", nil)
	}
	for _, out := range []string{tail(c.head.err), tail(b.err)} {
		if strings.Contains(out, "secret") || strings.Contains(out, strings.TrimSpace(string(text))) {
			t.Error("a log contains a secret")
		}
	}
}

// TestOpenBinds: without a secret, nothing listens on addresses that other machines can reach.
func TestOpenBinds(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if _, stderr, code := command(t, startLimit, nil, "keygen", "-o", key); code != 0 {
		t.Fatal(stderr)
	}
	for _, c := range []struct {
		say  string
		args []string
	}{
		{"--cluster-key", []string{"node", "--bind", "0.0.0.0:0", "--join", "127.0.0.1:1"}},
		{"--cluster-key", []string{"coordinator", "--bind", "0.0.0.0:0", "--listen", "127.0.0.1:0"}},
		{"--api-key", []string{"up", "--nodes", "1", "--listen", "0.0.0.0:0"}},
		{"--api-key", []string{"coordinator", "--bind", "127.0.0.1:0", "--cluster-key", key, "--listen", "0.0.0.0:0"}},
		{"--api-key", []string{"coordinator", "--bind", "127.0.0.1:0", "--listen", ":0"}},
	} {
		began := time.Now()
		_, stderr, code := command(t, patience, nil, c.args...)
		if code != 1 || !strings.Contains(stderr, "refusing to listen beyond this machine") || !strings.Contains(stderr, c.say) {
			t.Errorf("shoal %s: status %d after %v: %s", strings.Join(c.args, " "), code, time.Since(began), stderr)
		}
	}
}
