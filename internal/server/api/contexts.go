package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"github.com/shoal-llm/shoal/internal/randomid"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
)

// Fixed contexts: texts that are read once, under a policy that lays them out for retrieval, and
// whose cache the requests share that begin with them. Where there is a store they are in it
// (contextstore.go), and read again after a restart.

// anyContext is the name by which a request asks for the longest context that its prompt begins with.
const anyContext = "auto"

// noContextAsked is what a request says that wants none, not even an automatic one.
const noContextAsked = "none"

// maxContexts bounds the contexts of a server.
const maxContexts = 32

var contextName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// fixedContext is one of them.
type fixedContext struct {
	Object  string `json:"object"`
	Name    string `json:"name"`
	Tokens  int    `json:"tokens"`
	Policy  string `json:"kv_policy"`
	Created int64  `json:"created"`
	Status  string `json:"status"` // reading, ready
	// Automatic: requests that name neither context nor policy have it too, when their prompt begins with it.
	Automatic bool `json:"automatic"`
	Durable   bool `json:"durable"` // it is there after a restart

	tenant string
	ids    []int32
	held   context.Context // until the context is dropped
	cancel context.CancelFunc
}

// contexts are all, by tenant and name.
type contexts struct {
	mu  sync.Mutex
	all map[string]*fixedContext
}

func contextKey(tenant, name string) string { return tenant + "\x00" + name }

// add takes a context in; the error says why not.
func (c *contexts) add(x *fixedContext) *apiError {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := contextKey(x.tenant, x.Name)
	switch {
	case c.all[key] != nil:
		return &apiError{status: http.StatusConflict, typ: typeInvalid, param: "name", code: "context_exists", message: "A context of this name is there; delete it first, or take another name."}
	case len(c.all) >= maxContexts:
		return &apiError{status: http.StatusConflict, typ: typeInvalid, param: "name", code: "too_many_contexts", message: "This server holds as many contexts as it may; delete one first."}
	}
	if c.all == nil {
		c.all = map[string]*fixedContext{}
	}
	c.all[key] = x
	return nil
}

// set changes what is shown of a context.
func (c *contexts) set(x *fixedContext, change func(*fixedContext)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(x)
}

// drop forgets a context, if it is still that.
func (c *contexts) drop(x *fixedContext) {
	c.mu.Lock()
	if key := contextKey(x.tenant, x.Name); c.all[key] == x {
		delete(c.all, key)
	}
	c.mu.Unlock()
	x.cancel()
}

// of lists those of a tenant by name, as values.
func (c *contexts) of(tenant string) (list []fixedContext) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.all {
		if x.tenant == tenant {
			list = append(list, *x)
		}
	}
	slices.SortFunc(list, func(a, b fixedContext) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func (c *contexts) shown(x *fixedContext) fixedContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *x
}

func (c *contexts) get(tenant, name string) *fixedContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[contextKey(tenant, name)]
}

// Between two attempts to have a context read that is in the store.
const (
	holdPause = time.Second // at first
	holdMost  = 32 * time.Second
)

// hold has the engine read a context, tells ready how that went, and keeps it until it is
// dropped. When the engine gives up one that is in the store, it is read again.
func (s *Service) hold(x *fixedContext, ready func(error)) {
	defer s.contexts.drop(x)
	for pause := holdPause; ; pause = min(2*pause, holdMost) {
		err := s.holdOnce(x, func() {
			pause = holdPause
			s.contexts.set(x, func(x *fixedContext) { x.Status = "ready" })
			ready(nil)
		})
		if err == nil {
			err = ErrNotReady{Reason: "the context was given up"}
		}
		ready(err)
		if !s.contexts.shown(x).Durable {
			return
		}
		s.contexts.set(x, func(x *fixedContext) { x.Status = "reading" })
		select {
		case <-time.After(pause):
		case <-x.held.Done():
			return
		case <-s.http.Stopping():
			return
		}
	}
}

// holdOnce returns when the engine has let go of a context.
func (s *Service) holdOnce(x *fixedContext, ready func()) error {
	p := sampler.Default()
	p.Temperature = 0
	events, err := s.engine.Submit(x.held, &Request{ID: "context-" + randomid.New(), Prompt: x.ids, MaxTokens: 1, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1,
		Policy: x.Policy, Tenant: x.tenant, Context: len(x.ids), Hold: true})
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

// withContext puts a generation behind the context that it names. A completion's prompt follows
// it; a chat must begin with it.
func (s *Service) withContext(g *generation) *apiError {
	if g.context == noContextAsked || g.context == "" && (g.echo || g.promptLogprobs >= 0) {
		return nil
	}
	all := s.contexts.of(g.tenant)
	for i := range g.prompts {
		p := &g.prompts[i]
		var found *fixedContext
		for j := range all {
			x := &all[j]
			begins := len(p.ids) > x.Tokens && slices.Equal(p.ids[:x.Tokens], x.ids)
			if x.Name == g.context && (begins || !g.rendered) || begins && g.takes(x) && (found == nil || x.Tokens > found.Tokens) {
				found = x
			}
		}
		switch {
		case found == nil && (g.context == anyContext || g.context == ""):
			continue
		case found == nil && s.contexts.get(g.tenant, g.context) != nil:
			return invalid("context", "The messages do not begin with those of context %s.", quoted(g.context))
		case found == nil:
			return noContext("context", g.context)
		case g.policy != "" && g.policy != found.Policy:
			return invalid("kv_policy", "Context %s was read under %s; leave 'kv_policy' out.", quoted(found.Name), found.Policy)
		case g.echo || g.promptLogprobs >= 0:
			return invalid("echo", "What is behind a context is not echoed or scored.")
		}
		if g.context != anyContext && g.context != "" && !g.rendered {
			if len(p.ids) == 0 {
				return invalid("prompt", "'prompt' must not be empty behind a context.")
			}
			p.ids = slices.Concat(found.ids, p.ids)
			if e := s.fit(p.ids, &g.params, -1, "prompt"); e != nil {
				return e
			}
		}
		p.context, p.policy = found.Tokens, found.Policy
	}
	return nil
}

// takes says that a request which names no context has one that its prompt begins with: it asks
// for any, or for the policy under which that was read, or for nothing and the context is automatic.
func (g *generation) takes(x *fixedContext) bool {
	switch g.context {
	case anyContext:
		return g.policy == "" || g.policy == x.Policy
	case "":
		return g.policy == x.Policy || g.policy == "" && x.Automatic
	}
	return false
}

// makeContext has a context read, and puts it into the store if there is one.
func (s *Service) makeContext(ctx context.Context, x *fixedContext) *apiError {
	x.held, x.cancel = context.WithCancel(context.Background())
	if e := s.contexts.add(x); e != nil {
		x.cancel()
		return e
	}
	read := make(chan error, 1)
	go s.hold(x, func(err error) { // ends when the context is deleted, or the engine gives up one that is not in the store
		select {
		case read <- err:
		default:
		}
	})
	ctx, stop := context.WithTimeoutCause(ctx, s.cfg.Limits.RequestTimeout, errRequestTimeout)
	defer stop()
	var err error
	select {
	case err = <-read:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err == nil {
		err = s.keepContext(ctx, x)
	}
	if err == nil && s.contexts.shown(x).Durable && s.contexts.get(x.tenant, x.Name) != x { // given up meanwhile
		err = errors.Join(s.forgetContext(ctx, x), ErrNotReady{Reason: "the context was given up"})
	}
	if err != nil {
		s.contexts.drop(x)
		return asAPIError(err)
	}
	return nil
}

func noContext(param, name string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeInvalid, param: param, code: "context_not_found", message: "There is no context " + quoted(name) + " here: make it with POST /v1/contexts."}
}

func quoted(name string) string {
	b, _ := json.Marshal(name[:min(len(name), 64)])
	return string(b)
}
