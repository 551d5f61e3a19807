package launch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/supervise"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
	"github.com/shoal-llm/shoal/topology"
)

// NodeCmd is the command node.
type NodeCmd struct {
	modelsFlag
	NodeFlags
	keyFlags
	cluster.Process
	LogFlags
	Token      string             `env:"SHOAL_TOKEN" placeholder:"TOKEN" help:"Token from the first machine (shoal up --cluster, shoal token create). The node exchanges it for the cluster key and stores the key, so a restart needs no token. Other users cannot read a token in SHOAL_TOKEN."`
	Discover   bool               `help:"Find the cluster on the local network by multicast DNS, and prompt for the token."`
	Share      float64            `help:"Share of the work relative to other nodes, at most twice the default (default: the measured memory bandwidth in units of 10 GB/s). The coordinator's --shares overrides it."`
	Role       string             `default:"both" oneof:"prefill,decode,both" help:"Work of this node: prefill (prompts longer than --prefill-over of the coordinator), decode (everything else), both (everything; with nodes of one of the other roles, it joins the group that has no node, else those that decode). Does not change the output."`
	WithParent bool               `hidden:"" help:"Exit when standard input closes."`
	Processors int                `hidden:"" help:"GOMAXPROCS, unless the environment sets it; 0: the number of compute threads."`
	SharedFD   int                `hidden:"" name:"shared-fd" help:"File descriptor of the memory that the nodes of this machine share."`
	Speeds     string             `hidden:"" help:"Measured speeds of this machine, as JSON."`
	Serves     cluster.CardServes `hidden:"" embed:"" prefix:"serves-"`
}

func (c *NodeCmd) Help() string {
	return `Runs one process of the cluster, with a slice of every weight matrix and one partition of
the KV cache. With --model bus the node needs no checkpoint on this machine: it fetches its
weights from other processes and stores them in --weights-cache. That is the default after
joining with a token.

  shoal node --join 10.0.0.1:7069 --token shoaljoin1-...     the first start
  shoal node                                                 later starts
  shoal node --discover                                      finds the cluster and asks for the token
  shoal node --join 10.0.0.1:7070 --bind 10.0.0.2:7070 --cluster-key key --model ~/models/llama`
}

// checkpoints returns the models on this machine, or none if the node fetches its weights from other
// processes.
func (c *NodeCmd) checkpoints(e *ui.Env) (out []cluster.NodeModel, err error) {
	specs, err := c.specs()
	if err != nil {
		return nil, err
	}
	for _, s := range specs {
		m := modelSettings{Draft: c.Draft}
		m.SwiftKV = c.SwiftKV
		if err := s.apply(&m); err != nil {
			return nil, err
		}
		dir, err := models.ModelFlag{Model: s.word}.Dir(e)
		if err == nil && !strings.HasPrefix(dir, checkpoint.RandomPrefix) {
			_, err = os.Stat(dir)
		}
		if err != nil && filepath.Base(s.word) == "bus" {
			if len(specs) > 1 {
				return nil, errors.New("--model bus fetches all models of the cluster: give it alone")
			}
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("no checkpoint on this machine: %w; choose a folder with config.json, or a .gguf file (--model bus fetches "+
				"the weights from other nodes)", err)
		}
		if m.Draft, err = models.FindDraft(e, m.Draft); err != nil {
			return nil, err
		}
		out = append(out, cluster.NodeModel{Model: dir, SwiftKV: m.SwiftKV, Draft: m.Draft})
	}
	if len(specs) > 1 && (c.Draft != "" || c.SwiftKV != "") {
		return nil, fmt.Errorf("--draft and --swiftkv belong to one of the %d models: give them with the model, as --model %s,draft=VALUE",
			len(specs), specs[0].word)
	}
	return out, nil
}

// chooseCard sets the device: a card or the CPU. If --device auto has chosen a card, caches is the memory of
// caches on the CPU, for a model that the card does not serve.
func (c *NodeCmd) chooseCard(ctx context.Context, log *slog.Logger) (caches int64, err error) {
	auto, given := c.Device == cluster.DeviceAuto, c.KVMemory
	if !c.WithParent { // up has probed the card
		d, why, err := cardOf(ctx, c.Device, log)
		if err != nil {
			return 0, err
		}
		if why != "" {
			log.Info(cluster.CPUComputes, "device", c.Device, "reason", why)
		}
		if c.Device = cluster.DeviceCPU; d != nil {
			c.Device = d.ID
		}
	}
	onCard := strings.HasPrefix(c.Device, "cuda:")
	if onCard && !auto {
		return 0, nil
	}
	err = c.resolveKVMemory(1, log)
	if !onCard {
		return 0, err
	}
	caches, c.KVMemory = c.KVMemory, given
	return caches, err
}

func (c *NodeCmd) Run(e *ui.Env) error {
	ignoreHangup(e)
	log := c.logger(e.Stderr)
	if err := c.resolveCluster(e, log); err != nil {
		return err
	}
	key, err := c.key(c.Insecure)
	if err != nil {
		return err
	}
	caches, err := c.chooseCard(e.Ctx, log)
	if err != nil {
		return err
	}
	c.WeightsCache = c.weightsCache()
	cfg := cluster.NodeConfig{Process: c.Process, Resources: c.Resources, SwiftKV: c.SwiftKV, Share: c.Share, Key: key, Abrupt: c.WithParent,
		Logger: log, OnThreads: c.goProcessors}
	cfg.Serves, cfg.CPUCaches, cfg.Role = c.Serves, caches, topology.Role(c.Role)
	cfg.Bind = cmp.Or(c.Bind, net.JoinHostPort(loopback, "0"))
	flagErr := cfg.Validate()
	if flagErr != nil && (len(c.Model) == 0 || slices.ContainsFunc(c.Model, models.CanPull)) { // before pulling gigabytes
		return flagErr
	}
	found, err := c.checkpoints(e)
	if err = cmp.Or(err, flagErr); err != nil {
		return err
	}
	if len(found) > 0 {
		first := found[0]
		cfg.Model, cfg.SwiftKV, cfg.Draft, cfg.Others = first.Model, first.SwiftKV, first.Draft, found[1:]
	} else if cfg.Draft, err = models.FindDraft(e, c.Draft); err != nil {
		return err
	}
	if cfg.Model == "" {
		store, err := models.OpenStore()
		if err != nil {
			return err
		}
		defer store.Close()
		if !store.Settings().Offline {
			cfg.Hub = store.Range
		}
	}
	var speeds topology.Speeds
	if c.Speeds != "" {
		if err := json.Unmarshal([]byte(c.Speeds), &speeds); err != nil || !speeds.Valid() || speeds.Threads.Max != c.Threads {
			return fmt.Errorf("--speeds %q: want the measured speeds of %d threads: %w", c.Speeds, c.Threads,
				cmp.Or(err, errors.New("invalid speeds")))
		}
	}
	shared, err := openShared(c.SharedFD)
	if err != nil {
		return err
	}
	if shared != nil {
		defer shared.Close()
	}
	ctx := e.Ctx
	if c.WithParent {
		ctx = supervise.WithParent(ctx, e.Stdin)
	}
	c.goProcessors(c.Threads)
	defer rereadKey(e, key, log)()
	progress := nodeProgress(e, cmp.Or(c.ID, "this node"))
	cfg.Speeds, cfg.Shared, cfg.OnProgress = speeds, shared, progress
	return cluster.RunNode(ctx, cfg)
}

// openShared opens the shared memory that this process inherited; nil if there is none.
func openShared(fd int) (*sharedmem.Region, error) {
	if fd == 0 {
		return nil, nil
	}
	f := os.NewFile(uintptr(fd), "shared")
	if f == nil {
		return nil, fmt.Errorf("--shared-fd %d: not an open file descriptor", fd)
	}
	defer f.Close()
	r, err := sharedmem.Open(f)
	if err != nil {
		return nil, fmt.Errorf("--shared-fd %d: %w", fd, err)
	}
	return r, nil
}

// allProcessors is the number of CPUs that this process may use.
var allProcessors = runtime.GOMAXPROCS(0)

// goProcessors sets GOMAXPROCS to the number of compute threads, unless the environment or
// --processors sets it. The last processor carries messages while the other threads compute or
// wait for work. With a higher number, a message that wakes a goroutine also wakes another
// thread to look for work, although a thread that is awake would run it sooner. With 8 instead
// of 7, the ranks of 4 nodes waited up to twice as long for each other. Prompts in two micro-batches ask for one
// more, because their messages move while all threads compute.
func (c *NodeCmd) goProcessors(threads int) {
	n := min(cmp.Or(c.Processors, threads), allProcessors)
	if os.Getenv("GOMAXPROCS") == "" && n > 0 && n != runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(n)
	}
}
