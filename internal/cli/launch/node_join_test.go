package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/join"
)

// TestChooseJoinMethod: the flags and the stored memberships determine how a node joins a cluster.
func TestChooseJoinMethod(t *testing.T) {
	lab := join.Membership{Cluster: "lab", Join: []string{"10.0.0.1:7070"}, Server: "10.0.0.1:7069"}
	shop := join.Membership{Cluster: "shop", Join: []string{"10.0.0.2:7070"}, Server: "10.0.0.2:7069"}
	node := func(change func(*NodeCmd)) *NodeCmd {
		c := &NodeCmd{}
		change(c)
		return c
	}
	at := func(addr ...string) func(*NodeCmd) { return func(c *NodeCmd) { c.Join = addr } }
	for name, c := range map[string]struct {
		cmd     *NodeCmd
		haveKey bool
		kept    []join.Membership
		how     joinMethod
		cluster string
		says    string
	}{
		"key and address": {node(at("10.0.0.1:7070")), true, []join.Membership{shop}, joinByKey, "", ""},
		"key alone":       {node(func(*NodeCmd) {}), true, nil, 0, "", "--join is missing: set the gossip address"},
		"insecure": {node(func(c *NodeCmd) { c.Insecure, c.Join = true, []string{"127.0.0.1:1"} }),
			false, nil, joinByKey, "", ""},
		"token": {node(func(c *NodeCmd) { c.Token, c.Join = "t", []string{"10.0.0.1:7069"} }),
			false, []join.Membership{lab}, joinByToken, "", ""},
		"token without address": {node(func(c *NodeCmd) { c.Token = "t" }), false, nil, 0, "", "needs the address"},
		"token and key": {node(func(c *NodeCmd) { c.Token, c.Join = "t", []string{"10.0.0.1:7069"} }),
			true, nil, 0, "", "remove --cluster-key"},
		"token, insecure": {node(func(c *NodeCmd) { c.Token, c.Join, c.Insecure = "t", []string{"10.0.0.1:7069"}, true }),
			false, nil, 0, "", "--insecure has no key"},
		"discover": {node(func(c *NodeCmd) { c.Discover, c.Token = true, "t" }), false, nil, joinByDiscovery, "", ""},
		"discover and address": {node(func(c *NodeCmd) { c.Discover, c.Join = true, []string{"10.0.0.1:7069"} }),
			false, nil, 0, "", "remove --join"},
		"restart":                   {node(func(*NodeCmd) {}), false, []join.Membership{lab}, rejoin, "lab", ""},
		"restart, several clusters": {node(func(*NodeCmd) {}), false, []join.Membership{lab, shop}, 0, "", "--cluster NAME: lab, shop"},
		"restart by name":           {node(func(c *NodeCmd) { c.Cluster = "shop" }), false, []join.Membership{lab, shop}, rejoin, "shop", ""},
		"restart by join server":    {node(at("10.0.0.2:7069")), false, []join.Membership{lab, shop}, rejoin, "shop", ""},
		"restart by gossip":         {node(at("10.0.0.1:7070")), false, []join.Membership{lab, shop}, rejoin, "lab", ""},
		"an unknown address":        {node(at("10.0.0.9:7070")), false, []join.Membership{lab}, joinByKey, "", ""},
		"no key, a model": {node(func(c *NodeCmd) { c.Model, c.Join = []string{"m"}, []string{"10.0.0.9:7070"} }),
			false, nil, joinByKey, "", ""},
		"nothing": {node(func(*NodeCmd) {}), false, nil, 0, "", "--join ADDRESS --token TOKEN"},
	} {
		t.Run(name, func(t *testing.T) {
			how, m, err := chooseJoinMethod(c.cmd, c.haveKey, c.kept)
			if how != c.how || m.Cluster != c.cluster || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, %q, %v", how, m.Cluster, err)
			}
		})
	}
}

// TestNetworkFlags: flags that up refuses before it opens a port.
func TestNetworkFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--cluster lab --bind host_:7070":        "want an IP address",
		"--cluster lab --bind 0.0.0.0":           "every address of this machine",
		"--cluster lab --bind [::]:7070":         "every address of this machine",
		"--cluster lab --bind fe80::1%eth0":      "link-local",
		"--cluster lab --bind host:7070":         "",
		"--cluster lab --bind node1.lan":         "",
		"--cluster ../x":                         "letters, digits",
		"--cluster lab --nodes 2 --expect 65":    "--expect 65: want 2, the nodes of this command, to 64",
		"--cluster lab --nodes 2 --expect 1":     "--expect 1: want 2",
		"--cluster lab --ports 65530":            "--ports 65530: want",
		"--cluster lab --token-life 1s":          "--token-life 1s: want 1m",
		"--cluster lab --bind 10.0.0.1":          "",
		"--cluster lab --bind 10.0.0.1:7070":     "",
		"--cluster lab --bind 2001:db8::1":       "",
		"--cluster lab --bind [2001:db8::1]:700": "",
		"--cluster lab --token-life 0":           "",
		"--cluster lab --no-advertise":           "",
	} {
		c := parsedProcess(t, append([]string{"up"}, strings.Fields(args)...)...)
		c.Up.Nodes = max(c.Up.Nodes, 1)
		if err := c.Up.checkNetwork(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func TestPlainDuration(t *testing.T) {
	for text, want := range map[string]string{"1h": "1h", "90m": "1h30m", "59m22s": "59m22s",
		"10m": "10m", "168h": "168h", "1h0m5s": "1h0m5s", "30s": "30s"} {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := plainDuration(d); got != want {
			t.Errorf("%s is written %s, want %s", text, got, want)
		}
	}
}

// TestModelReference: a machine that joins may use its own files only if they are the same
// commit of the same repository.
func TestModelReference(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	at := "/home/u/.cache/huggingface/hub/models--org--name/snapshots/" + commit
	folder := t.TempDir()
	for _, c := range []struct{ word, path, want string }{
		{"org/name", at, "org/name@" + commit},
		{"org/name@main", at, "org/name@" + commit},
		{"org/name:Q4_K_M", at + "/x-Q4_K_M.gguf", "org/name@" + commit + ":Q4_K_M"},
		{"", "/models/fry", ""},
		{"fry", "/models/fry", ""},
		{folder, folder, ""},
		{at, at, ""},
		{"ollama://llama3:8b", "/home/u/.cache/shoal/x", ""},
		{"org/name", "/elsewhere", ""},
	} {
		if got := models.ModelReference(c.word, c.path); got != c.want {
			t.Errorf("%q at %s: %q, want %q", c.word, c.path, got, c.want)
		}
	}
}

// TestCoordinatorExchangesTokens: only a coordinator that an operator starts with --cluster, and
// that has a key to give, exchanges tokens.
func TestCoordinatorExchangesTokens(t *testing.T) {
	for flags, want := range map[string]bool{
		"--cluster lab":                   true,
		"--cluster lab --data-dir /tmp/x": true,
		"":                                false,
		"--cluster lab --insecure":        false,
		"--cluster lab --nats nats://127.0.0.1:4222":   false,
		"--cluster lab --with-parent":                  false,
		"--cluster lab --standby --join 10.0.0.1:7070": false,
	} {
		c := parsedProcess(t, append([]string{"coordinator"}, strings.Fields(flags)...)...)
		if got := c.Coordinator.exchangesTokens(); got != want {
			t.Errorf("%q: exchanges tokens: %v, want %v", flags, got, want)
		}
	}
}

// TestProcessPorts: with --ports no two processes of up have a port in common, and checkNetwork
// counts them all.
func TestProcessPorts(t *testing.T) {
	for _, standby := range []bool{false, true} {
		c := Up{Nodes: 3, Standby: standby, NetworkFlags: NetworkFlags{Cluster: "lab", Ports: 7071}}
		taken := map[int]int{7070: -1}
		for i := range c.coordinators() + c.Nodes {
			gossip, from := c.processPorts(i)
			first := int(from)
			for _, port := range []int{gossip, first, first + 1, first + 2, first + 3} {
				if owner, ok := taken[port]; ok && port != 0 {
					t.Errorf("processes %d and %d both have port %d", owner, i, port)
				}
				taken[port] = i
			}
		}
		delete(taken, 0)
		c.Ports = cluster.Ports(65536 - (len(taken) - 1))
		if err := c.checkNetwork(); err != nil {
			t.Error(err)
		}
		c.Ports++
		if err := c.checkNetwork(); err == nil {
			t.Errorf("--ports %d reaches beyond 65535", c.Ports)
		}
	}
}
