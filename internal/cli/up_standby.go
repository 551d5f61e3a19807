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

// Folders in the data directory of a cluster with a standby, one a copy of the
// store; the third one is that of the first node.
const (
	firstCoordinator  = "coordinator"
	secondCoordinator = "standby"
)

const (
	drainTimeout = 40 * time.Second // a coordinator drains for up to 30 s
	restartDelay = time.Second      // before a coordinator that died is started again; it doubles
	stableAfter  = time.Minute      // one that lived this long starts afresh
)

// standbyCluster is a local cluster whose coordinator is a process of its own, with another
// one in its shadow. Both have the API's listener, which this process opened, and
// the one that coordinates accepts from it: the address outlives either, and who
// connects while nobody coordinates waits in the kernel's queue.
type standbyCluster struct {
	*localCluster
	cmd    *upCmd
	e      *env
	model  string // path of the checkpoint
	data   string
	fd     *os.File
	gossip [2]string
	logs   [2]*os.File // nil: none

	coordinators *supervise.Children
	wg           sync.WaitGroup
}

var coordinatorNames = [2]string{firstCoordinator, secondCoordinator}

func (c *upCmd) runWithStandby(e *env, serve cluster.ServeConfig) (err error) {
	p := &standbyCluster{localCluster: &localCluster{log: serve.Logger}, cmd: c, e: e}
	if p.data, err = c.dataDir(serve.Model, "-standby", p.log); err != nil { // not where a cluster without a standby keeps its jobs
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
	defer rereadKey(e, key, p.log)()                  // for processes that are started later
	defer passHangup(e, p.coordinators, p.children)() // they have the files that it is about
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
	if e.ctx.Err() != nil { // it was asked to end
		return nil
	}
	return context.Cause(p.ctx)
}

// freeAddresses are two that nobody has now: a coordinator must come back at its own.
func freeAddresses() (out [2]string, err error) {
	for i := range out {
		l, err := fixedport.Listen("127.0.0.1")
		if err != nil {
			return out, err
		}
		defer l.Close() // after the other one has been found
		out[i] = l.Addr().String()
	}
	return out, nil
}

// startCoordinator starts a coordinator, and again when it dies, in the shadow of the other.
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
	if len(p.cmd.APIKey) > 0 { // not where every user of the machine reads it
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
				p.log.Error("a coordinator was not started again", "id", id, "error", err)
			}
		})
	}})
}

// ready waits until the model answers, shows a terminal what for, and returns the state of
// the cluster: an empty one where only the holders of keys in a file may ask for it.
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

// stop lets who coordinates drain, and ends everything.
func (p *standbyCluster) stop() {
	p.cancel(nil)
	p.coordinators.Drain(drainTimeout)
	p.coordinators.Stop(5 * time.Second)
	p.wg.Wait() // nobody is started any more, and who was about to has heard of it
	p.localCluster.stop()
}
