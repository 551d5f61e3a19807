package cluster_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/gossip"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestUpIsClosed: `shoal up` without a given key generates one. A process without that key can use
// none of its listeners: neither join as a node, nor use gossip, steps or tensors, as a client or
// as a server of the mesh.
func TestUpIsClosed(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	c := up(t, 2, "--data-dir", t.TempDir())
	flow := c.open(streaming(4, 400)) // generates traffic
	for _, pid := range append(c.children(), c.head.cmd.Process.Pid) {
		for _, file := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), "shoal1-") {
				t.Errorf("the key is visible in /proc/%d/%s", pid, file)
			}
		}
	}
	for _, key := range []security.Key{{}, security.NewKey()} {
		if in := intrude(t, c, key); len(in) > 0 {
			t.Errorf("with the key %s a stranger got in: %v", key.Fingerprint(), in)
		}
		flags := []string{"--insecure"}
		if !key.IsZero() {
			file := filepath.Join(t.TempDir(), "key")
			if err := security.WriteKeyFile(file, key); err != nil {
				t.Fatal(err)
			}
			flags = []string{"--cluster-key", file}
		}
		args := append([]string{"node", "--id", "stranger", "--share", "100", "--data-dir", t.TempDir(), "--join", c.joins(t)}, flags...)
		if _, stderr, code := command(t, patience, nil, args...); code != 1 || !strings.Contains(stderr, "another cluster key") {
			t.Errorf("a node with the key %s: status %d: %s", key.Fingerprint(), code, stderr)
		}
	}
	flow.wait(t)
	if s := c.state(); len(s.Nodes) != 2 || s.Recoveries != 0 {
		t.Errorf("strangers made it %d recoveries and %+v", s.Recoveries, s.Nodes)
	}
}

// TestUpTakesAKey: a process with the key that the user chose can join with the command of the ready
// line. This also shows that intrude would detect an open listener.
func TestUpTakesAKey(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := security.WriteKeyFile(file, clusterKey); err != nil {
		t.Fatal(err)
	}
	c := up(t, 1, "--cluster-key", file)
	in := intrude(t, c, clusterKey)
	for _, what := range []string{"gossip", "control", "route"} {
		if !slices.ContainsFunc(in, func(s string) bool { return strings.HasPrefix(s, what) }) {
			t.Errorf("with the key there is no way in by %s: %v", what, in)
		}
	}
	out, err := os.ReadFile(c.head.out)
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(out), "  shoal node")
	line, _, _ = strings.Cut(line, "\n")
	spawn(t, built.shoal(t, ""), "further", nil, append([]string{"node", "--id", "further", "--share", "1000000"}, strings.Fields(line)...)...)
	c.waitNodes(2, startLimit)
	// Its own claim gives it at most twice the share of the other node.
	if n := c.node("further"); n.Share == 0 || n.Share > 0.7 {
		t.Errorf("it claims a share of a million, and has %.0f%%", 100*n.Share)
	}
	if log := tail(c.head.err); !strings.Contains(log, "a node gets less work than its own share") {
		t.Errorf("the log has no warning: %s", log)
	}
}

// TestKeyless: a single process has no key unless it gets one, and reports that.
func TestKeyless(t *testing.T) {
	for _, args := range [][]string{{"node", "--join", "127.0.0.1:1"}, {"coordinator", "--bind", "127.0.0.1:0", "--listen", "127.0.0.1:0"}} {
		_, stderr, code := command(t, patience, nil, args...)
		if code != 1 || !strings.Contains(stderr, "no cluster key: every user of this machine could join") ||
			!strings.Contains(stderr, "--insecure") {
			t.Errorf("shoal %s: status %d: %s", args[0], code, stderr)
		}
	}
	if _, stderr, code := command(t, patience, []string{security.EnvKey + "=" + clusterKey.Text()}, "node",
		"--insecure", "--join", "127.0.0.1:1"); code != 1 || !strings.Contains(stderr, "--insecure excludes a cluster key") {
		t.Errorf("both: status %d: %s", code, stderr)
	}
	s, gossip := coordinate(t, config{args: []string{"--insecure", "--nodes", "1"}})
	join(t, "a", gossip, nil, "--insecure")
	s.waitReady()
}

// joins returns the address that nodes of `up` join.
func (s *system) joins(t *testing.T) string {
	t.Helper()
	for pid, line := range built.running() {
		if slices.Contains(s.children(), pid) {
			if _, after, ok := strings.Cut(line, " --join "); ok {
				return strings.Fields(after)[0]
			}
		}
	}
	t.Fatal("no node joins")
	return ""
}

// listeners returns the TCP addresses of the cluster's processes, except the API's.
func (s *system) listeners(t *testing.T) (out []string) {
	t.Helper()
	for _, pid := range append(s.children(), s.head.cmd.Process.Pid) {
		mine := map[string]bool{}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(table), "\n") {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" || !mine[f[9]] {
				continue
			}
			port, err := hex.DecodeString(f[1][9:])
			if err != nil {
				t.Fatal(err)
			}
			if at := fmt.Sprintf("127.0.0.1:%d", int(port[0])<<8|int(port[1])); "http://"+at != s.base {
				out = append(out, at)
			}
		}
	}
	if len(out) < 4*(1+len(s.children())) { // gossip, control, NATS clients and routes
		t.Fatalf("listeners: %v", out)
	}
	return out
}

// intrude tries every protocol on every listener, using this program's packages with a key (zero:
// without one), and returns where it succeeded.
func intrude(t *testing.T, s *system, key security.Key) (in []string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	gc := gossip.Config{Name: "stranger", Bind: "127.0.0.1:0", Label: "shoal", Profile: gossip.Local, Logger: quiet,
		Meta: gossip.Meta{Role: "node", Incarnation: 1, RPC: "127.0.0.1:1"}}
	rc := rpc.Config{ID: "stranger", Role: "coordinator", Bind: "127.0.0.1:0", Logger: quiet}
	nc := natsbus.Config{Name: "stranger", Cluster: "shoal", Log: quiet}
	if !key.IsZero() {
		var err error
		if rc.ServerTLS, rc.ClientTLS, err = key.TLS(security.Identity{Role: security.RoleCoordinator, ID: "stranger"}); err != nil {
			t.Fatal(err)
		}
		nc.RouteTLS = rc.ServerTLS.Clone()
		nc.RouteTLS.GetClientCertificate, nc.RouteTLS.InsecureSkipVerify = rc.ClientTLS.GetClientCertificate, true
		nc.Secret, gc.Keys = key.BusPassword(security.RoleNode), [][]byte{key.Gossip()}
	}
	all := s.listeners(t)
	sys, err := rpc.Start(rc)
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	server, err := natsbus.Start(nc)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	alone := server.Subscriptions()
	for _, at := range all {
		if err := server.AddRoute(at); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	got := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		in = append(in, fmt.Sprintf(format, args...))
	}
	var wg sync.WaitGroup
	for _, at := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			g, err := gossip.Start(gc)
			if err != nil {
				t.Error(err)
				return
			}
			if err := g.Join(ctx, []string{at}, 2); err == nil {
				got("gossip %s: %d members", at, len(g.Members()))
			}
			_ = g.Leave()
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			if err := sys.Call(ctx, sys.PID(at, "socket"), uint32(proto.Kind_KIND_STATUS), new(proto.Empty), new(proto.SocketStatus)); err == nil {
				got("control %s", at)
			}
		})
		wg.Go(func() {
			if reply := overhear(at); reply != "" {
				got("client %s: %.60q", at, reply)
			}
		})
	}
	wg.Wait()
	wait := 2 * time.Second // refused seeds are retried every second
	if key.Equal(clusterKey) {
		wait = patience
	}
	// A mesh server that accepts another one shares its subscriptions.
	for end := time.Now().Add(wait); server.Subscriptions() == alone && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := server.Subscriptions(); n > alone {
		got("route: %d subscriptions", n-alone)
	}
	return in
}

// overhear logs in to a NATS listener without the key and subscribes to everything.
func overhear(at string) string {
	if nc, err := nats.Connect("nats://"+at, nats.Timeout(time.Second), nats.Token("hear.g.1.0.")); err == nil {
		nc.Close()
		return "logged in"
	}
	c, err := net.DialTimeout("tcp", at, time.Second)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "CONNECT {\"verbose\":false,\"name\":\"x\",\"cluster\":\"shoal\"}\r\nSUB > 1\r\nRS+ $G >\r\nPING\r\n")
	r, reply := bufio.NewReader(io.LimitReader(c, 1<<20)), ""
	for {
		line, err := r.ReadString('\n')
		if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); slices.Contains([]string{"PONG", "MSG", "RMSG", "+OK"}, word) {
			reply += line
		}
		if err != nil {
			return reply
		}
	}
}
