package api

import (
	"context"
	"time"
)

// ContextStore keeps fixed contexts for longer than this process lives. All methods may be called
// concurrently.
type ContextStore interface {
	// KeepContext takes one: it is on disk when there is no error.
	KeepContext(ctx context.Context, k KeptContext) error
	// KeptContexts are all.
	KeptContexts(ctx context.Context) ([]KeptContext, error)
	// DropContext forgets one; it is no error when there is none.
	DropContext(ctx context.Context, tenant, name string) error
}

// KeptContext is what is kept of a context: what it is made of, not its cache.
type KeptContext struct {
	Tenant      string  `json:"tenant"`
	Name        string  `json:"name"`
	Policy      string  `json:"kv_policy"`
	Automatic   bool    `json:"automatic,omitempty"`
	Created     int64   `json:"created"` // Unix seconds
	Fingerprint string  `json:"fingerprint"`
	IDs         []int32 `json:"ids"`
}

// KeepContexts has contexts kept from now on, and those of the store read; nil: no longer.
func (s *Service) KeepContexts(store ContextStore) {
	if store == nil {
		s.contextStore.Store(nil)
		return
	}
	s.contextStore.Store(&store)
	ctx, cancel := context.WithTimeout(context.Background(), keepLimit)
	defer cancel()
	kept, err := store.KeptContexts(ctx)
	if err != nil {
		s.log.Error("api: contexts cannot be read from the store", "error", err)
	}
	for _, k := range kept {
		if k.Fingerprint != s.cfg.SystemFingerprint {
			s.log.Warn("api: a context was made with another model or other settings: it is left in the store", "name", k.Name, "made with", k.Fingerprint)
			continue
		}
		x := &fixedContext{Object: "context", Name: k.Name, Tokens: len(k.IDs), Policy: k.Policy, Automatic: k.Automatic, Created: k.Created, Status: "reading", Durable: true, tenant: k.Tenant, ids: k.IDs}
		x.held, x.cancel = context.WithCancel(context.Background())
		if s.contexts.add(x) != nil { // it is here
			x.cancel()
			continue
		}
		go s.hold(x, func(err error) { // ends as in makeContext
			if err != nil && x.held.Err() == nil {
				s.log.Warn("api: a context of the store is not read yet", "name", x.Name, "error", err)
			}
		})
	}
}

const keepContextLimit = 30 * time.Second

// keepContext puts a context that was read into the store; without one it lives as long as this process.
func (s *Service) keepContext(ctx context.Context, x *fixedContext) error {
	p := s.contextStore.Load()
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepContextLimit)
	defer cancel()
	err := (*p).KeepContext(ctx, KeptContext{Tenant: x.tenant, Name: x.Name, Policy: x.Policy, Automatic: x.Automatic, Created: x.Created, Fingerprint: s.cfg.SystemFingerprint, IDs: x.ids})
	if err == nil {
		s.contexts.set(x, func(x *fixedContext) { x.Durable = true })
	}
	return err
}

// forgetContext takes a context out of the store.
func (s *Service) forgetContext(ctx context.Context, x *fixedContext) error {
	if !s.contexts.shown(x).Durable {
		return nil
	}
	p := s.contextStore.Load()
	if p == nil {
		return unavailable("jobs_unavailable", "The store that this context is in is not there at the moment.", time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, keepContextLimit)
	defer cancel()
	return (*p).DropContext(ctx, x.tenant, x.Name)
}
