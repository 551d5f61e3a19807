package generate

import (
	"context"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
)

// ContextStore keeps fixed contexts for longer than this process lives. All methods may be called
// concurrently.
type ContextStore interface {
	// SaveContext saves a context. Without an error, it is on disk.
	SaveContext(ctx context.Context, k SavedContext) error
	// SavedContexts returns all saved contexts.
	SavedContexts(ctx context.Context) ([]SavedContext, error)
	// DropContext removes a context of the model with a fingerprint. A missing one is not an error.
	DropContext(ctx context.Context, tenant, name, fingerprint string) error
}

// SavedContext is a context in a store: its tokens and settings, not its cache.
type SavedContext struct {
	Tenant      string  `json:"tenant"`
	Name        string  `json:"name"`
	Policy      string  `json:"kv_policy"`
	Automatic   bool    `json:"automatic,omitempty"`
	Created     int64   `json:"created"` // Unix seconds
	Fingerprint string  `json:"fingerprint"`
	Adapter     string  `json:"adapter,omitempty"` // name of the LoRA adapter, which Fingerprint identifies
	IDs         []int32 `json:"ids"`
}

// SetContextStore stores contexts from now on, and reads those of the store that are not here; nil stops that. It returns
// false if the store could not read all.
func (s *Service) SetContextStore(store ContextStore) (all bool) {
	if store == nil {
		s.contextStore.Store(nil)
		return true
	}
	s.contextStore.Store(&store)
	ctx, cancel := context.WithTimeout(context.Background(), StoreTimeout)
	defer cancel()
	kept, err := store.SavedContexts(ctx)
	if err != nil {
		s.Log.Error("generate: contexts cannot be read from the store", "error", err)
	}
	for _, k := range kept {
		if k.Fingerprint != s.fingerprint(k.Adapter) {
			if slices.ContainsFunc(s.peers, func(x *Service) bool { return x.fingerprint(k.Adapter) == k.Fingerprint }) {
				continue // it is of another model of this server
			}
			s.Log.Warn("generate: a context was made with another model or other settings: it is left in the store",
				"name", k.Name, "fingerprint", k.Fingerprint)
			continue
		}
		x := &FixedContext{Object: "context", Name: k.Name, Tokens: len(k.IDs), Policy: k.Policy, Automatic: k.Automatic, Created: k.Created,
			Status: "reading", Durable: true, Tenant: k.Tenant, Ids: k.IDs}
		if a, ok := s.AdapterNamed(k.Adapter); ok {
			x.Adapter = &a
		}
		x.held, x.cancel = context.WithCancel(context.Background())
		if s.Contexts.add(x) != nil { // it is here
			x.cancel()
			continue
		}
		go s.hold(x, func(err error) { // ends as in MakeContext
			if err != nil && x.held.Err() == nil {
				s.Log.Warn("generate: a context of the store is not read yet", "name", x.Name, "error", err)
			}
		})
	}
	return err == nil
}

// StoreTimeout bounds how long a store may take to store an answer, or to list its answers.
const StoreTimeout = 5 * time.Second

const saveTimeout = 30 * time.Second

// saveContext stores a context that was read. Without a store, the context lives as long as this process.
func (s *Service) saveContext(ctx context.Context, x *FixedContext) error {
	p := s.contextStore.Load()
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	err := (*p).SaveContext(ctx, SavedContext{Tenant: x.Tenant, Name: x.Name, Policy: x.Policy, Automatic: x.Automatic, Created: x.Created,
		Fingerprint: s.fingerprint(x.adapterName()), Adapter: x.adapterName(), IDs: x.Ids})
	if err == nil {
		s.Contexts.set(x, func(x *FixedContext) { x.Durable = true })
	}
	return err
}

// RemoveContext takes a context out of the store.
func (s *Service) RemoveContext(ctx context.Context, x *FixedContext) error {
	if !s.Contexts.Shown(x).Durable {
		return nil
	}
	p := s.contextStore.Load()
	if p == nil {
		return apierr.Unavailable("jobs_unavailable", "The store of this context is unavailable.", time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	return (*p).DropContext(ctx, x.Tenant, x.Name, s.fingerprint(""))
}
