package launch

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	cudaprobe "github.com/shoal-llm/shoal/internal/engine/cuda/probe"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/machine"
	"github.com/shoal-llm/shoal/topology"
)

// Up is the command up: a local cluster and its API.
type Up struct {
	ServeFlags
	NodeFlags
	listenFlags
	ClusterKeyFlag
	NetworkFlags
	LogFlags
	Nodes        int       `short:"n" range:"1..64" placeholder:"N" help:"Node processes on this machine, 1 to 64 (default: one per NUMA node; most machines have one)."`
	Share        []float64 `range:"0.." placeholder:"X" help:"Relative shares of the nodes of this command (default: equal)."`
	PrefillNodes int       `name:"prefill-nodes" range:"0..63" placeholder:"N" help:"Number of these nodes that only read prompts longer than --prefill-over, so that long prompts do not delay running streams (default: 0; all nodes do everything). Does not change the output."`
	DataDir      string    `env:"SHOAL_DATA_DIR" type:"path" placeholder:"DIR" help:"Folder for jobs, batches and files. A restarted cluster continues them (default: shoal/jobs in the user's state directory, ~/.local/state on Linux, one folder per model)."`
	Standby      bool      `help:"Run the coordinator in its own process, with a second one that takes over if it fails. Keeps three copies of the job store, in three processes."`
	LogDir       string    `type:"path" placeholder:"DIR" help:"Folder for one debug log file per process (default: log to standard error, at --log-level)."`

	// NoJobs serves without a store of jobs.
	NoJobs bool `kong:"-"`
	// Speeds has the speed of each node; zero before the measurement.
	Speeds topology.Speeds `kong:"-"`
	// Processors is GOMAXPROCS of each node; 0 for the number of compute threads.
	Processors int `kong:"-"`

	models  []modelSettings // with their settings, once Prepare has found them
	specs   []modelSpec     // of all models, once their paths are known
	quants  []string        // types of their weights; "" for the default
	keyFile string          // file of the key of --api-key auto; "" without auto
	cpus    [][]int         // CPUs of each node; nil for no assignment
	net     network         // set with --cluster

	defaulted bool               // --nodes is not set
	card      *cudaprobe.Device  // the card that computes; nil: the CPU
	auto      bool               // --device auto has chosen the card
	serves    cluster.CardServes // with a card
}

func (c *Up) Help() string {
	return `Starts one process per node and splits the model across them. The coordinator and the API
run in this process. Ctrl-C drains the cluster and stops it.

The processes share a key that is generated at the start, so no other process can join. With
--cluster NAME other machines can join: the command prints the line to run on them, with a
token that is valid for one hour. It stores the key, the addresses and the tokens in the
user's state directory, or in --data-dir, so a restart needs no new tokens.

  shoal up
  shoal up --quant --model ~/models/Llama-3.2-1B
  shoal up --cluster lab --model ~/models/Llama-3.1-8B
  shoal up --nodes 3 --model ~/models/Llama-3.2-1B --kv-memory 4GiB --listen 127.0.0.1:9000`
}

func (c *Up) Run(e *ui.Env) error {
	ignoreHangup(e)
	switch {
	case c.Nodes == 0 && len(c.Share) > 0:
		c.Nodes = len(c.Share)
	case c.Nodes == 0:
		c.Nodes, c.defaulted = defaultNodes(numaOfThis(), runtime.GOMAXPROCS(0)), true
	}
	serve, err := c.Prepare(e)
	if err != nil {
		return err
	}
	defer printShutdown(e)()
	l, err := c.prepareLocal(e, serve, true)
	defer l.Stop()
	if err != nil {
		return err
	}
	if l.at, err = listenAt(c.Listen); err != nil {
		return err
	}
	l.closers = append(l.closers, func() { l.at.Close() }, c.net.close)
	if err := c.openNetwork(e, &l.config); err != nil {
		return err
	}
	if err := l.start(e); err != nil {
		return err
	}
	err = l.serveUntilDone(e)
	if err == nil && e.Ctx.Err() == nil { // no signal ended it
		err = context.Cause(l.ctx)
	}
	return err
}

// printShutdown prints a message when a signal starts the shutdown, since draining takes time.
// The caller calls the returned function when the command has ended.
func printShutdown(e *ui.Env) func() bool {
	return context.AfterFunc(e.Ctx, func() {
		fmt.Fprintln(e.Stderr, "stopping: running requests get up to 30 s, jobs are kept; press Ctrl-C again to stop at once")
	})
}

// Check checks the flags that need no checkpoint.
func (c *Up) Check() error {
	if err := c.checkNetwork(); err != nil {
		return err
	}
	if len(c.Share) > 0 && len(c.Share) != c.Nodes {
		return fmt.Errorf("--share has %d shares for %d nodes: give one share per node", len(c.Share), c.Nodes)
	}
	if c.PrefillNodes > 0 && c.PrefillNodes >= c.allNodes() {
		return fmt.Errorf("--prefill-nodes %d of %d nodes: at least one node must decode: give fewer, or more --nodes",
			c.PrefillNodes, c.allNodes())
	}
	return c.listenFlags.check()
}

// Prepare checks all flags before the command opens a port or starts a process. It returns the
// config of the coordinator.
func (c *Up) Prepare(e *ui.Env) (serve cluster.ServeConfig, err error) {
	keyFile := AutoKeyFile()
	if c.DataDir != "" {
		keyFile = filepath.Join(c.DataDir, "api-key")
	}
	if c.keyFile, err = c.resolveAutoKey(keyFile); err != nil {
		return serve, err
	}
	if err := c.Check(); err != nil {
		return serve, err
	}
	log, given, was := c.logger(e.Stderr), c.KVMemory, c.Nodes
	if err := c.chooseCard(e.Ctx, log); err != nil {
		return serve, err
	}
	if c.card != nil && c.defaulted {
		c.Nodes = 1
	}
	c.cpus = placeNodes(c.Nodes, numaOfThis())
	c.applyDefaults()
	all, specs, err := c.configs(e, c.Draft, map[string]bool{"chat-template": c.ChatTemplate != "", "tool-parser": c.ToolParser != ""})
	if err != nil {
		return serve, err
	}
	if c.card != nil {
		if err := c.divideCard(all, log); err != nil {
			return serve, err
		}
		if c.card == nil { // auto has changed its choice
			c.Nodes, c.cpus = was, placeNodes(was, numaOfThis())
			c.setShares()
			for i := range all {
				all[i].Shares = c.Serve.Shares
			}
		}
	}
	if c.card == nil {
		if err := c.resolveKVMemory(c.Nodes, log); err != nil {
			return serve, err
		}
	}
	auto := all[0].Weights == string(models.QuantAuto)
	capacity := c.capacity()
	if slices.ContainsFunc(all, func(m modelSettings) bool { return len(m.LoRA) > 0 || m.LoRADir != "" }) {
		capacity.Adapters = c.LoRAMemory
	}
	if err := resolveQuants(e, all, capacity); err != nil {
		return serve, err
	}
	if c.card != nil && auto { // the type of the weights is known now
		c.KVMemory = given
		if err := c.divideCard(all, log); err != nil {
			return serve, err
		}
	}
	for i := range all {
		all[i].Logger = log
		own := cluster.APIConfig{}
		if i == 0 {
			own.Template, own.ToolParser = c.ChatTemplate, c.ToolParser
		}
		c.quants = append(c.quants, all[i].Weights)
		if all[i].ServeConfig, err = cluster.Check(all[i].ServeConfig, own, c.KVMemory); err != nil {
			return serve, ofModel(all, i, err)
		}
	}
	if err := cluster.CheckMemory(c.KVMemory, append([]cluster.ServeConfig{all[0].ServeConfig}, further(all)...)); err != nil {
		return serve, err
	}
	c.Draft, c.Quant = all[0].Draft, models.Quant(c.quants[0])
	c.models, c.specs = all, specs
	return all[0].ServeConfig, nil
}

// capacity returns the memory of this machine or container for the nodes of this command.
func (c *Up) capacity() models.Capacity {
	if c.card != nil {
		return models.Capacity{Local: 1, Total: 1, Limit: c.card.Free, From: c.card.ID, Caches: min(c.KVMemory, c.card.Free/8)}
	}
	limit, from := machine.MemoryLimit()
	return models.Capacity{Local: c.Nodes, Total: c.allNodes(), Limit: limit, From: from, Caches: c.KVMemory}
}

// dataDir returns --data-dir, or the folder of the model's jobs. With and without a standby these
// differ. It is "" if jobs are off.
func (c *Up) dataDir(checkpoint string, log *slog.Logger) (string, error) {
	if c.DataDir != "" || c.NoJobs {
		return c.DataDir, nil
	}
	suffix := ""
	if c.Standby {
		suffix = "-standby"
	}
	more := c.SwiftKV // a different model
	for _, m := range c.models[min(1, len(c.models)):] {
		more += ";" + m.Model + m.SwiftKV
	}
	if more != "" {
		suffix = fmt.Sprintf("-%x", sha256.Sum256([]byte(more)))[:9] + suffix
	}
	dir, old, err := jobsDir(checkpoint, suffix)
	if dir == "" && err == nil {
		log.Warn("jobs, batches, files and stored responses are off: this user has no home directory for them; set a folder with --data-dir DIR")
	}
	if old {
		log.Warn("jobs are in the user's cache folder, which other programs can empty: stop the cluster and move the folder, or set --data-dir",
			"from", dir, "to", filepath.Join(StateHome(), "shoal", "jobs"))
	}
	return dir, err
}

// applyDefaults sets the flags whose defaults depend on other flags.
func (c *Up) applyDefaults() {
	c.setShares()
	if c.Draft != "" && c.Serve.Speculate == string(speculate.Suffix) {
		c.Serve.Speculate = string(speculate.Model)
	}
}

// allNodes returns the number of nodes that the first placement waits for.
func (c *Up) allNodes() int { return max(c.Nodes, c.Expect) }

// setShares sets the share of each node. The processes of one machine get equal shares unless
// --share is set. With nodes on other machines, shares follow the measured speeds.
func (c *Up) setShares() {
	if c.Cluster != "" && len(c.Share) == 0 {
		return
	}
	shares := maps.Clone(c.Serve.Shares)
	if shares == nil {
		shares = map[string]float64{}
	}
	for i := range c.Nodes {
		share := 1.0
		if len(c.Share) > 0 && c.Share[i] > 0 {
			share = c.Share[i]
		}
		shares[fmt.Sprintf("node-%d", i)] = share
	}
	c.Serve.Shares = shares
}

// measureThreads measures this machine and sets the compute threads of each node.
func (c *Up) measureThreads(ctx context.Context, serve cluster.ServeConfig, log *slog.Logger) error {
	ck, err := checkpoint.Open(serve.Model)
	if err != nil {
		return err
	}
	defer ck.Close()
	cluster.Identify(ck, &serve)
	weights, err := tensor.ParseDType(serve.Weights)
	if err == nil {
		c.Speeds = machine.MeasureSpeeds(ctx, machine.SpeedsConfig{Dir: c.weightsCache(), Nodes: c.Nodes, Threads: c.Threads, Sockets: c.Nodes,
			Model: &ck.Config, Weights: weights, Build: cluster.Build(), Logger: log}, nil)
		c.Threads = c.Speeds.Threads.Max
	}
	return err
}

// node returns the command of a node process. It has the flags of up; disk limits are divided
// by the number of nodes.
func (c *Up) node(i int, checkpoint string, join []string, dataDir string) NodeCmd {
	id := fmt.Sprintf("node-%d", i)
	gossip, ports := c.processPorts(c.coordinators() + i)
	n := NodeCmd{modelsFlag: modelsFlag{Model: oneModel(checkpoint), SwiftKV: c.SwiftKV}, NodeFlags: c.NodeFlags, LogFlags: c.LogFlags,
		Process: cluster.Process{Cluster: cmp.Or(c.Cluster, clusterName), Join: join, ID: id,
			Bind: net.JoinHostPort(c.net.bindHost(), strconv.Itoa(gossip)), Ports: ports, DataDir: dataDir},
		Share: c.Serve.Shares[id], Role: string(topology.RoleBoth), WithParent: true, Processors: c.Processors}
	if i >= c.Nodes-c.PrefillNodes {
		n.Role = string(topology.RolePrefill)
	}
	if c.settled() {
		n.Model = c.nodeModels()
		n.SwiftKV, n.Draft = "", ""
	}
	if c.LogDir != "" {
		n.LogLevel = "debug"
	}
	if c.card != nil {
		n.Serves = c.serves
	}
	n.WeightsCache = cmp.Or(c.weightsCache(), "off")
	n.PrefixDiskSize, n.KVDiskSize = c.PrefixDiskSize/int64(c.Nodes), c.KVDiskSize/int64(c.Nodes)
	return n
}

// coordinator returns the command of a coordinator process. It has the flags of up.
func (c *Up) coordinator(checkpoint string) CoordinatorCmd {
	k := CoordinatorCmd{ServeFlags: c.ServeFlags, listenFlags: c.listenFlags, LogFlags: c.LogFlags, Nodes: c.allNodes(), WithParent: true}
	k.Model, k.Cluster = oneModel(checkpoint), cmp.Or(c.Cluster, clusterName)
	if c.settled() {
		k.Model = c.coordinatorModels()
	}
	return k
}

// settled reports whether models have settings of their own, which their processes get with the model.
func (c *Up) settled() bool {
	return len(c.specs) > 1 || len(c.specs) == 1 && len(c.specs[0].settings) > 0
}

// nodeModels returns the models of a node process, with the settings that a node reads.
func (c *Up) nodeModels() (out []string) {
	for i, s := range c.specs {
		m := modelSpec{path: s.path}
		m.set("swiftkv", c.models[i].SwiftKV)
		m.set("draft", c.models[i].Draft)
		out = append(out, m.text())
	}
	return out
}

// coordinatorModels returns the models of a coordinator process, with the types of weights that are
// chosen here.
func (c *Up) coordinatorModels() (out []string) {
	for i, s := range c.specs {
		s.set("quant", c.quants[i])
		s.set("draft", c.models[i].Draft)
		out = append(out, s.text())
	}
	return out
}

// clusterName is the default name of a cluster.
const clusterName = "shoal"
