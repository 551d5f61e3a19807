package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/supervise"
	"github.com/shoal-llm/shoal/internal/sys/sharedmem"
)

// localCluster is a cluster of processes on this machine: nodes, and one coordinator in this
// process or, with --standby, two in processes of their own.
type localCluster struct {
	cmd    *Up
	config cluster.ServeConfig
	ctx    context.Context // ends when the cluster fails
	cancel context.CancelCauseFunc
	log    *slog.Logger
	data   string // folder of jobs; "" if jobs are off
	key    security.Key
	gossip []string     // addresses of the coordinators
	at     net.Listener // of the API; nil: it has no address yet

	Coordinator *cluster.Coordinator // nil with a standby
	settings    *apiSettings         // of its API; nil without one
	pair        *coordinatorPair     // nil without a standby
	Children    *supervise.Children  // the nodes
	shared      *os.File             // memory that the nodes share; nil if there is none
	closers     []func()
}

// prepareLocal opens the files of a cluster and no port. The caller stops the cluster. withAPI is
// set if it serves its API by serveUntilDone.
func (c *Up) prepareLocal(e *ui.Env, serve cluster.ServeConfig, withAPI bool) (l *localCluster, err error) {
	l = &localCluster{cmd: c, config: serve, log: serve.Logger}
	l.ctx, l.cancel = context.WithCancelCause(e.Ctx)
	if l.data, err = c.dataDir(serve.Model, l.log); err != nil {
		return l, err
	}
	if c.LogDir != "" {
		if err := os.MkdirAll(c.LogDir, 0o700); err != nil {
			return l, fmt.Errorf("--log-dir: %w", err)
		}
	}
	if err := l.checkStore(); err != nil || c.Standby { // with --standby the coordinators open the files
		return l, err
	}
	if c.LogDir != "" {
		file, err := l.logFile(e, firstCoordinator)
		if err != nil {
			return l, err
		}
		l.log = slog.New(slog.NewMultiHandler(c.handler(e.Stderr, c.level()), c.handler(file, slog.LevelDebug)))
	}
	if withAPI {
		if l.settings, err = c.openSettings(e, l.log); err != nil {
			return l, err
		}
		l.closers = append(l.closers, l.settings.close)
	}
	l.config.Logger, l.config.Tracer = l.log, l.settings.tracerOrNil()
	return l, nil
}

// checkStore returns an error if the data directory has the store of a cluster with the other setting of --standby.
// That store would be ignored, with all that clients have saved.
func (l *localCluster) checkStore() error {
	switch {
	case l.data == "":
		return nil
	case l.cmd.Standby && ui.Exists(filepath.Join(l.data, "jetstream")):
		return fmt.Errorf("%s was written by `shoal up` without --standby; start it without --standby, or with another --data-dir", l.data)
	case !l.cmd.Standby && hasPairStore(l.data):
		return fmt.Errorf("%s was written by `shoal up --standby`; start it with --standby, or with another --data-dir", l.data)
	}
	return nil
}

// StartPrivate starts a cluster whose API has no address yet.
func (c *Up) StartPrivate(e *ui.Env, serve cluster.ServeConfig) (*localCluster, error) {
	l, err := c.prepareLocal(e, serve, false)
	if err == nil {
		err = l.start(e)
	}
	if err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// start starts the coordinators and the nodes. It does not wait for the model.
func (l *localCluster) start(e *ui.Env) (err error) {
	c := l.cmd
	if l.key, err = c.keyOrNew(); err != nil {
		return err
	}
	c.warn(l.config.Model, l.log)
	for _, m := range l.others() {
		c.warn(m.Model, l.log)
	}
	l.Children = l.processes()
	l.closers = append(l.closers, rereadKey(e, l.key, l.log), passHangup(e, l.Children))
	if c.Standby {
		err = l.startPair(e)
	} else {
		err = l.startCoordinator()
	}
	if err != nil {
		return err
	}
	if err := c.measureThreads(l.ctx, l.config, l.log); err != nil {
		return err
	}
	if c.Nodes > 1 {
		if l.shared, err = sharedmem.Create(); err != nil {
			l.log.Debug("nodes do not share weights", "reason", err)
		} else {
			defer l.shared.Close() // the nodes inherit it
		}
	}
	for i := range c.Nodes {
		if err := l.startNode(e, i); err != nil {
			return err
		}
	}
	return nil
}

// processes returns an empty set of processes of this cluster.
func (l *localCluster) processes() *supervise.Children {
	out := supervise.New(l.key, l.log)
	out.KeyFile = l.cmd.ClusterKeyFile
	return out
}

// startCoordinator starts the coordinator in this process. While its store waits for replicas, the
// listener of the API reports the reason.
func (l *localCluster) startCoordinator() (err error) {
	c := l.cmd
	place := cluster.Process{ID: firstCoordinator, Cluster: c.Cluster, Bind: c.net.bindGossip(0), Ports: c.Ports, DataDir: l.data}
	l.Coordinator, err = startCoordinatorAt(l.ctx, cluster.CoordinatorConfig{Process: place, Nodes: c.allNodes(), Serve: l.config,
		Others: l.others(), Key: l.key, DataOptional: c.DataDir == ""}, l.at, false, l.settings)
	if err != nil {
		return err
	}
	l.gossip = []string{l.Coordinator.GossipAddress()}
	return nil
}

// others returns the models but the first.
func (l *localCluster) others() []cluster.ServeConfig {
	if len(l.cmd.models) == 0 { // a caller gave the config
		return nil
	}
	return further(l.cmd.models)
}

// startNode starts node i. The first one keeps the third copy of the store, if there is a standby.
func (l *localCluster) startNode(e *ui.Env, i int) error {
	c, data := l.cmd, ""
	if l.pair != nil && i == 0 {
		data = filepath.Join(l.data, "node-0")
	}
	n := c.node(i, l.config.Model, l.gossip, data)
	if c.Speeds.Valid() {
		text, err := json.Marshal(c.Speeds)
		if err != nil {
			return err
		}
		n.Speeds = string(text)
	}
	var files []*os.File
	if l.shared != nil {
		files, n.SharedFD = append(files, l.shared), 3
	}
	args, err := commandLine("node", &n)
	if err != nil {
		return err
	}
	var out io.Writer = io.Discard // supervise keeps the last lines and shows them when the node ends
	path := ""
	if c.LogDir != "" {
		f, err := l.logFile(e, n.ID)
		if err != nil {
			return err
		}
		out, path = f, f.path
	}
	var cpus []int
	if c.cpus != nil {
		cpus = c.cpus[i]
	}
	return l.Children.Start(supervise.Child{ID: n.ID, Args: args, CPUs: cpus, Files: files, Stderr: out, Log: path, Exited: func(error) {
		if l.Children.Alive() == 0 {
			l.cancel(errors.New("every node process has ended"))
		}
	}})
}

// logFile creates the log file of a process in --log-dir. SIGHUP reopens it, for log rotation. Closing the cluster
// closes it.
func (l *localCluster) logFile(e *ui.Env, id string) (*reopenableFile, error) {
	path := filepath.Join(l.cmd.LogDir, id+".log")
	file, err := ui.CreateLog(path)
	if err != nil {
		return nil, fmt.Errorf("--log-dir: %w", err)
	}
	f := &reopenableFile{path: path, file: file}
	stop := onHangup(e, func() {
		if err := f.reopen(); err != nil {
			l.log.Error("log file not reopened: the previous one stays in use", "id", id, "error", err)
		}
	})
	l.closers = append(l.closers, func() { stop(); f.close() })
	return f, nil
}

// serveUntilDone serves the API until a signal or a failure ends the cluster. It prints how to use
// the cluster when the model is ready.
func (l *localCluster) serveUntilDone(e *ui.Env) error {
	if l.pair == nil {
		return serveAPI(e.With(l.ctx), l.Coordinator, l.at, l.settings, func(addr string) { l.printWhenReady(e, l.Coordinator, addr) })
	}
	l.printWhenReady(e, l.pair, l.at.Addr().String())
	<-l.ctx.Done()
	return nil
}

func (l *localCluster) printWhenReady(e *ui.Env, r readiness, addr string) {
	if awaitReady(l.ctx, e, r) == nil {
		l.cmd.printReady(e, l.config, readyStateOf(stateWithMemory(l.ctx, r), addr, strings.Join(l.gossip, ","), l.data))
	}
}

// stateWithMemory returns the state of a serving cluster after its nodes have reported their
// memory. The coordinator polls them several times a second during a start.
func stateWithMemory(ctx context.Context, r readiness) *wire.ClusterState {
	for range 20 {
		s := r.Cluster()
		lacks := slices.ContainsFunc(s.Models, func(m wire.ModelState) bool { return m.WeightBytes == 0 })
		if len(s.Nodes) > 0 && s.Nodes[0].WeightBytes > 0 && !lacks {
			return &s
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	s := r.Cluster()
	return &s
}

// WaitReady waits until the model is ready, and shows the progress.
func (l *localCluster) WaitReady(e *ui.Env) error { return awaitReady(l.ctx, e, l.Coordinator) }

// Stop drains the cluster and ends all of its processes.
func (l *localCluster) Stop() {
	if l.pair != nil {
		l.cancel(nil)
		l.pair.stop()
	}
	if l.Coordinator != nil {
		l.Coordinator.Close()
	}
	if l.Children != nil {
		l.Children.Stop(5 * time.Second)
	}
	for _, f := range slices.Backward(l.closers) {
		f()
	}
	l.cancel(nil)
}

// StartAndWait starts the cluster and waits until the model is ready.
func (c *Up) StartAndWait(e *ui.Env) (*localCluster, error) {
	serve, err := c.Prepare(e)
	if err != nil {
		return nil, err
	}
	l, err := c.StartPrivate(e, serve)
	if err != nil {
		return nil, err
	}
	if err := l.WaitReady(e); err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// Serve starts the API on a free loopback port; end stops it.
func (l *localCluster) Serve(ctx context.Context) (addr string, end func(), err error) {
	srv, err := l.Coordinator.NewAPI(cluster.APIConfig{Version: cluster.Build(), Logger: l.log})
	if err != nil {
		return "", nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, lis) }()
	return lis.Addr().String(), func() {
		cancel()
		if err := <-served; err != nil {
			l.log.Error("API did not stop cleanly", "error", err)
		}
	}, nil
}
