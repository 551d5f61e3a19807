package store

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
)

const (
	restartCheck = time.Second
	restartPause = 5 * time.Second // between two attempts
	restartSpace = 1 << 20         // bytes that must be writable before the store is restarted
)

// restarter restarts a store that stopped writing because its disk was full or failing, once the
// disk is writable again. JetStream does not resume writing by itself.
type restarter struct {
	dir  string // on the disk of the store
	bus  func() *natsbus.Server
	log  *slog.Logger
	quit chan struct{}
	wg   sync.WaitGroup
}

func startRestarter(dir string, bus func() *natsbus.Server, log *slog.Logger) *restarter {
	m := &restarter{dir: dir, bus: bus, log: log, quit: make(chan struct{})}
	m.wg.Go(m.run)
	return m
}

func (m *restarter) run() {
	t := time.NewTicker(restartCheck)
	defer t.Stop()
	reported, tried := "", time.Time{}
	for {
		select {
		case <-m.quit:
			return
		case <-t.C:
		}
		bus := m.bus()
		why := ""
		if bus != nil {
			why = bus.Broken()
		}
		if why == "" {
			reported = ""
			continue
		}
		if reported == "" {
			m.log.Error("the job store is read-only until its disk accepts writes; plain requests need no disk", "folder", m.dir, "reason", why)
			reported = why
		}
		if time.Since(tried) < restartPause || m.checkDisk() != nil {
			continue
		}
		tried = time.Now()
		if err := bus.RestartJetStream(); err != nil {
			m.log.Warn("restarting the job store failed", "error", err)
			continue
		}
		m.log.Info("the job store was restarted because its disk accepts writes again", "folder", m.dir)
		reported = ""
	}
}

// checkDisk writes and removes a test file.
func (m *restarter) checkDisk() error {
	f, err := os.CreateTemp(m.dir, ".space-*")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	_, err = f.Write(make([]byte, restartSpace))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if rerr := os.Remove(f.Name()); err == nil {
		err = rerr
	}
	return err
}

func (m *restarter) close() {
	close(m.quit)
	m.wg.Wait()
}
