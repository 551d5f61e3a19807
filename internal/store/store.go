// Package store keeps the state that outlives a process: placement and lease, jobs, batches
// and files. There is one copy on this disk, or replicas on several processes.
//
//	Store     a data directory and the store in it
//	Members   the processes that keep replicas, and changes of them
//	Election  the lease that decides which process coordinates
package store

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

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/batches"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/routes"
	"github.com/shoal-llm/shoal/internal/jobs/sessionlog"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

const (
	// jobsOpenLimit is the deadline for reading the store at start.
	jobsOpenLimit = 10 * time.Minute
	// quorumWait is the deadline for reaching a store that must exist.
	quorumWait         = 60 * time.Second
	quorumFirstTimeout = 2 * time.Second // of the first request; each further one has longer
	quorumMaxTimeout   = 16 * time.Second
	quorumTry          = 500 * time.Millisecond
)

// Store is a process's data directory and the store in it: placement and lease, jobs, batches and
// files. A single-copy store is a JetStream server of this process with a folder of files. A
// replicated one is this process's replica, which also holds the files.
type Store struct {
	path    string
	log     *slog.Logger
	dir     *jobs.Dir
	folder  *files.Folder // the files of a single-copy store
	replica *replica

	alone    *natsbus.Server // server of a single-copy store; nil: it is replicated
	lease    *bucketRegister
	election *Election  // nil: not started
	nc       *nats.Conn // to the server with the lease

	restarter *restarter // of a single-copy store; nil if there never was one
	// salvaged describes the records that the single-copy store has lost to damage.
	salvaged jobs.Salvage
	front    Front

	mu            sync.Mutex // guards the fields below, which change when the store becomes replicated
	kind          string     // "single" or "replicated"
	store         *jobs.Store
	batches       *batches.Store
	turns         *sessionlog.Store
	shared        *files.Shared // nil: the files are on this disk only
	service       *jobs.Service
	lines         *batches.Service
	stopFollowing context.CancelFunc // stops following the log
	wg            sync.WaitGroup
	inStep        atomic.Int32
	behind        atomic.Pointer[time.Time] // since when fewer than a majority are in sync; nil: a majority is
}

// Open locks a data directory. name is the name of the process, at the place at which it offers to keep a replica. Open
// may wait for that address until ctx ends.
func Open(ctx context.Context, dir, name string, at hostname.Place, key security.Key, role security.Role,
	log *slog.Logger) (_ *Store, err error) {
	s := &Store{path: dir, log: log, kind: "single"}
	s.inStep.Store(1)
	if s.dir, err = jobs.OpenDir(dir); err != nil {
		return nil, err
	}
	if s.folder, err = files.OpenFolder(filepath.Join(dir, "files")); err == nil {
		s.replica, err = openReplica(ctx, dir, name, at, role, key, log)
	}
	if err != nil {
		s.dir.Close()
		return nil, err
	}
	return s, nil
}

// Addr returns the address at which this process keeps a replica, or offers to.
func (s *Store) Addr() string { return s.replica.addr }

// Replicated reports whether this process keeps a replica.
func (s *Store) Replicated() bool {
	p, _ := s.replica.now()
	return p != nil
}

// Offer lets a coordinator ask this process to keep a replica.
func (s *Store) Offer(sys *rpc.System) error { return s.replica.serve(sys) }

// singleDir returns the directory of a single-copy store.
func (s *Store) singleDir() string { return filepath.Join(s.path, "jetstream") }

// OpenLease opens the register of this directory's store. While it waits, it calls waits with the
// reason.
func (s *Store) OpenLease(ctx context.Context, waits func(why string)) error {
	p, _ := s.replica.now()
	if p != nil {
		err := s.openReplicated(ctx, waits)
		if _, there := os.Stat(s.singleDir()); err != nil || there != nil {
			return err
		}
		if formed, err := s.formed(ctx, s.lease, p); err != nil || formed {
			return err
		}
		s.nc.Close()
		s.mu.Lock()
		s.kind = "single"
		s.mu.Unlock()
	}
	var err error
	if s.salvaged, err = salvage(s.path, s.singleDir(), s.log); err != nil {
		return err
	}
	s.alone, err = natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: s.singleDir(),
		StoreBytes: jobs.StoreBytes + (128 << 20), SyncAlways: true, Log: s.log})
	if err != nil {
		return err
	}
	s.restarter = startRestarter(s.path, func() *natsbus.Server {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.alone
	}, s.log)
	if s.nc, err = s.alone.Connect("lease"); err != nil {
		return err
	}
	s.lease, err = openWithin(ctx, s.nc, 1, func(error) {})
	return err
}

// formed decides which store has the jobs, after this process ended while it formed the replicated one. That one has the
// record of the lease only if the copy was complete: it then moves the single copy aside. Without an answer of the
// replicated store nothing is decided.
func (s *Store) formed(ctx context.Context, r register, p *plan) (bool, error) {
	for { // retry as record does
		try, cancel := context.WithTimeout(ctx, electionLimit)
		_, revision, err := r.read(try)
		cancel()
		switch {
		case err == nil && revision == 0:
			return false, nil
		case err == nil:
			return true, s.retireSingle(p)
		}
		select {
		case <-time.After(electionTick):
		case <-ctx.Done():
			return false, err
		}
	}
}

// openWithin opens the register of a store and retries until ctx ends. Requests before a leader is
// elected are lost, and a slow disk may need longer than one attempt.
func openWithin(ctx context.Context, nc *nats.Conn, replicas int, waits func(error)) (*bucketRegister, error) {
	for limit := quorumFirstTimeout; ; limit = min(2*limit, quorumMaxTimeout) {
		try, cancel := context.WithTimeout(ctx, limit)
		r, err := openRegister(try, nc, replicas)
		late := try.Err() != nil
		cancel()
		if err == nil {
			return r, nil
		}
		if replicas == 1 && !late {
			return nil, err // a single copy elects no leader
		}
		waits(err)
		select {
		case <-time.After(quorumTry):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// openReplicated waits until enough replicas are up and opens their register.
func (s *Store) openReplicated(ctx context.Context, waits func(why string)) error {
	r, nc, err := s.replicated(ctx, waits)
	if err != nil {
		return err
	}
	s.lease, s.nc = r, nc
	s.mu.Lock()
	s.kind = "replicated"
	s.mu.Unlock()
	var p *plan
	for { // retry as record does
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
	p.Self = p.at(s.replica.addr) // the members may have changed while this process was down
	return s.replica.keep(ctx, p)
}

// QuietPeriod is the time after which the log has the reason why a store is not open yet.
const QuietPeriod = 3 * time.Second

func (s *Store) replicated(ctx context.Context, waits func(why string)) (*bucketRegister, *nats.Conn, error) {
	p, bus := s.replica.now()
	nc, err := bus.Connect("lease")
	if err != nil {
		return nil, nil, err
	}
	began, logged := time.Now(), time.Now()
	r, err := openWithin(ctx, nc, wanted, func(err error) {
		if waits != nil && time.Since(began) > QuietPeriod {
			waits(p.lacks(bus))
		}
		if time.Since(logged) > startPatience {
			s.log.Warn(p.lacks(bus), "members", p.routes(), "error", err)
			logged = time.Now()
		}
	})
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("store: the store %s needs two of %v: %w", p.ID, p.routes(), err)
	}
	return r, nc, nil
}

// OpenJobs reads the jobs. CloseJobs closes them.
func (s *Store) OpenJobs() error {
	bus, replicas := s.alone, 1
	if bus == nil {
		_, bus = s.replica.now()
		replicas = wanted
	}
	l, err := openLog(bus, replicas)
	if err != nil {
		return err
	}
	var shared *files.Shared
	if replicas > 1 {
		if shared, err = s.openFiles(); err != nil {
			return errors.Join(err, l.Close())
		}
		if err := s.takeFiles(shared, true); err != nil {
			return errors.Join(err, l.Close(), shared.Close())
		}
	}
	return s.use(l, shared)
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

func (s *Store) openFiles() (*files.Shared, error) {
	p, bus := s.replica.now()
	nc, err := bus.Connect("files")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), quorumWait)
	defer cancel()
	l, err := journal.OpenFileStream(ctx, nc, files.Bytes+(64<<20), wanted)
	if err != nil {
		nc.Close()
		return nil, err
	}
	f, err := files.OpenShared(ctx, l, filepath.Join(s.path, "files-"+p.ID))
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return f, nil
}

// takeFiles copies the files of this disk into the replicated store. If away is set, it then removes them
// from the disk, and they no longer count.
func (s *Store) takeFiles(to *files.Shared, away bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	damage, err := to.Take(ctx, s.folder, away)
	if damage != nil {
		s.log.Error("damaged files were not replicated", "error", damage)
	}
	return err
}

// use reads a log, and follows it if other processes can write it. shared is nil if the files are
// on this disk only.
func (s *Store) use(l journal.Log, shared *files.Shared) error {
	ctx, cancel := context.WithTimeout(context.Background(), jobsOpenLimit)
	defer cancel()
	began := time.Now()
	lines, turns := batches.NewStore(s.log), sessionlog.New(s.log)
	store, err := jobs.NewStore(ctx, l, jobs.StoreConfig{Logger: s.log, Peers: []jobs.PeerStore{lines, turns}, Salvage: s.salvaged})
	if err != nil {
		if shared != nil {
			err = errors.Join(err, shared.Close())
		}
		return errors.Join(err, l.Close())
	}
	turns.Start(store)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.batches, s.turns, s.shared = store, lines, turns, shared
	name := ""
	if s.kind == "replicated" {
		p, _ := s.replica.now()
		name = "-" + p.ID
		var ctx context.Context
		ctx, s.stopFollowing = context.WithCancel(context.Background())
		s.wg.Add(2)
		go func() { defer s.wg.Done(); store.Follow(ctx) }()
		go func() { defer s.wg.Done(); s.count(ctx) }()
	}
	s.dir.Attach(store, name)
	waiting, total := store.Count()
	level := slog.LevelDebug
	if waiting > 0 {
		level = slog.LevelInfo
	}
	s.log.Log(context.Background(), level, "job store open", "folder", s.path, "durability", s.kind, "jobs", total, "unfinished", waiting,
		"took", time.Since(began).Round(time.Millisecond))
	return nil
}

const (
	// countEvery is the interval for counting the replicas.
	countEvery = 2 * time.Second
	// behindMost is how long a majority may be out of sync, as during a leader election, before
	// this is reported as trouble.
	behindMost = 15 * time.Second
)

// count updates the number of replicas in sync, and logs changes.
func (s *Store) count(ctx context.Context) {
	t := time.NewTicker(countEvery)
	defer t.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, countEvery)
		n, err := s.lease.copies(ask)
		cancel()
		p, bus := s.replica.now()
		if members, others, merr := bus.StoreMembers(p.servers()); err != nil || merr != nil {
			n = 0 // unknown: fewer than two answer
		} else {
			n = min(n, members-len(others))
		}
		if now := time.Now(); n > wanted/2 {
			s.behind.Store(nil)
		} else {
			s.behind.CompareAndSwap(nil, &now)
		}
		if old := int(s.inStep.Swap(int32(n))); old != n && ctx.Err() == nil {
			log := s.log.Info
			if n < old {
				log = s.log.Warn
			}
			log("copies of the job store in step", "now", n, "of", wanted)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// Durability returns the kind of the store and the number of copies that are in step, for the API.
func (s *Store) Durability() (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kind, int(s.inStep.Load())
}

// Close stops the services and then closes the store.
func (s *Store) Close() {
	s.CloseJobs()
	if s.nc != nil {
		s.nc.Close()
	}
	if s.restarter != nil {
		s.restarter.close()
	}
	if s.alone != nil {
		s.alone.Shutdown()
	}
	s.replica.close()
	s.dir.Close()
}

func (s *Store) CloseJobs() {
	s.mu.Lock()
	service, lines, store, shared, stopFollowing := s.service, s.lines, s.store, s.shared, s.stopFollowing
	s.service, s.lines, s.store, s.shared, s.stopFollowing = nil, nil, nil, nil, nil
	s.mu.Unlock()
	if service != nil {
		s.front.API.SetContextStore(nil)
		s.front.API.SetSessionBook(nil)
		lines.Stop()
		service.Stop()
	}
	if stopFollowing != nil {
		stopFollowing()
	}
	s.wg.Wait()
	s.dir.Detach()
	if store != nil {
		store.Close()
	}
	if shared != nil {
		if err := shared.Close(); err != nil {
			s.log.Warn("closing the files", "error", err)
		}
	}
}

// Front has the services that expose the jobs of a store.
type Front struct {
	Engine   engine.Engine
	API      *api.Server
	Mount    *routes.Mount
	Parallel int // number of jobs that run at once
}

// Serve runs the jobs of the store and mounts its routes, now and after it becomes replicated.
func (s *Store) Serve(f Front) error {
	if err := f.API.Registerer().Register(jobStates{s}); err != nil {
		return err
	}
	s.front = f
	s.startJobs()
	return nil
}

// jobsOpen reports whether the jobs are open.
func (s *Store) jobsOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store != nil
}

// reopenJobs opens and runs the jobs again, after a failure closed them.
func (s *Store) reopenJobs() error {
	if err := s.OpenJobs(); err != nil {
		return err
	}
	s.startJobs()
	return nil
}

// startJobs runs the jobs of the store.
func (s *Store) startJobs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept files.Store = s.folder
	if s.shared != nil {
		kept = s.shared
	}
	f := &s.front
	s.service = jobs.Start(s.store, f.Engine, f.API, jobs.Config{Parallel: f.Parallel, Durability: s.Durability, Logger: s.log})
	s.lines = batches.Start(s.batches, s.service, kept, f.API, batches.Config{Durability: s.Durability})
	f.API.SetContextStore(files.Contexts{Store: kept})
	f.API.SetSessionBook(s.turns.Book(), s.turns.Ended()...)
	served := files.Serve(kept, f.API, s.log, s.batches.Uses)
	f.Mount.Serve(0, s.service.Routes(), s.lines.Routes(), served.Routes())
}

// State returns the store's part of /v1/cluster.
func (s *Store) State() *wire.StoreState {
	kind, n := s.Durability()
	claim, _, _ := s.election.Claim()
	out := &wire.StoreState{Durability: kind, Replicas: n, Target: wanted, Problem: s.Problem(), Coordinator: claim.Holder, Term: claim.Term}
	p, bus := s.replica.now()
	if p == nil || kind != "replicated" {
		return out
	}
	up := bus.Peers()
	for _, m := range p.Members {
		state := "away"
		if m.Name == p.Self || slices.Contains(up, m.server()) {
			state = "here"
		}
		out.Members = append(out.Members, wire.StoreMember{ID: m.Name, Route: m.Route, State: state})
	}
	return out
}

// MissingReplicas names the replicas that the store waits for; "" if it works.
func (s *Store) MissingReplicas() string {
	if kind, _ := s.Durability(); kind == "replicated" {
		if p, bus := s.replica.now(); !p.majority(bus.Peers()) {
			return p.lacks(bus)
		}
	}
	return ""
}

// Problem describes a fault of a store that serves; "": none. Reading it requires
// no key, so it contains no path.
func (s *Store) Problem() string {
	s.mu.Lock()
	bus, store := s.alone, s.store
	s.mu.Unlock()
	if bus == nil {
		_, bus = s.replica.now()
	}
	var why []string
	if missing := s.MissingReplicas(); missing != "" {
		why = append(why, missing)
	}
	if since := s.behind.Load(); len(why) == 0 && since != nil && time.Since(*since) > behindMost {
		why = append(why, fmt.Sprintf("%d of the %d copies of the job store are in step, although their processes are connected: their disks "+
			"may be full or failing. Until two are in step, no job is accepted and no new placement is possible", s.inStep.Load(), wanted))
	}
	if bus != nil && bus.Broken() != "" {
		why = append(why, "the disk of the job store accepts no writes: it is full or failing")
	}
	if s.election != nil && s.election.pending() {
		why = append(why, "the newest placement was not recorded: a coordinator that starts now relies on the reports of nodes")
	}
	if store != nil {
		if dead, other := store.Lost(); dead+other > 0 {
			why = append(why, fmt.Sprintf("records of the job store are damaged: %d jobs are lost, and there are %d other findings (see GET "+
				"/v1/jobs)", dead, other))
		}
	}
	return strings.Join(why, "; ")
}

// jobStates collects the numbers of jobs at each scrape.
type jobStates struct{ *Store }

var jobsDesc = prometheus.NewDesc("shoal_jobs", "Stored durable jobs, by state.", []string{"state"}, nil)

func (j jobStates) Describe(ch chan<- *prometheus.Desc) { ch <- jobsDesc }

func (j jobStates) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	store := j.store
	j.mu.Unlock()
	if store == nil {
		return
	}
	for state, n := range store.States() {
		ch <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}
