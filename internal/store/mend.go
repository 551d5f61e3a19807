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
	mendEvery = time.Second
	mendRest  = 5 * time.Second // between two tries
	mendRoom  = 1 << 20         // bytes that must fit before a store is started again
)

// mender starts a store again that has stopped writing for a full or failing disk, once
// the disk takes something: JetStream itself refuses writes until then, and after.
type mender struct {
	dir  string // on the disk of the store
	bus  func() *natsbus.Server
	log  *slog.Logger
	quit chan struct{}
	wg   sync.WaitGroup
}

func startMender(dir string, bus func() *natsbus.Server, log *slog.Logger) *mender {
	m := &mender{dir: dir, bus: bus, log: log, quit: make(chan struct{})}
	m.wg.Go(m.run)
	return m
}

func (m *mender) run() {
	t := time.NewTicker(mendEvery)
	defer t.Stop()
	said, tried := "", time.Time{}
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
			said = ""
			continue
		}
		if said == "" {
			m.log.Error("the job store writes nothing until its disk does; what it holds can be read, and plain requests need no disk", "dir", m.dir, "reason", why)
			said = why
		}
		if time.Since(tried) < mendRest || m.probe() != nil {
			continue
		}
		tried = time.Now()
		if err := bus.Mend(); err != nil {
			m.log.Warn("the job store could not be started again", "error", err)
			continue
		}
		m.log.Info("the job store was started again, since there is space", "dir", m.dir)
		said = ""
	}
}

// probe writes something to the disk and takes it away again.
func (m *mender) probe() error {
	f, err := os.CreateTemp(m.dir, ".space-*")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	_, err = f.Write(make([]byte, mendRoom))
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

func (m *mender) close() {
	close(m.quit)
	m.wg.Wait()
}
