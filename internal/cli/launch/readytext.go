package launch

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// readyState holds the facts about a serving cluster that its user needs.
type readyState struct {
	addr    string  // address of the API
	gossip  string  // address that further nodes join
	data    string  // folder of jobs; "" if jobs are off
	nodes   int     // number of nodes; 0: unknown
	weights int64   // bytes on the node with the most
	parts   []int64 // cache memory of each of several models on all nodes
}

// readyStateOf extracts a readyState from the state of a cluster.
func readyStateOf(s *wire.ClusterState, addr, gossip, data string) readyState {
	out := readyState{addr: addr, gossip: gossip, nodes: len(s.Nodes)}
	if s.Store != nil {
		out.data = data
	}
	for _, n := range s.Nodes {
		out.weights = max(out.weights, n.WeightBytes)
	}
	for _, m := range s.Models {
		out.parts = append(out.parts, m.KVBudgetBytes)
	}
	return out
}

// printReady prints the model, the address, example requests, and how to stop the cluster.
func (c *Up) printReady(e *ui.Env, serve cluster.ServeConfig, s readyState) {
	fmt.Fprint(e.Stdout, c.readyText(serve, s, os.Getpid()))
}

func (c *Up) readyText(serve cluster.ServeConfig, s readyState, pid int) string {
	var b strings.Builder
	line := func(head, format string, args ...any) {
		fmt.Fprintf(&b, "  %-7s "+format+"\n", append([]any{head}, args...)...)
	}
	url, more, auth := c.scheme()+"://"+s.addr, "", ""
	switch {
	case c.TLSCert != "":
		more, auth = " --server "+url+" --tls-ca "+c.TLSCert, " --cacert "+c.TLSCert
	case s.addr != defaultServer:
		more = " --server " + s.addr
	}
	keyed := len(c.APIKey) > 0 || c.APIKeys != ""
	if keyed {
		more, auth = more+" --api-key KEY", auth+" -H 'Authorization: Bearer KEY'"
	}
	all := []cluster.ServeConfig{serve}
	if len(c.models) > 1 {
		all = append(all, further(c.models)...)
	}
	var names []string
	for _, m := range all {
		names = append(names, m.Names[0])
	}
	fmt.Fprintf(&b, "ready: %s on %s, API at %s/v1\n\n", strings.Join(names, ", "), ui.Plural(cmp.Or(s.nodes, c.allNodes()), "node"), url)
	for i, m := range all {
		part := ""
		if i < len(s.parts) {
			part = fmt.Sprintf(", caches of at most %s on all nodes", options.SizeText(s.parts[i]))
		}
		line("model", "%s, weights %s, context of %d tokens%s", m.Model, m.Weights, m.MaxContext, part)
	}
	weights := ""
	if s.weights > 0 {
		weights = options.SizeText(s.weights) + " of weights, "
	}
	if c.card != nil {
		line("device", "%s, %s", c.card.ID, c.card.Name)
	}
	line("memory", "each node: %scaches of at most %s", weights, options.SizeText(int64(c.KVMemory)))
	line("page", "%s/     in a terminal: shoal top%s", url, more)
	switch {
	case c.keyFile != "":
		line("key", "%s, which clients must send; it is stored in %s", c.APIKey[0], c.keyFile)
	case keyed:
		line("key", "clients must send an API key")
	default:
		line("key", "none: every program on this machine can use the API (--api-key requires a key)")
	}
	line("data", "%s", cmp.Or(s.data, "none: jobs, batches and files are off"))
	if c.LogDir != "" {
		line("logs", "%s", c.LogDir)
	}
	path, body, ask := "chat/completions", `{"messages":[{"role":"user","content":"What is a goroutine?"}]}`, "shoal chat"+more
	if _, err := tokenizer.LoadChatTemplateFrom(serve.Model, c.ChatTemplate); errors.Is(err, tokenizer.ErrNoChatTemplate) {
		path, body, ask = "completions", `{"prompt":"Once upon a time"}`, `shoal run`+more+` "Once upon a time"`
	}
	line("ask", "%s", ask)
	line("", "curl %s/v1/%s%s -d '%s'", url, path, auth, body)
	if c.Cluster != "" {
		line("join", "%s prints the command for another machine", tokenCommand(c.Cluster, c.DataDir))
	} else if given, err := c.Key(); err == nil && !given.IsZero() {
		line("join", "shoal node --join %s --cluster-key %s", s.gossip, cmp.Or(c.ClusterKeyFile, "FILE"))
	}
	line("stop", "Ctrl-C, or kill %d: running requests end first", pid)
	return b.String()
}
