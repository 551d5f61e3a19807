package cluster_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// externalNATS starts a NATS as an operator would, with user and password (port 0: any free one).
func externalNATS(t testing.TB, port, payload int) *server.Server {
	t.Helper()
	if port == 0 {
		port = server.RANDOM_PORT
	}
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true,
		MaxPayload: int32(payload), Username: "shoal", Password: "pass"})
	if err != nil {
		t.Fatal(err)
	}
	go ns.Start()
	t.Cleanup(func() { stopNATS(ns) })
	if !ns.ReadyForConnections(startLimit) {
		t.Fatal("the NATS server does not listen")
	}
	return ns
}

func stopNATS(ns *server.Server) {
	ns.Shutdown()
	ns.WaitForShutdown()
}

func natsURL(ns *server.Server) string {
	return strings.Replace(ns.ClientURL(), "nats://", "nats://shoal:pass@", 1)
}

// TestExternalNATS: two clusters with the same name share a NATS server and give the same answers
// as with their own mesh. The server restarts while they stream.
func TestExternalNATS(t *testing.T) {
	testlevel.NeedLong(t)
	testlevel.NeedLong(t)
	parallel(t)
	reqs := streaming(4, 150)
	mesh := up(t, 2)
	want, _ := mesh.undisturbed(t, reqs)
	ns := externalNATS(t, 0, 16<<20)
	url, baseline := natsURL(ns), ns.NumSubscriptions()
	var both [2]*system
	for i := range both {
		c, gossip := coordinate(t, config{args: []string{"--nodes", "2", "--nats", url}})
		for _, id := range []string{"a", "b"} {
			join(t, id, gossip, nil, "--nats", url)
		}
		both[i] = c
		if i == 1 {
			_, stderr, code := command(t, startLimit, []string{security.EnvKey + "=" + clusterKey.Text()}, "node", "--id", "c", "--join", gossip)
			if code != 1 || !strings.Contains(stderr, "uses an external NATS: give this node the same --nats URL") {
				t.Errorf("a node without --nats: status %d: %s", code, stderr)
			}
		}
	}
	var flows [2]*flow
	for i, c := range both {
		c.waitReady()
		flows[i] = c.open(reqs)
	}
	for i, f := range flows { // both at once: receiving the other's tensors would fail or change the answer
		got, _ := f.wait(t)
		same(t, "over NATS", reqs, want, got)
		s := both[i].state()
		if failed(s) != 0 || len(s.Nodes) != 2 {
			t.Errorf("epoch %d, %d steps failed, %d nodes: nothing was to fail", s.Epoch, failed(s), len(s.Nodes))
		}
	}
	if g := groups(t, ns); len(g) != len(both) {
		t.Errorf("subjects of the groups %v, want %d apart", g, len(both))
	}
	served := ns.NumSubscriptions()
	if served <= baseline {
		t.Errorf("the NATS has %d subscriptions, %d before: the tensors went another way", served, baseline)
	}

	for i, c := range both {
		flows[i] = c.open(reqs)
		flows[i].reach(t, 60)
	}
	port := ns.Addr().(*net.TCPAddr).Port
	stopNATS(ns)
	ns = externalNATS(t, port, 16<<20)
	for i, f := range flows {
		got, stall := f.wait(t)
		t.Logf("longest silence while NATS was restarted: %.2f s", stall.Seconds())
		same(t, "NATS restarted", reqs, want, got)
		both[i].waitNodes(2, recoverLimit)
	}
	// The subscriptions of old epochs end with their groups.
	testutil.Eventually(t, patience, "subscriptions as before", func() (bool, string) {
		now := ns.NumSubscriptions()
		return now == served, fmt.Sprintf("%d, before %d", now, served)
	})
}

// groups returns the groups with subscriptions: tp.<cluster>.<group>.>
func groups(t testing.TB, ns *server.Server) map[string]int {
	t.Helper()
	z, err := ns.Subsz(&server.SubszOptions{Subscriptions: true, Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, s := range z.Subs {
		if token := strings.Split(s.Subject, "."); len(token) > 2 && token[0] == "tp" && token[1] == "shoal" {
			found[token[2]]++
		}
	}
	return found
}

// TestNATSRefused: unusable settings are reported at start.
func TestNATSRefused(t *testing.T) {
	small := externalNATS(t, 0, 1<<20)
	stopped := externalNATS(t, 0, 16<<20)
	stopNATS(stopped)
	for _, c := range []struct{ url, say string }{
		{natsURL(small), "set max_payload: 16MB"},
		{natsURL(stopped), "is a NATS there"},
		{small.ClientURL(), "user and password"},
	} {
		_, stderr, code := command(t, startLimit, nil, "coordinator", "--insecure", "--bind", "127.0.0.1:0",
			"--listen", "127.0.0.1:0", "--nats", c.url)
		if code != 1 || !strings.Contains(stderr, c.say) || strings.Contains(stderr, "pass@") {
			t.Errorf("status %d: %s", code, stderr)
		}
	}
}
