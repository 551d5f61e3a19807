package cluster_test

import (
	"regexp"
	"testing"

	"github.com/shoal-llm/shoal/internal/testutil"
)

var (
	gossipLine = regexp.MustCompile(`coordinator at (\S+);`)
	apiLine    = regexp.MustCompile(`API at (http://\S+)/v1`)
)

// coordinate starts a separate coordinator, which nodes join with join.
func coordinate(t testing.TB, c config) (s *system, gossip string) {
	t.Helper()
	s = &system{t: t, logs: t.TempDir()}
	bind := "127.0.0.1:0"
	if c.at != nil {
		bind = c.at.ip() + ":0"
	}
	args := append([]string{"coordinator", "--bind", bind, "--listen", "127.0.0.1:0"}, c.args...)
	s.head = spawnIn(t, c.at, built.shoal(t, c.tags), "coordinator", c.env, args...)
	t.Cleanup(s.cleanup)
	gossip = s.head.line(t, s.head.err, gossipLine, startLimit)[1]
	s.httpClient = newHTTPClient(t, s.head.line(t, s.head.err, apiLine, startLimit)[1], c.key)
	if c.at != nil {
		dialFrom(s.httpClient, c.at)
	}
	return s, gossip
}

// join starts one node process.
func join(t testing.TB, id, gossip string, env []string, args ...string) *process {
	t.Helper()
	return spawn(t, built.shoal(t, ""), id, env, append([]string{"node", "--id", id, "--join", gossip, "--threads", "1"}, args...)...)
}

// waitReady waits until a request would be accepted.
func (s *system) waitReady() {
	s.t.Helper()
	testutil.Eventually(s.t, startLimit, "ready", func() (bool, string) {
		a := s.call("GET", "/ready", nil)
		return a.status == 200, string(a.body)
	})
}
