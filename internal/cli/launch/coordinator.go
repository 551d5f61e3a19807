package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/join"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/supervise"
)

// CoordinatorCmd is the command coordinator.
type CoordinatorCmd struct {
	ServeFlags
	listenFlags
	keyFlags
	cluster.Process
	tokenServerFlags
	LogFlags
	Standby    bool     `help:"Wait while another coordinator holds the lease, and take over when it fails. Needs --join and --data-dir."`
	Nodes      int      `range:"1..256" placeholder:"N" help:"Nodes to wait for before serving (default: all nodes that have joined when no node has joined for two seconds)."`
	StoreNodes []string `placeholder:"NAME" help:"Names (--id) of two or more processes that keep copies of the store: a standby and a node, or two nodes. Each needs its own --data-dir. To change them later, use shoal store add and remove."`
	WithParent bool     `hidden:"" help:"Exit at once when standard input closes."`
	ListenFD   int      `name:"listen-fd" hidden:"" help:"File descriptor of a listener inherited from the parent, instead of --listen. A standby does not answer there."`
	net        network  // open with --cluster
}

func (c *CoordinatorCmd) Help() string {
	return `Runs the process with the API, the batcher and the placement. With --cluster NAME it prints
the line that adds a node, with a token, as shoal up does:

  shoal coordinator --cluster lab --nodes 3 --model ~/models/llama
  shoal node --join 10.0.0.1:7069 --token TOKEN

With a key file that every machine has:

  shoal keygen -o key
  shoal coordinator --bind 10.0.0.1:7070 --cluster-key key --listen 10.0.0.1:8080 --api-key secret --nodes 3 --model ~/models/llama
  shoal node --join 10.0.0.1:7070 ...

With a standby coordinator, jobs survive the loss of this machine:

  shoal coordinator --standby --join 10.0.0.1:7070 --bind 10.0.0.2:7070 --data-dir /var/lib/shoal ...`
}

func (c *CoordinatorCmd) Run(e *ui.Env) error {
	ignoreHangup(e)
	if err := c.check(); err != nil {
		return err
	}
	key, err := c.key(c.Insecure)
	if err != nil {
		return err
	}
	all, _, err := c.configs(e, "", map[string]bool{"chat-template": c.ChatTemplate != "", "tool-parser": c.ToolParser != ""})
	if err != nil {
		return err
	}
	// any other type does not depend on memory; that of the nodes is unknown here
	if slices.ContainsFunc(all, func(m modelSettings) bool { return m.Weights == string(models.QuantAuto) }) {
		limit, from := machine.MemoryLimit()
		if err := resolveQuants(e, all,
			models.Capacity{Local: 1, Total: max(1, c.Nodes), Limit: limit, From: from, Caches: min(kvMemory, limit/2)}); err != nil {
			return err
		}
	}
	log := c.logger(e.Stderr)
	if !c.WithParent {
		defer printShutdown(e)()
	}
	for i := range all {
		all[i].Logger = log
		c.warn(all[i].Model, log)
		own := cluster.APIConfig{}
		if i == 0 {
			own.Template, own.ToolParser = c.ChatTemplate, c.ToolParser
		}
		if _, err := cluster.Check(all[i].ServeConfig, own, math.MaxInt64); err != nil {
			return ofModel(all, i, err)
		}
	}
	serve := all[0].ServeConfig
	settings, err := c.openSettings(e, log)
	if err != nil {
		return err
	}
	defer settings.close()
	l, err := c.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	if err := c.openNetwork(e, &serve); err != nil {
		return err
	}
	defer c.net.close()
	if c.exchangesTokens() { // it has chosen the file of the key; a pipe gives its key only once
		if key, err = c.key(c.Insecure); err != nil {
			return err
		}
	}
	defer rereadKey(e, key, log)()
	ctx := e.Ctx
	if c.WithParent {
		context.AfterFunc(supervise.WithParent(context.WithoutCancel(ctx), e.Stdin), func() {
			fmt.Fprintln(e.Stderr, "shoal: exiting because the parent process is gone")
			os.Exit(1) // all accepted work is on disk
		})
	}
	serve.Tracer = settings.tracerOrNil()
	cfg := cluster.CoordinatorConfig{Process: c.Process, Standby: c.Standby, API: c.scheme() + "://" + l.Addr().String() + "/v1",
		Nodes: c.Nodes, Serve: serve, Others: further(all), Key: key, StoreNodes: c.StoreNodes}
	cfg.Bind = cmp.Or(c.Bind, net.JoinHostPort(loopback, strconv.Itoa(gossipPort)))
	if c.Standby {
		cfg.ID = cmp.Or(cfg.ID, "standby")
		c.printf(e, "standby at %s, in the cluster of %v\n", l.Addr(), c.Join)
	}
	co, err := startCoordinatorAt(ctx, cfg, l, c.ListenFD != 0, settings)
	if err != nil {
		if c.Standby && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil // a signal ended the standby before it had to take over
		}
		return err
	}
	defer co.Close()
	c.printf(e, "coordinator at %s; %s\n", co.GossipAddress(), c.nodeHint(co.GossipAddress(), key))
	return serveAPI(e.With(ctx), co, l, settings, func(addr string) {
		c.printf(e, "API at %s://%s/v1\n", c.scheme(), addr)
		if !c.WithParent && awaitReady(ctx, e, co) == nil {
			c.printf(e, "ready: %s on %s\n", strings.Join(co.ModelNames(), ", "), ui.Plural(len(co.Cluster().Nodes), "node"))
		}
	})
}

// printf prints to standard error. It prints nothing if another process started this one, since
// that process informs the operator.
func (c *CoordinatorCmd) printf(e *ui.Env, format string, args ...any) {
	if !c.WithParent {
		fmt.Fprintf(e.Stderr, format, args...)
	}
}

// listenAt opens the listener of the API.
func listenAt(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--listen %s: another program listens there: stop it, or choose another port (0 chooses a free one)", addr)
	case err != nil:
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}

func (c *CoordinatorCmd) listen() (net.Listener, error) {
	if c.ListenFD == 0 {
		return listenAt(c.Listen)
	}
	f := os.NewFile(uintptr(c.ListenFD), "listener")
	defer f.Close() // the listener duplicates the descriptor
	return net.FileListener(f)
}

// exchangesTokens reports whether other machines can join with a token. A process that shoal up or
// an operator's standby started shares the cluster key of the first one.
func (c *CoordinatorCmd) exchangesTokens() bool {
	return c.Cluster != "" && c.NATS == "" && !c.Insecure && !c.Standby && !c.WithParent
}

// openNetwork starts the server that exchanges tokens, and chooses the key and the gossip address.
func (c *CoordinatorCmd) openNetwork(e *ui.Env, serve *cluster.ServeConfig) error {
	if !c.exchangesTokens() {
		return nil
	}
	if err := errors.Join(join.CheckCluster(c.Cluster), c.checkLife()); err != nil {
		return err
	}
	c.net.tokenServer = tokenServer{tokenServerFlags: c.tokenServerFlags, cluster: c.Cluster, bind: c.Bind, dataDir: c.DataDir,
		model: c.reference(serve.Model), key: &c.ClusterKeyFlag, ports: []int{0}}
	if err := c.net.open(e, serve.Logger); err != nil {
		return err
	}
	c.Bind = c.net.gossip[0]
	return nil
}

// nodeHint returns the command that adds a node.
func (c *CoordinatorCmd) nodeHint(gossip string, key security.Key) string {
	if c.exchangesTokens() {
		return tokenCommand(c.Cluster, c.DataDir) + " prints the command for another machine"
	}
	out := "start nodes with: shoal node --join " + gossip
	if key.IsZero() {
		out += " --insecure"
	} else {
		out += " --cluster-key FILE --bind HOST:PORT"
	}
	if c.Cluster != "" && c.Cluster != clusterName {
		out += " --cluster " + c.Cluster
	}
	if c.NATS != "" {
		out += " --nats URL"
	}
	return out
}

// serveAPI serves the API on a listener until the context ends or the coordinator loses its
// lease, and then drains. It calls ready, unless nil, once with the address of the API.
func serveAPI(e *ui.Env, co *cluster.Coordinator, l net.Listener, settings *apiSettings, ready func(addr string)) error {
	before := fileStates(settings.flags.APIKeys)
	cfg, err := settings.config()
	if err != nil {
		return err
	}
	srv, err := co.NewAPI(cfg)
	if err != nil {
		return err
	}
	if err := co.ServeJobs(srv); err != nil {
		return err
	}
	if err := errors.Join(co.ServeNodes(srv), co.ServeStore(srv), co.ServeEvents(srv)); err != nil {
		return err
	}
	if ready != nil {
		go ready(l.Addr().String())
	}
	ctx, cancel := context.WithCancel(e.Ctx)
	defer cancel()
	watched := make(chan struct{})
	defer func() { cancel(); <-watched }()
	go func() { defer close(watched); settings.watch(ctx, srv, before) }()
	go func() {
		select {
		case <-co.Lost():
			cancel()
		case <-ctx.Done():
		}
	}()
	err = srv.Serve(ctx, l)
	if lost := co.LostReason(); lost != nil {
		return lost
	}
	return err
}
