package launch

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
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/server/apierr"
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

// coordinatorPair is a coordinator and a standby in processes of their own. The parent process
// opens the listener of the API, and both inherit it. Only the active coordinator accepts
// connections. So the address outlives both, and connections wait in the kernel's queue while
// neither is active.
type coordinatorPair struct {
	l       *localCluster
	stderr  io.Writer
	fd      *os.File // of the listener
	outputs [2]io.Writer
	logs    [2]string // their files; "" without --log-dir
	client  *client.Client

	processes *supervise.Children
	wg        sync.WaitGroup
}

var coordinatorNames = [2]string{firstCoordinator, secondCoordinator}

// hasPairStore reports whether a data directory has a store that a coordinator with a standby has written.
func hasPairStore(data string) bool {
	return slices.ContainsFunc(coordinatorNames[:], func(id string) bool {
		return ui.Exists(filepath.Join(data, id, "store.json")) || ui.Exists(filepath.Join(data, id, "jetstream"))
	})
}

// pairReplicated reports whether the store of a data directory has been replicated, so that either coordinator may have
// the newest state. The first one has no copy if the operator has removed it from the members. A plan in the folder of the
// second one alone does not count while the first one has a single copy: it was not formed.
func pairReplicated(data string) bool {
	first := filepath.Join(data, firstCoordinator)
	return ui.Exists(filepath.Join(first, "store.json")) ||
		ui.Exists(filepath.Join(data, secondCoordinator, "store.json")) && !ui.Exists(filepath.Join(first, "jetstream"))
}

// startPair starts a coordinator and a standby.
func (l *localCluster) startPair(e *ui.Env) (err error) {
	c := l.cmd
	if l.data == "" {
		return errors.New("--standby needs a --data-dir for the copies of the store")
	}
	p := &coordinatorPair{l: l, stderr: e.Stderr, outputs: [2]io.Writer{e.Stderr, e.Stderr}, processes: l.processes()}
	if p.fd, err = l.at.(*net.TCPListener).File(); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	l.closers = append(l.closers, func() { p.fd.Close() }, passHangup(e, p.processes)) // the processes reload their own files
	if l.gossip = c.net.gossip; c.Cluster == "" {
		if l.gossip, err = freeAddresses(len(coordinatorNames)); err != nil {
			return err
		}
	}
	if c.LogDir != "" {
		for i, id := range coordinatorNames {
			f, err := l.logFile(e, id)
			if err != nil {
				return err
			}
			p.outputs[i], p.logs[i] = io.MultiWriter(e.Stderr, f), f.path
		}
	}
	p.client = &client.Client{Server: c.scheme() + "://" + l.at.Addr().String()}
	if len(c.APIKey) > 0 {
		p.client.Key = c.APIKey[0]
	}
	p.client.HTTP.Transport = &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the listener is this process's own
	}
	l.pair = p
	restarted := pairReplicated(l.data)
	for i := range coordinatorNames {
		if err := p.start(i, restarted || i > 0, restartDelay); err != nil {
			return err
		}
	}
	return nil
}

// freeAddresses returns n free addresses. They are fixed, since a restarted coordinator must use
// the same one.
func freeAddresses(n int) (out []string, err error) {
	for range n {
		l, err := fixedport.Listen(loopback)
		if err != nil {
			return out, err
		}
		defer l.Close() // after the others are chosen
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// start starts coordinator i. When it exits, it is restarted as the standby of the other one.
func (p *coordinatorPair) start(i int, standby bool, pause time.Duration) error {
	l, c, id := p.l, p.l.cmd, coordinatorNames[i]
	k := c.coordinator(l.config.Model)
	k.ID, k.Bind, k.ListenFD, k.DataDir, k.StoreNodes = id, l.gossip[i], 3, filepath.Join(l.data, id), []string{secondCoordinator, "node-0"}
	_, k.Ports = c.processPorts(i)
	if standby {
		k.Standby, k.Join = true, []string{l.gossip[1-i]}
	}
	args, err := commandLine("coordinator", &k)
	if err != nil {
		return err
	}
	var keys []string
	if len(c.APIKey) > 0 { // every user of the machine can read a command line
		keys = []string{"SHOAL_API_KEY=" + apiKeysEnv(c.APIKey)}
	}
	began := time.Now()
	return p.processes.Start(supervise.Child{ID: id, Args: args, Env: keys, Files: []*os.File{p.fd},
		Stderr: p.outputs[i], Log: p.logs[i], Exited: func(error) {
			if p.processes.Alive() == 0 {
				l.cancel(errors.New("both coordinators have ended"))
				return
			}
			if time.Since(began) > stableAfter {
				pause = restartDelay
			}
			p.wg.Go(func() {
				select {
				case <-l.ctx.Done():
					return
				case <-time.After(pause):
				}
				if err := p.start(i, true, min(2*pause, 30*time.Second)); err != nil && l.ctx.Err() == nil {
					l.log.Error("coordinator not restarted", "id", id, "error", err)
				}
			})
		}})
}

// Ready implements readiness: it asks the active coordinator.
func (p *coordinatorPair) Ready() error {
	ctx, cancel := context.WithTimeout(p.l.ctx, 2*time.Second)
	defer cancel()
	err := p.client.Ready(ctx)
	if not := (*client.ErrNotReady)(nil); errors.As(err, &not) {
		return apierr.ErrNotReady{Reason: not.Reason}
	} else if err != nil {
		return apierr.ErrNotReady{Reason: "starting"}
	}
	return nil
}

// Cluster implements readiness. The state is empty if only a key from --api-keys could read it.
func (p *coordinatorPair) Cluster() wire.ClusterState {
	if p.client.Key == "" && p.l.cmd.APIKeys != "" {
		return wire.ClusterState{}
	}
	ctx, cancel := context.WithTimeout(p.l.ctx, 2*time.Second)
	defer cancel()
	s, err := p.client.Cluster(ctx)
	if err != nil {
		return wire.ClusterState{}
	}
	return *s
}

// stop drains the active coordinator and ends both. The context of the cluster has ended.
func (p *coordinatorPair) stop() {
	p.processes.Drain(drainTimeout)
	p.processes.Stop(5 * time.Second)
	p.wg.Wait() // the context has ended all pending restarts
}
