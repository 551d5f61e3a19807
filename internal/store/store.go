// Package store keeps what must outlive a process: placement and lease, jobs, batches and
// files, in one copy on this disk, or in replicas that several processes keep.
//
//	Store     a data directory, and the store in it
//	Members   who keeps replicas of it, and how it came to have them
//	Election  the lease that says who coordinates
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

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/batches"
	"github.com/shoal-llm/shoal/internal/jobs/door"
	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/server/api"
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

// Store is a process's data directory and the store in it: placement and
// lease, jobs, batches and files. The store is a JetStream of this process alone,
// with the files beside it, or a replicated one that this process keeps a copy of
// (replica), with the files in it.
type Store struct {
	path    string
	log     *slog.Logger
	dir     *jobs.Dir
	folder  *files.Folder // files while there is one copy of them
	replica *replica

	alone    *natsbus.Server // the store of one copy; nil: it is replicated
	lease    *bucketRegister
	election *Election  // nil: not begun
	nc       *nats.Conn // of the lease

	mender *mender // of the store of one copy; nil: there never was one
	// salvaged is what damage took from the store of one copy.
	salvaged jobs.Salvage
	front    Front

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
	behind        atomic.Pointer[time.Time] // since when fewer than a majority are; nil: they are
}

// Open takes the lock of a data directory. name is the process's, at the host:port where it
// offers to keep a replica. It may have to wait for that address, until ctx ends.
func Open(ctx context.Context, dir, name, at string, key security.Key, role security.Role, log *slog.Logger) (_ *Store, err error) {
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

// Addr is where this process keeps a replica, or offers to.
func (s *Store) Addr() string { return s.replica.addr }

// Replicated tells that this process keeps a replica.
func (s *Store) Replicated() bool {
	p, _ := s.replica.now()
	return p != nil
}

// Offer lets a coordinator ask this process to keep a replica.
func (s *Store) Offer(sys *rpc.System) error { return s.replica.serve(sys) }

// singleDir is where the store lies while there is one copy of it.
func (s *Store) singleDir() string { return filepath.Join(s.path, "jetstream") }

// OpenLease opens the register of the store that this directory belongs to. waits is told
// what it waits for.
func (s *Store) OpenLease(ctx context.Context, waits func(why string)) error {
	p, _ := s.replica.now()
	if p != nil {
		err := s.openReplicated(ctx, waits)
		if _, there := os.Stat(s.singleDir()); err != nil || there != nil {
			return err
		}
		// It was being formed when this process ended. The record decides whether
		// the copy was whole.
		if _, revision, err := s.lease.read(ctx); err != nil || revision > 0 {
			return errors.Join(err, s.retireSingle(p))
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
	s.mender = startMender(s.path, func() *natsbus.Server {
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
	p.Self = p.at(s.replica.addr) // others may have changed the members while this process was away
	return s.replica.keep(ctx, p)
}

// Quiet is how long a store may take to open before it is said what it waits for.
const Quiet = 3 * time.Second

func (s *Store) replicated(ctx context.Context, waits func(why string)) (*bucketRegister, *nats.Conn, error) {
	p, bus := s.replica.now()
	nc, err := bus.Connect("lease")
	if err != nil {
		return nil, nil, err
	}
	began, said := time.Now(), time.Now()
	r, err := openWithin(ctx, nc, wanted, func(err error) {
		if waits != nil && time.Since(began) > Quiet {
			waits(p.lacks(bus))
		}
		if time.Since(said) > startPatience {
			s.log.Warn(p.lacks(bus), "members", p.routes(), "error", err)
			said = time.Now()
		}
	})
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("store: the store %s needs two of %v: %w", p.ID, p.routes(), err)
	}
	return r, nc, nil
}

// OpenJobs reads the jobs; CloseJobs ends them.
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

// takeFiles brings the files that lie on this disk alone into the replicated
// store; with away they leave their place, and must not count any more.
func (s *Store) takeFiles(to *files.Shared, away bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), moveLimit)
	defer cancel()
	damage, err := to.Take(ctx, s.folder, away)
	if damage != nil {
		s.log.Error("damaged files were not replicated", "error", damage)
	}
	return err
}

// use reads a log and follows it when others can write it. shared: nil when the files
// are on this disk alone.
func (s *Store) use(l journal.Log, shared *files.Shared) error {
	ctx, cancel := context.WithTimeout(context.Background(), jobsOpenLimit)
	defer cancel()
	began := time.Now()
	lines := batches.NewStore(s.log)
	store, err := jobs.NewStore(ctx, l, jobs.StoreConfig{Logger: s.log, Beside: lines, Salvage: s.salvaged})
	if err != nil {
		if shared != nil {
			err = errors.Join(err, shared.Close())
		}
		return errors.Join(err, l.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.batches, s.shared = store, lines, shared
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
	s.log.Log(context.Background(), level, "job store open", "dir", s.path, "durability", s.kind, "jobs", total, "unfinished", waiting, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

const (
	// countEvery is how often the copies are counted.
	countEvery = 2 * time.Second
	// behindMost is how long a majority may be out of step, as while the store elects
	// its leader, before that is told as trouble.
	behindMost = 15 * time.Second
)

// count keeps the number of copies that are in step, and says when it changes.
func (s *Store) count(ctx context.Context) {
	t := time.NewTicker(countEvery)
	defer t.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, countEvery)
		n, err := s.lease.copies(ask)
		cancel()
		p, bus := s.replica.now()
		if members, others, merr := bus.StoreMembers(p.servers()); err != nil || merr != nil {
			n = 0 // nobody knows: fewer than two answer
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

// Durability is what clients are told.
func (s *Store) Durability() (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kind, int(s.inStep.Load())
}

// Close ends what is open, the service first.
func (s *Store) Close() {
	s.CloseJobs()
	if s.nc != nil {
		s.nc.Close()
	}
	if s.mender != nil {
		s.mender.close()
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
		s.front.API.KeepContexts(nil)
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

// Front is what the jobs of a store are served with.
type Front struct {
	Engine   api.Engine
	API      *api.Server
	Mount    *door.Mount
	Parallel int // jobs at once
}

// Serve runs what the store holds and mounts its routes, now and after a move.
func (s *Store) Serve(f Front) error {
	if err := f.API.Registerer().Register(jobStates{s}); err != nil {
		return err
	}
	s.front = f
	s.startJobs()
	return nil
}

// startJobs runs what the store holds.
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
	f.API.KeepContexts(files.Contexts{Store: kept})
	served := files.Serve(kept, f.API, s.log, s.batches.Uses)
	f.Mount.Serve(0, s.service.Routes(), s.lines.Routes(), served.Routes())
}

// State is the store as /v1/cluster shows it.
func (s *Store) State() *api.StoreState {
	kind, n := s.Durability()
	claim, _, _ := s.election.Claim()
	out := &api.StoreState{Durability: kind, Replicas: n, Wanted: wanted, Trouble: s.Trouble(), Coordinator: claim.Holder, Term: claim.Term}
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
		out.Members = append(out.Members, api.StoreMember{ID: m.Name, Route: m.Route, State: state})
	}
	return out
}

// Lacks says which replicas the store waits for; empty: it works.
func (s *Store) Lacks() string {
	if kind, _ := s.Durability(); kind == "replicated" {
		if p, bus := s.replica.now(); !p.majority(bus.Peers()) {
			return p.lacks(bus)
		}
	}
	return ""
}

// Trouble says what is wrong with the store while the cluster serves; empty: nothing.
// It needs no key to be read, and names no path.
func (s *Store) Trouble() string {
	s.mu.Lock()
	bus, store := s.alone, s.store
	s.mu.Unlock()
	if bus == nil {
		_, bus = s.replica.now()
	}
	var why []string
	if lacks := s.Lacks(); lacks != "" {
		why = append(why, lacks)
	}
	if since := s.behind.Load(); len(why) == 0 && since != nil && time.Since(*since) > behindMost {
		why = append(why, fmt.Sprintf("%d of the %d copies of the job store are in step, though their processes are here: their disks may be full or failing. No job is accepted until two are, and no placement follows this one", s.inStep.Load(), wanted))
	}
	if bus != nil && bus.Broken() != "" {
		why = append(why, "the disk of the job store takes nothing: it is full or failing")
	}
	if s.election != nil && s.election.owing() {
		why = append(why, "the newest placement is not written down: a coordinator that is started now goes by what nodes report")
	}
	if store != nil {
		if dead, other := store.Lost(); dead+other > 0 {
			why = append(why, fmt.Sprintf("records of the job store are damaged: %d jobs are lost, and %d other findings, which GET /v1/jobs tells", dead, other))
		}
	}
	return strings.Join(why, "; ")
}

// jobStates reads the numbers of jobs at each scrape.
type jobStates struct{ *Store }

var jobsDesc = prometheus.NewDesc("shoal_jobs", "Durable jobs that are kept, by state.", []string{"state"}, nil)

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
