package generate

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// A fixed context is a text that is read once, under a policy that lays it out for retrieval.
// Requests that begin with it share its cache. With a store (contextstore.go) it is read again
// after a restart.

// AnyContext is the name of the longest context that the prompt of a request begins with.
const AnyContext = "auto"

// NoContext is the name by which a request declines every context, also automatic ones.
const NoContext = "none"

// maxContexts bounds the contexts of a server.
const maxContexts = 32

// FixedContext is one of them.
type FixedContext struct {
	Object  string `json:"object"`
	Name    string `json:"name"`
	Tokens  int    `json:"tokens"`
	Policy  string `json:"kv_policy"`
	Created int64  `json:"created"`
	Status  string `json:"status"` // an engine.ContextState
	// Automatic: requests that name neither context nor policy have it too, when their prompt begins with it.
	Automatic bool `json:"automatic"`
	Durable   bool `json:"durable"` // it is there after a restart

	Tenant  string             `json:"-"`
	Ids     []int32            `json:"-"`
	Adapter *engine.Adapter    `json:"-"` // that it was read with; nil: none
	request string             `json:"-"` // ID of the request that holds it
	held    context.Context    `json:"-"` // until the context is dropped
	cancel  context.CancelFunc `json:"-"`
}

// Contexts holds the contexts by tenant and name.
type Contexts struct {
	mu  sync.Mutex
	all map[string]*FixedContext
}

func contextKey(tenant, name string) string { return tenant + "\x00" + name }

// add adds a context, or returns the refusal.
func (c *Contexts) add(x *FixedContext) *apierr.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := contextKey(x.Tenant, x.Name)
	switch {
	case c.all[key] != nil:
		return contextExists()
	case len(c.all) >= maxContexts:
		return &apierr.Error{Status: http.StatusConflict, Type: apierr.TypeInvalid, Param: "name", Code: "too_many_contexts",
			Message: fmt.Sprintf("This server holds at most %d contexts; delete one first with DELETE /v1/contexts/{name}.", maxContexts)}
	}
	if c.all == nil {
		c.all = map[string]*FixedContext{}
	}
	c.all[key] = x
	return nil
}

func contextExists() *apierr.Error {
	return &apierr.Error{Status: http.StatusConflict, Type: apierr.TypeInvalid, Param: "name", Code: "context_exists",
		Message: "A context with this name exists; delete it first, or choose another name."}
}

// set changes the visible state of a context.
func (c *Contexts) set(x *FixedContext, change func(*FixedContext)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(x)
}

// Drop removes a context, unless another has its name by now.
func (c *Contexts) Drop(x *FixedContext) {
	c.mu.Lock()
	if key := contextKey(x.Tenant, x.Name); c.all[key] == x {
		delete(c.all, key)
	}
	c.mu.Unlock()
	x.cancel()
}

// dropAll removes every context.
func (c *Contexts) dropAll() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.all))
	c.mu.Unlock()
	for _, x := range all {
		c.Drop(x)
	}
}

// Of returns copies of a tenant's contexts, sorted by name.
func (c *Contexts) Of(tenant string) (list []FixedContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.all {
		if x.Tenant == tenant {
			list = append(list, *x)
		}
	}
	slices.SortFunc(list, func(a, b FixedContext) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (c *Contexts) Shown(x *FixedContext) FixedContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *x
}

func (c *Contexts) Get(tenant, name string) *FixedContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[contextKey(tenant, name)]
}

// Pauses between attempts to read a context of the store.
const (
	holdPause = time.Second // at first
	holdMost  = 32 * time.Second
)

// hold has the engine read a context, calls ready with the result, and keeps the context until it
// is dropped. If the engine releases a context of the store, it is read again.
func (s *Service) hold(x *FixedContext, ready func(error)) {
	defer s.Contexts.Drop(x)
	for pause := holdPause; ; pause = min(2*pause, holdMost) {
		err := s.holdOnce(x, func() {
			pause = holdPause
			s.Contexts.set(x, func(x *FixedContext) { x.Status = string(engine.ContextReady) })
			ready(nil)
		})
		if err == nil {
			err = s.lostContext(x)
		}
		ready(err)
		if !s.Contexts.Shown(x).Durable {
			return
		}
		s.Contexts.set(x, func(x *FixedContext) { x.Status = string(engine.ContextReading) })
		select {
		case <-time.After(pause):
		case <-x.held.Done():
			return
		case <-s.HTTP.Stopping():
			return
		}
	}
}

// holdOnce returns when the engine has let go of a context.
func (s *Service) holdOnce(x *FixedContext, ready func()) error {
	p := sampler.Default()
	p.Temperature = 0
	id := "context-" + strings.ToLower(rand.Text())
	s.Contexts.set(x, func(x *FixedContext) { x.request = id })
	events, err := s.engine.Submit(x.held, &engine.Request{ID: id, Prompt: x.Ids, MaxTokens: 1,
		Sampling: p, IgnoreEOS: true, PromptLogprobs: -1,
		Policy: x.Policy, Tenant: x.Tenant, Context: len(x.Ids), Hold: true, Adapter: x.Adapter})
	if err != nil {
		return err
	}
	for ev := range events {
		switch {
		case ev.Err != nil:
			err = ev.Err
		case ev.Finish == "":
			ready()
		}
	}
	return err
}

// RefreshStatus sets the status of contexts that have been read to what the engine has of them now, and returns the list.
func (s *Service) RefreshStatus(list ...FixedContext) []FixedContext {
	e, ok := s.engine.(engine.Contexts)
	if !ok || len(list) == 0 {
		return list
	}
	states := e.Contexts()
	for i := range list {
		if state, known := states[list[i].request]; known && list[i].Status == string(engine.ContextReady) {
			list[i].Status = string(state)
		}
	}
	return list
}

// withContext attaches the context that a request names. A completion's prompt is appended to it;
// a chat must begin with it.
func (s *Service) withContext(g *Request) *apierr.Error {
	if g.turn != nil || g.Context == NoContext || g.Context == "" && (g.Echo || g.PromptLogprobs >= 0) {
		return nil
	}
	all := s.Contexts.Of(g.tenant)
	for i := range g.Prompts {
		p := &g.Prompts[i]
		var found *FixedContext
		for j := range all {
			x := &all[j]
			if x.adapterID() != g.adapterID() {
				continue
			}
			begins := len(p.Ids) > x.Tokens && slices.Equal(p.Ids[:x.Tokens], x.Ids)
			if x.Name == g.Context && (begins || !g.rendered) || begins && g.takes(x) && (found == nil || x.Tokens > found.Tokens) {
				found = x
			}
		}
		switch {
		case found == nil && (g.Context == AnyContext || g.Context == ""):
			continue
		case found == nil && s.Contexts.Get(g.tenant, g.Context) != nil && s.Contexts.Get(g.tenant, g.Context).adapterID() != g.adapterID():
			return apierr.Invalid("context", "Context %s was read with another adapter: use the 'model' that it was made with.", quoted(g.Context))
		case found == nil && s.Contexts.Get(g.tenant, g.Context) != nil:
			return apierr.Invalid("context", "The messages do not begin with those of context %s.", quoted(g.Context))
		case found == nil:
			return ContextNotFound("context", g.Context)
		case g.policy != "" && g.policy != found.Policy:
			return apierr.Invalid("kv_policy", "Context %s was read under %s; leave 'kv_policy' out.", quoted(found.Name), found.Policy)
		case g.Echo || g.PromptLogprobs >= 0:
			return apierr.Invalid("echo", "'echo' and prompt log-probabilities are not supported with 'context'.")
		}
		if g.Context != AnyContext && g.Context != "" && !g.rendered {
			if len(p.Ids) == 0 {
				return apierr.Invalid("prompt", "'prompt' must not be empty after a context.")
			}
			p.Ids = slices.Concat(found.Ids, p.Ids)
			most := g.MaxTokens
			if g.open { // as many as fit after the context, too
				g.MaxTokens = -1
			}
			if e := s.Fit(p.Ids, &g.Params, -1, "prompt"); e != nil {
				return e
			}
			g.MaxTokens = min(most, g.MaxTokens)
		}
		p.context, p.policy = found.Tokens, found.Policy
	}
	return nil
}

// takes reports whether a request that names no context may use one that its prompt begins with: the
// request allows any, or has the policy of the context, or the context is automatic.
func (g *Request) takes(x *FixedContext) bool {
	switch g.Context {
	case AnyContext:
		return g.policy == "" || g.policy == x.Policy
	case "":
		return g.policy == x.Policy || g.policy == "" && x.Automatic
	}
	return false
}

// MakeContext reads a context, and stores it if there is a store.
func (s *Service) MakeContext(ctx context.Context, x *FixedContext) *apierr.Error {
	for _, p := range s.peers {
		if p.Contexts.Get(x.Tenant, x.Name) != nil {
			return contextExists()
		}
	}
	x.held, x.cancel = context.WithCancel(context.Background())
	if e := s.Contexts.add(x); e != nil {
		x.cancel()
		return e
	}
	read := make(chan error, 1)
	go s.hold(x, func(err error) { // ends when the context is deleted, or the engine releases one that is not in the store
		select {
		case read <- err:
		default:
		}
	})
	ctx, stop := context.WithTimeoutCause(ctx, s.Config.Limits.RequestTimeout, apierr.ErrRequestTimeout)
	defer stop()
	var err error
	select {
	case err = <-read:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		err = s.saveContext(ctx, x)
	}
	if err == nil && s.Contexts.Shown(x).Durable && s.Contexts.Get(x.Tenant, x.Name) != x { // given up meanwhile
		err = errors.Join(s.RemoveContext(ctx, x), s.lostContext(x))
	}
	if err != nil {
		s.Contexts.Drop(x)
		return apierr.Of(err)
	}
	return nil
}

// lostContext returns the error for a context whose cache was given up while it was read: a client has deleted it, or
// memory was short.
func (s *Service) lostContext(x *FixedContext) error {
	if s.Contexts.Get(x.Tenant, x.Name) != x {
		deleted := ContextNotFound("name", x.Name)
		deleted.Message = "The context " + quoted(x.Name) + " was deleted while its text was read."
		return deleted
	}
	return apierr.ErrNotReady{Reason: "memory was short, and the context was given up"}
}

func ContextNotFound(param, name string) *apierr.Error {
	return &apierr.Error{Status: http.StatusNotFound, Type: apierr.TypeInvalid, Param: param, Code: "context_not_found",
		Message: "There is no context " + quoted(name) + " here: make it with POST /v1/contexts."}
}

func quoted(name string) string {
	b, _ := json.Marshal(name[:min(len(name), 64)])
	return string(b)
}
