package launch

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestReadyText checks the message at the end of a start, which has about ten lines.
func TestReadyText(t *testing.T) {
	serve := cluster.ServeConfig{Model: "../../../models/fry", Names: []string{"fry"}, Weights: "bf16", MaxContext: 8192}
	state := &wire.ClusterState{Model: "fry", Store: &wire.StoreState{},
		Nodes: []wire.NodeState{{WeightBytes: 1 << 20}, {WeightBytes: 3 << 20}}}
	plain := Up{Nodes: 2, NodeFlags: NodeFlags{cluster.Resources{KVMemory: 1 << 30}}}
	keyed := Up{Nodes: 1, NodeFlags: NodeFlags{cluster.Resources{KVMemory: 1 << 30}},
		listenFlags: listenFlags{APIKey: []string{"s3cret"}, TLSCert: "cert.pem"}, LogDir: "/logs"}
	keyed.ClusterKeyFile = "key"
	joined := &wire.ClusterState{Nodes: make([]wire.NodeState, 3)} // a machine joined before the model was ready
	for _, c := range []struct {
		up     Up
		state  *wire.ClusterState
		addr   string
		want   string
		absent []string
	}{
		{plain, state, defaultServer, "ready: fry on 2 nodes, API at http://127.0.0.1:8080/v1\n ... model   ../../../models/fry, " +
			"weights bf16, context of 8192 tokens ... each node: 3.0 MiB of weights, caches of at most 1.00 GiB ... " +
			"http://127.0.0.1:8080/ ... shoal top\n ... none: every program ... data    /data ... ask     shoal chat\n" +
			" ... curl http://127.0.0.1:8080/v1/chat/completions ... Ctrl-C, or kill 7", []string{"--server", "Bearer", "logs", "join"}},
		{plain, &wire.ClusterState{}, "127.0.0.1:9",
			"each node: caches ... shoal top --server 127.0.0.1:9 ... data    none ... shoal chat --server 127.0.0.1:9", nil},
		{plain, joined, defaultServer, "ready: fry on 3 nodes, API", nil},
		{keyed, state, "127.0.0.1:9",
			"API at https://127.0.0.1:9/v1 ... --tls-ca cert.pem ... clients must send an API key ... logs    /logs ... shoal chat --server " +
				"https://127.0.0.1:9 --tls-ca cert.pem --api-key KEY ... --cacert cert.pem -H 'Authorization: Bearer KEY'", []string{"s3cret"}},
	} {
		got := c.up.readyText(serve, readyStateOf(c.state, c.addr, "g", "/data"), 7)
		if !testutil.InOrder(got, c.want) || strings.Count(got, "\n") > 13 {
			t.Errorf("want %q in\n%s", c.want, got)
		}
		for _, word := range c.absent {
			if strings.Contains(got, word) {
				t.Errorf("%q in\n%s", word, got)
			}
		}
	}
}
