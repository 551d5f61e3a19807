package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"shoal/api"
	"shoal/collective/natsbus"
	"shoal/jobs"
	"shoal/jobs/batches"
	"shoal/jobs/door"
	"shoal/jobs/files"
	"shoal/jobs/journal"
	"shoal/security"
)

const (
	// jobsOpenLimit bounds reading the store at the start.
	jobsOpenLimit = 10 * time.Minute
	// quorumWait bounds the wait for a store that must be there.
	quorumWait = 60 * time.Second
	quorumAsk  = 2 * time.Second // the first request; each further one has longer
	quorumMost = 16 * time.Second
	quorumTry  = 500 * time.Millisecond
)

// dataStore is a coordinator's data directory and the store in it: placement and
// lease, jobs, batches and files. The store is a JetStream of this process alone,
// with the files beside it, or a replicated one that this process keeps a copy of
// (keeper), with the files in it.
type dataStore struct {
	path   string
	log    *slog.Logger
	dir    *jobs.Dir
	folder *files.Folder // files while there is one copy of them
	keeper *keeper

	alone *natsbus.Server // the store of one copy; nil: it is replicated
	lease *bucketRegister
	nc    *nats.Conn       // of the lease
	waits func(why string) // told for what the store waits

	mender *mender // of the store of one copy; nil: there never was one

	mu            sync.Mutex // guards what follows: it is changed when the store is replicated
	kind          string     // single, replicated
	store         *jobs.Store
	batches       *batches.Store
	shared        *files.Shared // nil: files are on this disk alone
	service       *jobs.Service
	lines         *batches.Service
	stopFollowing context.CancelFunc // ends following the log
	wg            sync.WaitGroup
	inStep        atomic.Int32
}

// openDataStore takes the lock of a data directory.
func openDataStore(dir, name, at string, key security.Key, role security.Role, log *slog.Logger) (_ *dataStore, err error) {
	d := &dataStore{path: dir, log: log, kind: "single"}
	d.inStep.Store(1)
	if d.dir, err = jobs.OpenDir(dir); err != nil {
		return nil, err
	}
	if d.folder, err = files.OpenFolder(filepath.Join(dir, "files")); err == nil {
		d.keeper, err = openKeeper(dir, name, at, role, key, log)
	}
	if err != nil {
		d.dir.Close()
		return nil, err
	}
	return d, nil
}

// singleDir is where the store lies while there is one copy of it.
func (d *dataStore) singleDir() string { return filepath.Join(d.path, "jetstream") }

// openLease opens the register of the store that this directory belongs to.
func (d *dataStore) openLease(ctx context.Context) error {
	p, _ := d.keeper.now()
	if p != nil {
		err := d.openReplicated(ctx)
		if _, there := os.Stat(d.singleDir()); err != nil || there != nil {
			return err
		}
		// It was being formed when this process ended. The record decides whether
		// the copy was whole.
		if _, revision, err := d.lease.read(ctx); err != nil || revision > 0 {
			return errors.Join(err, d.retireSingle(p))
		}
		d.nc.Close()
		d.mu.Lock()
		d.kind = "single"
		d.mu.Unlock()
	}
	var err error
	d.alone, err = natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: d.singleDir(),
		StoreBytes: jobs.StoreBytes + (128 << 20), SyncAlways: true, Log: d.log})
	if err != nil {
		return err
	}
	d.mender = startMender(d.path, func() *natsbus.Server {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.alone
	}, d.log)
	if d.nc, err = d.alone.Connect("lease"); err != nil {
		return err
	}
	d.lease, err = openWithin(ctx, d.nc, 1, func(error) {})
	return err
}

// openWithin opens the register of a store, asking again until ctx ends: a request before
// there is a leader is lost, and a slow disk may need longer than one is given.
func openWithin(ctx context.Context, nc *nats.Conn, replicas int, waits func(error)) (*bucketRegister, error) {
	for limit := quorumAsk; ; limit = min(2*limit, quorumMost) {
		try, cancel := context.WithTimeout(ctx, limit)
		r, err := openRegister(try, nc, replicas)
		late := try.Err() != nil
		cancel()
		if err == nil {
			return r, nil
		}
		if replicas == 1 && !late {
			return nil, err // no leader to wait for
		}
		waits(err)
		select {
		case <-time.After(quorumTry):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// openReplicated waits until enough keepers are up and opens their register.
func (d *dataStore) openReplicated(ctx context.Context) error {
	r, nc, err := d.replicated(ctx)
	if err != nil {
		return err
	}
	d.lease, d.nc = r, nc
	d.mu.Lock()
	d.kind = "replicated"
	d.mu.Unlock()
	var p *plan
	for { // as record does
		try, cancel := context.WithTimeout(ctx, electionLimit)
		p, _, err = r.members(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(electionTick):
		case <-ctx.Done():
		}
	}
	if err != nil || p == nil {
		return err
	}
	p.Self = p.at(d.keeper.addr) // others may have changed the members while this process was away
	return d.keeper.keep(p)
}

// storeQuiet is how long the store may take to open before it is said what it waits for.
const storeQuiet = 3 * time.Second

func (d *dataStore) replicated(ctx context.Context) (*bucketRegister, *nats.Conn, error) {
	p, bus := d.keeper.now()
	nc, err := bus.Connect("lease")
	if err != nil {
		return nil, nil, err
	}
	began, said := time.Now(), time.Now()
	r, err := openWithin(ctx, nc, keepers, func(err error) {
		if d.waits != nil && time.Since(began) > storeQuiet {
			d.waits(d.lacks(p, bus))
		}
		if time.Since(said) > 5*time.Second {
			d.log.Warn(d.lacks(p, bus), "members", p.routes(), "error", err)
			said = time.Now()
		}
	})
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("cluster: the store %s needs two of %v: %w", p.ID, p.routes(), err)
	}
	return r, nc, nil
}

// lacks says which keepers of a store are not there.
func (d *dataStore) lacks(p *plan, bus *natsbus.Server) string {
	up := bus.Peers()
	var here, away []string
	for _, m := range p.Members {
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			here = append(here, m.Name)
		} else {
			away = append(away, m.Name)
		}
	}
	if len(here) > len(p.Members)/2 {
		return "the store elects its leader"
	}
	return fmt.Sprintf("the job store needs %d of its %d replicas; here: %s; away: %s. Start them again, with their --data-dir", len(p.Members)/2+1, len(p.Members), strings.Join(here, ", "), strings.Join(away, ", "))
}

// openStore reads the jobs.
func (d *dataStore) openStore() error {
	bus, replicas := d.alone, 1
	if bus == nil {
		_, bus = d.keeper.now()
		replicas = keepers
	}
	l, err := openLog(bus, replicas)
	if err != nil {
		return err
	}
	var shared *files.Shared
	if replicas > 1 {
		if shared, err = d.openFiles(); err != nil {
			return errors.Join(err, l.Close())
		}
		if err := d.takeFiles(shared, true); err != nil {
			return errors.Join(err, l.Close(), shared.Close())
		}
	}
	return d.use(l, shared)
}

func openLog(bus *natsbus.Server, replicas int) (journal.Log, error) {
	nc, err := bus.Connect("jobs")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), quorumWait)
	defer cancel()
	l, err := journal.OpenJetStream(ctx, nc, jobs.StoreBytes, replicas)
	if err != nil {
		nc.Close()
	}
	return l, err
}

// openFiles opens the files of the replicated store.
func (d *dataStore) openFiles() (*files.Shared, error) {
	p, bus := d.keeper.now()
	nc, err := bus.Connect("files")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), quorumWait)
	defer cancel()
	l, err := journal.OpenFileStream(ctx, nc, files.Bytes+(64<<20), keepers)
	if err != nil {
		nc.Close()
		return nil, err
	}
	f, err := files.OpenShared(ctx, l, filepath.Join(d.path, "files-"+p.ID))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return f, nil
}

// takeFiles brings the files that lie on this disk alone into the replicated
// store; with away they leave their place, and must not count any more.
func (d *dataStore) takeFiles(to *files.Shared, away bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	damage, err := to.Take(ctx, d.folder, away)
	if damage != nil {
		d.log.Error("damaged files were not replicated", "error", damage)
	}
	return err
}

// use reads a log and follows it when others can write it. shared: nil when the files
// are on this disk alone.
func (d *dataStore) use(l journal.Log, shared *files.Shared) error {
	ctx, cancel := context.WithTimeout(context.Background(), jobsOpenLimit)
	defer cancel()
	began := time.Now()
	lines := batches.NewStore(d.log)
	store, err := jobs.NewStore(ctx, l, jobs.StoreConfig{Logger: d.log, Beside: lines})
	if err != nil {
		if shared != nil {
			err = errors.Join(err, shared.Close())
		}
		return errors.Join(err, l.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.store, d.batches, d.shared = store, lines, shared
	name := ""
	if d.kind == "replicated" {
		p, _ := d.keeper.now()
		name = "-" + p.ID
		var ctx context.Context
		ctx, d.stopFollowing = context.WithCancel(context.Background())
		d.wg.Add(2)
		go func() { defer d.wg.Done(); store.Follow(ctx) }()
		go func() { defer d.wg.Done(); d.count(ctx) }()
	}
	d.dir.Attach(store, name)
	waiting, total := store.Count()
	d.log.Info("job store open", "dir", d.path, "durability", d.kind, "jobs", total, "unfinished", waiting, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// countEvery is how often the copies are counted.
const countEvery = 2 * time.Second

// count keeps the number of copies that are in step, and says when it changes.
func (d *dataStore) count(ctx context.Context) {
	t := time.NewTicker(countEvery)
	defer t.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, countEvery)
		n, err := d.lease.copies(ask)
		cancel()
		p, bus := d.keeper.now()
		if members, others, merr := bus.StoreMembers(p.servers()); err != nil || merr != nil {
			n = 0 // nobody knows: fewer than two answer
		} else {
			n = min(n, members-len(others))
		}
		if old := d.inStep.Swap(int32(n)); int(old) != n && ctx.Err() == nil {
			log := d.log.Info
			if n < keepers {
				log = d.log.Warn
			}
			log("copies of the job store in step", "now", n, "of", keepers)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// durability is what clients are told.
func (d *dataStore) durability() (string, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kind, int(d.inStep.Load())
}

// close ends what is open, the service first.
func (d *dataStore) close() {
	d.closeStore()
	if d.nc != nil {
		d.nc.Close()
	}
	if d.mender != nil {
		d.mender.close()
	}
	if d.alone != nil {
		d.alone.Shutdown()
	}
	d.keeper.close()
	d.dir.Close()
}

func (d *dataStore) closeStore() {
	d.mu.Lock()
	service, lines, store, shared, stopFollowing := d.service, d.lines, d.store, d.shared, d.stopFollowing
	d.service, d.lines, d.store, d.shared, d.stopFollowing = nil, nil, nil, nil, nil
	d.mu.Unlock()
	if service != nil {
		lines.Stop()
		service.Stop()
	}
	if stopFollowing != nil {
		stopFollowing()
	}
	d.wg.Wait()
	d.dir.Detach()
	if store != nil {
		store.Close()
	}
	if shared != nil {
		if err := shared.Close(); err != nil {
			d.log.Warn("closing the files", "error", err)
		}
	}
}

// ServeJobs adds the routes of jobs to an API server in front of this
// coordinator and takes up the jobs in its data directory. Without one, the
// routes say so. It is called once, before the API serves.
func (c *Coordinator) ServeJobs(a *api.Server) (err error) {
	if c.mount, err = door.NewMount(a, c.noJobs); err != nil || c.dataStore == nil {
		return err
	}
	if err := a.Registerer().Register(jobStates{c.dataStore}); err != nil {
		return err
	}
	c.api = a
	c.startJobs()
	c.formStore()
	return nil
}

// startJobs runs what the store holds.
func (c *Coordinator) startJobs() {
	d := c.dataStore
	d.mu.Lock()
	defer d.mu.Unlock()
	var kept files.Store = d.folder
	if d.shared != nil {
		kept = d.shared
	}
	d.service = jobs.Start(d.store, c.core, c.api, jobs.Config{Parallel: c.serve.MaxSequences, Durability: d.durability, Logger: c.serve.Logger})
	d.lines = batches.Start(d.batches, d.service, kept, c.api, batches.Config{Durability: d.durability})
	served := files.Serve(kept, c.api, c.serve.Logger, d.batches.Uses)
	c.mount.Serve(0, d.service.Routes(), d.lines.Routes(), served.Routes())
}

// jobStates reads the numbers of jobs at each scrape.
type jobStates struct{ dataStore *dataStore }

var jobsDesc = prometheus.NewDesc("shoal_jobs", "Durable jobs that are kept, by state.", []string{"state"}, nil)

func (j jobStates) Describe(ch chan<- *prometheus.Desc) { ch <- jobsDesc }

func (j jobStates) Collect(ch chan<- prometheus.Metric) {
	j.dataStore.mu.Lock()
	store := j.dataStore.store
	j.dataStore.mu.Unlock()
	if store == nil {
		return
	}
	for state, n := range store.States() {
		ch <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}
