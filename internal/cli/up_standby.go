package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/supervise"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
)

// Names of the coordinators, and of their folders in the data directory. Each folder has a copy
// of the store; the third copy is that of the first node.
const (
	firstCoordinator  = "coordinator"
	secondCoordinator = "standby"
)

const (
	drainTimeout = 40 * time.Second // a coordinator drains for up to 30 s
	restartDelay = time.Second      // delay before a coordinator is restarted; it doubles each time
	stableAfter  = time.Minute      // a coordinator that ran this long gets the first delay again
)

// standbyCluster is a local cluster with a coordinator and a standby in processes of their own.
// This process opens the listener of the API, and both inherit it. Only the active coordinator
// accepts connections. So the address outlives both, and connections wait in the kernel's queue
// while neither is active.
type standbyCluster struct {
	*localCluster
	cmd    *upCmd
	e      *env
	model  string // path of the checkpoint
	data   string
	fd     *os.File
	gossip [2]string
	logs   [2]*os.File // nil without --log-dir

	coordinators *supervise.Children
	wg           sync.WaitGroup
}

var coordinatorNames = [2]string{firstCoordinator, secondCoordinator}

func (c *upCmd) runWithStandby(e *env, serve cluster.ServeConfig) (err error) {
	p := &standbyCluster{localCluster: &localCluster{log: serve.Logger}, cmd: c, e: e}
	if p.data, err = c.dataDir(serve.Model, "-standby", p.log); err != nil { // a cluster without a standby uses another folder
		return err
	}
	if p.data == "" {
		return errors.New("--standby needs a --data-dir for the copies of the store")
	}
	at, err := listenAt(c.Listen)
	if err != nil {
		return err
	}
	defer at.Close()
	if p.fd, err = at.(*net.TCPListener).File(); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer p.fd.Close()
	if err := c.openNetwork(e, &serve); err != nil {
		return err
	}
	defer c.net.close()
	if c.Cluster != "" {
		copy(p.gossip[:], c.net.gossip)
	} else if p.gossip, err = freeAddresses(); err != nil {
		return err
	}
	key, err := c.keyOrNew()
	if err != nil {
		return err
	}
	p.model = serve.Model
	if c.LogDir != "" {
		for i, id := range coordinatorNames {
			if p.logs[i], err = c.logFile(id); err != nil {
				return err
			}
			defer p.logs[i].Close()
		}
	}
	p.ctx, p.cancel = context.WithCancelCause(e.ctx)
	p.coordinators, p.children = supervise.New(key, p.log), supervise.New(key, p.log)
	defer p.stop()
	p.coordinators.KeyFile, p.children.KeyFile = c.ClusterKeyFile, c.ClusterKeyFile
	defer rereadKey(e, key, p.log)()                  // for processes that start later
	defer passHangup(e, p.coordinators, p.children)() // the processes reload their own files
	restarted := exists(filepath.Join(p.data, firstCoordinator, "store.json"))
	for i := range p.gossip {
		if err := p.startCoordinator(i, restarted || i > 0, restartDelay); err != nil {
			return err
		}
	}
	if err := c.measureThreads(p.ctx, serve, p.log); err != nil {
		return err
	}
	for i := range c.Nodes {
		data := ""
		if i == 0 {
			data = filepath.Join(p.data, "node-0")
		}
		if err := c.startNode(p.localCluster, i, serve.Model, p.gossip[:], data); err != nil {
			return err
		}
	}
	addr := at.Addr().String()
	state, err := p.ready(addr)
	if err == nil {
		s := readyStateOf(state, addr, strings.Join(p.gossip[:], ","), p.data)
		s.data = p.data
		c.printReady(e, serve, s)
		<-p.ctx.Done()
	}
	if e.ctx.Err() != nil { // a signal ended it
		return nil
	}
	return context.Cause(p.ctx)
}

// freeAddresses returns two free addresses. They are fixed, since a restarted coordinator must
// use the same one.
func freeAddresses() (out [2]string, err error) {
	for i := range out {
		l, err := fixedport.Listen("127.0.0.1")
		if err != nil {
			return out, err
		}
		defer l.Close() // after the other address is chosen
		out[i] = l.Addr().String()
	}
	return out, nil
}

// startCoordinator starts coordinator i. When it exits, it is restarted as the standby of the
// other one.
func (p *standbyCluster) startCoordinator(i int, standby bool, pause time.Duration) error {
	id := coordinatorNames[i]
	k := p.cmd.coordinator(p.model)
	k.ID, k.Bind, k.ListenFD, k.DataDir, k.StoreNodes = id, p.gossip[i], 3, filepath.Join(p.data, id), []string{secondCoordinator, "node-0"}
	_, k.Ports = p.cmd.processPorts(i)
	if standby {
		k.Standby, k.Join = true, []string{p.gossip[1-i]}
	}
	args, err := commandLine("coordinator", &k)
	if err != nil {
		return err
	}
	var keys []string
	if len(p.cmd.APIKey) > 0 { // every user of the machine can read a command line
		keys = []string{"SHOAL_API_KEY=" + apiKeysEnv(p.cmd.APIKey)}
	}
	out, file := p.e.stderr, ""
	if f := p.logs[i]; f != nil {
		out, file = io.MultiWriter(out, f), f.Name()
	}
	began := time.Now()
	return p.coordinators.Start(supervise.Child{ID: id, Args: args, Env: keys, Files: []*os.File{p.fd}, Stderr: out, Log: file, Exited: func(error) {
		if p.coordinators.Alive() == 0 {
			p.cancel(errors.New("both coordinators have ended"))
			return
		}
		if time.Since(began) > stableAfter {
			pause = restartDelay
		}
		p.wg.Go(func() {
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(pause):
			}
			if err := p.startCoordinator(i, true, min(2*pause, 30*time.Second)); err != nil && p.ctx.Err() == nil {
				p.log.Error("coordinator not restarted", "id", id, "error", err)
			}
		})
	}})
}

// ready waits until the model is ready. On a terminal it prints why it is not ready yet. It returns
// the state of the cluster, which is empty if only a key from --api-keys could read it.
func (p *standbyCluster) ready(addr string) (*api.ClusterState, error) {
	key := ""
	if len(p.cmd.APIKey) > 0 {
		key = p.cmd.APIKey[0]
	}
	cl := &client.Client{Server: p.cmd.scheme() + "://" + addr, Key: key}
	cl.HTTP.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the listener is this process's own, whatever name its certificate bears
	show, last := isTerminal(p.e.stderr), ""
	for {
		s, err := func() (*api.ClusterState, error) {
			ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
			defer cancel()
			if err := cl.Ready(ctx); err != nil || key == "" && p.cmd.APIKeys != "" {
				return &api.ClusterState{}, err
			}
			return cl.Cluster(ctx)
		}()
		if err == nil {
			if last != "" {
				showStatus(p.e.stderr, "")
			}
			return s, nil
		}
		text := "starting"
		if not := (*client.ErrNotReady)(nil); errors.As(err, &not) {
			text = not.Reason
		}
		if show && text != last {
			showStatus(p.e.stderr, text)
			last = text
		}
		select {
		case <-p.ctx.Done():
			if last != "" {
				showStatus(p.e.stderr, "")
			}
			return nil, context.Cause(p.ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop drains the active coordinator and ends all processes.
func (p *standbyCluster) stop() {
	p.cancel(nil)
	p.coordinators.Drain(drainTimeout)
	p.coordinators.Stop(5 * time.Second)
	p.wg.Wait() // the context has ended all pending restarts
	p.localCluster.stop()
}
