package jobs

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/server/api"
)

// Config of a Service. Zero fields take their defaults.
type Config struct {
	Rules Rules
	// Parallel is how many jobs run at once. Default 32.
	Parallel int
	// Linger is how long events are gathered before they are written; clients of
	// a job see its tokens that much later, and the disk syncs that much less
	// often. Default 5 ms.
	Linger time.Duration
	// MaxBody bounds the request of a job in bytes. Default 8 MiB.
	MaxBody int
	// Durability is told to clients: "single" is one copy on one disk,
	// "replicated" several on as many machines, with how many are in step now.
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

// Service runs the jobs of a store on an engine and answers for them over HTTP.
type Service struct {
	cfg    Config
	store  *Store
	engine api.Engine
	api    *api.Server

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}
}

// Start takes up what the store holds and runs it until Stop.
func Start(s *Store, e api.Engine, a *api.Server, cfg Config) *Service {
	cfg.defaults()
	v := &Service{cfg: cfg, store: s, engine: e, api: a, slots: make(chan struct{}, cfg.Parallel)}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	v.wg.Add(3)
	go func() { // jobs and their streams go on in the next process; they hold up no drain
		defer v.wg.Done()
		select {
		case <-a.Stopping():
			v.cancel()
		case <-v.ctx.Done():
		}
	}()
	go v.dispatch()
	go v.sweep()
	a.KeepResponses(v)
	return v
}

// Stop ends the attempts that run, noting that they were interrupted, and waits.
// The store stays open.
func (v *Service) Stop() {
	v.api.KeepResponses(nil)
	v.cancel()
	v.wg.Wait()
}

const (
	dispatchEvery = 100 * time.Millisecond // for jobs whose pause ends
	sweepEvery    = 5 * time.Second
	stopGrace     = 2 * time.Second // to note an interruption
)

// dispatch starts attempts while there are slots.
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

// startDue starts what is due, oldest first. While the engine is not ready, jobs
// wait without using up an attempt.
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
