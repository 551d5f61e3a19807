package cluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// patience is the deadline of every wait, for a heavily loaded machine. A wait ends as soon as its
// condition holds.
const patience = 2 * time.Minute

// startLimit is the deadline from a command to a ready cluster: sixteen processes on a loaded
// machine.
const startLimit = 3 * time.Minute

// system is a running cluster.
type system struct {
	*httpClient
	t    testing.TB
	head *process // `shoal up`, or the coordinator
	logs string   // folder of the nodes' logs
}

// config configures how a cluster is started.
type config struct {
	nodes int      // 0: the default of `shoal up`
	tags  string   // build tags of the binary
	env   []string // additional environment
	args  []string // additional flags of `shoal up`
	key   string   // API key that the client sends
	at    *port    // port of the coordinator; nil: the machine's network
	files int      // open file limit of a process; 0: that of the test
}

var readyLine = regexp.MustCompile(`ready: .* API at (https?://\S+)/v1`)

// up starts `shoal up` and waits until it is ready.
func up(t testing.TB, nodes int, args ...string) *system {
	t.Helper()
	return start(t, config{nodes: nodes, args: args})
}

func start(t testing.TB, c config) *system {
	t.Helper()
	s := &system{t: t, logs: filepath.Join(t.TempDir(), "nodes")}
	args := append([]string{"up", "--listen", "127.0.0.1:0", "--log-dir", s.logs}, c.args...)
	if c.nodes > 0 {
		args = append(args, "--nodes", strconv.Itoa(c.nodes))
	}
	began := time.Now()
	bin := built.shoal(t, c.tags)
	if c.files > 0 {
		bin, args = "sh", append([]string{"-c", fmt.Sprintf("ulimit -n %d && exec \"$0\" \"$@\"", c.files), bin}, args...)
	}
	s.head = spawn(t, bin, "up", c.env, args...)
	t.Cleanup(s.cleanup) // runs before the head is killed
	s.httpClient = newHTTPClient(t, s.head.line(t, s.head.out, readyLine, startLimit)[1], c.key)
	t.Logf("%d nodes ready after %.1f s", c.nodes, time.Since(began).Seconds())
	return s
}

// cleanup stops the cluster, kills the remaining processes, and checks the logs.
func (s *system) cleanup() {
	for _, pid := range s.children() { // a frozen node does not handle signals
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	pids := s.children()
	_ = s.head.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.head.done:
	case <-time.After(patience):
		s.t.Errorf("%s did not end within %v of SIGINT", s.head.name, patience)
		s.head.kill(s.t)
	}
	for end := time.Now().Add(patience); time.Now().Before(end) && len(alive(pids)) > 0; {
		time.Sleep(20 * time.Millisecond)
	}
	for _, pid := range alive(pids) {
		s.t.Errorf("node process %d outlived its parent by %v", pid, patience)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	files, _ := filepath.Glob(filepath.Join(s.logs, "*.log"))
	for _, f := range files {
		checkLog(s.t, filepath.Base(f), f)
		if s.t.Failed() {
			s.t.Logf("--- end of %s:\n%s", filepath.Base(f), tail(f))
		}
	}
}

// alive returns the processes that still run.
func alive(pids []int) (out []int) {
	running := built.running()
	for _, pid := range pids {
		if running[pid] != "" {
			out = append(out, pid)
		}
	}
	return out
}

// children returns the live child processes of the head.
func (s *system) children() []int {
	var out []int
	for pid := range built.running() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(b), ") ") // the name may contain anything
		f := strings.Fields(after)
		if len(f) > 1 && f[1] == strconv.Itoa(s.head.cmd.Process.Pid) {
			out = append(out, pid)
		}
	}
	return out
}

// state returns /v1/cluster.
func (s *system) state() wire.ClusterState {
	s.t.Helper()
	var c wire.ClusterState
	s.getJSON("/v1/cluster", &c)
	return c
}

func (s *system) node(id string) wire.NodeState {
	s.t.Helper()
	for _, n := range s.state().Nodes {
		if n.ID == id {
			return n
		}
	}
	s.t.Fatalf("no node %s in /v1/cluster", id)
	return wire.NodeState{}
}

// signal sends a signal to a node's process.
func (s *system) signal(id string, sig syscall.Signal) {
	s.t.Helper()
	n := s.node(id)
	if built.running()[n.PID] == "" {
		s.t.Fatalf("node %s reports the pid %d, which this test did not start", id, n.PID)
	}
	if err := syscall.Kill(n.PID, sig); err != nil {
		s.t.Fatalf("%v to node %s: %v", sig, id, err)
	}
}

// waitNodes waits until exactly n nodes are ready.
func (s *system) waitNodes(n int, limit time.Duration) {
	s.t.Helper()
	testutil.Eventually(s.t, limit, fmt.Sprintf("%d ready nodes", n), func() (bool, string) {
		ready, states := 0, []string{}
		for _, node := range s.state().Nodes {
			if node.State == "ready" {
				ready++
			}
			states = append(states, node.ID+" "+node.State)
		}
		return ready == n, strings.Join(states, ", ")
	})
}

// waitIdle waits until no node holds cache bytes and nothing runs.
func (s *system) waitIdle(limit time.Duration) {
	s.t.Helper()
	testutil.Eventually(s.t, limit, "an idle cluster", func() (bool, string) {
		c := s.state()
		var used int64
		for _, n := range c.Nodes {
			used += n.KVUsedBytes
		}
		return used == 0 && c.Running == 0 && c.Waiting == 0, fmt.Sprintf("%d running, %d waiting, %d cache bytes", c.Running, c.Waiting, used)
	})
}
