package jobs

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/server/api"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// Config configures a Service. Zero fields take their defaults.
type Config struct {
	Rules Rules
	// Parallel is the maximum number of running jobs. Default 32.
	Parallel int
	// Linger is how long events are collected before they are written. It delays a job's tokens by
	// that time and saves disk syncs. Default 5 ms.
	Linger time.Duration
	// MaxBody is the maximum size of a job's request in bytes. Default 8 MiB.
	MaxBody int
	// Durability is reported to clients: "single" is one copy on one disk. "replicated" is a copy
	// on each of several machines, with the number of replicas currently in sync.
	Durability func() (kind string, replicas int)
	Logger     *slog.Logger
}

func (c *Config) defaults() {
	c.Rules.Defaults()
	c.Parallel = cmp.Or(c.Parallel, 32)
	c.Linger = cmp.Or(c.Linger, 5*time.Millisecond)
	c.MaxBody = cmp.Or(c.MaxBody, 8<<20)
	if c.Durability == nil {
		c.Durability = func() (string, int) { return "single", 1 }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Service runs the jobs of a store on an engine and serves their HTTP routes.
type Service struct {
	cfg    Config
	store  *Store
	engine engine.Engine
	api    *api.Server

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}
}

// Start runs the jobs of the store until Stop.
func Start(s *Store, e engine.Engine, a *api.Server, cfg Config) *Service {
	cfg.defaults()
	v := &Service{cfg: cfg, store: s, engine: e, api: a, slots: make(chan struct{}, cfg.Parallel)}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.wg.Add(3)
	go func() { // jobs and their streams continue in the next process, so a drain does not wait for them
		defer v.wg.Done()
		select {
		case <-a.Stopping():
			v.cancel()
		case <-v.ctx.Done():
		}
	}()
	a.SetResponseStore(v) // before the first attempt, which may continue a stored response
	go v.dispatch()
	go v.sweep()
	return v
}

// Stop interrupts the running attempts, records that, and waits for them. The store stays open.
func (v *Service) Stop() {
	v.cancel() // first: an attempt must not find the store away
	v.api.SetResponseStore(nil)
	v.wg.Wait()
}

const (
	dispatchEvery = 100 * time.Millisecond // also wakes jobs whose pause ends
	sweepEvery    = 5 * time.Second
	stopGrace     = 2 * time.Second // for writing the record of an interruption
)

// dispatch starts attempts while slots are free.
func (v *Service) dispatch() {
	defer v.wg.Done()
	t := time.NewTicker(dispatchEvery)
	defer t.Stop()
	for {
		select {
		case <-v.ctx.Done():
			return
		case <-v.store.wake:
		case <-t.C:
		}
		v.startDue()
	}
}

// startDue starts the jobs that are due, oldest first. While the engine is not ready, jobs wait
// without using up an attempt.
func (v *Service) startDue() {
	free := cap(v.slots) - len(v.slots)
	if free == 0 {
		return
	}
	var due []*job
	now := v.store.Now()
	v.store.unfinished(func(j *job) bool {
		j.mu.Lock()
		_, ok := j.state.Begin(now, v.cfg.Rules)
		ok = ok && !j.running && j.damage == "" && !time.Now().Before(j.pause)
		j.mu.Unlock()
		if ok {
			due = append(due, j)
		}
		return len(due) < free
	})
	if len(due) == 0 || v.engine.Ready() != nil {
		return
	}
	for _, j := range due {
		select {
		case v.slots <- struct{}{}:
		default:
			return
		}
		ctx, cancel := context.WithCancel(v.ctx)
		j.mu.Lock()
		j.running, j.attempts = true, cancel
		j.mu.Unlock()
		v.wg.Go(func() {
			defer func() { <-v.slots; v.store.Wake() }()
			defer func() {
				cancel()
				j.mu.Lock()
				j.running, j.attempts = false, nil
				j.mu.Unlock()
			}()
			v.attempt(ctx, j)
		})
	}
}

func (v *Service) sweep() {
	defer v.wg.Done()
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		if err := v.store.sweep(v.ctx); err != nil && v.ctx.Err() == nil {
			v.cfg.Logger.Warn("jobs: bounds on ended jobs could not be applied", "error", err)
		}
		select {
		case <-v.ctx.Done():
			return
		case <-t.C:
		}
	}
}
