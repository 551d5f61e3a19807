package api

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/sampler"
	"github.com/shoal-llm/shoal/tokenizer"
)

// Fixed contexts: texts that are read once, under a policy that lays them out for retrieval, and
// whose cache the requests share that begin with them. They live in this process: after a restart
// they are to be made again.

// anyContext is the name by which a request asks for the longest context that its prompt begins with.
const anyContext = "auto"

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

	tenant string
	ids    []int32
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

// handleMakeContext reads a context: the answer comes when it is ready.
func (s *Server) handleMakeContext(w http.ResponseWriter, r *http.Request) {
	sc := scopeOf(r)
	body, e := s.readBody(w, r)
	if e == nil {
		var x *fixedContext
		if x, e = s.decodeContext(r.Context(), body, sc.who().Name); e == nil {
			sc.settle()
			if e = sc.who().mayAsk(time.Now()); e == nil {
				e = s.readContext(r.Context(), x)
			}
			if e == nil {
				sc.who().spend(x.Tokens, time.Now())
				s.writeJSON(w, http.StatusOK, s.contexts.shown(x))
				return
			}
		}
	}
	s.writeError(w, e, false)
}

// decodeContext reads a body: a name, a policy, and a prompt or messages.
func (s *Server) decodeContext(ctx context.Context, body []byte, tenant string) (*fixedContext, *apiError) {
	f, e := parseFields(body)
	if e != nil {
		return nil, e
	}
	x := &fixedContext{Object: "context", Policy: "squeezed", Created: time.Now().Unix(), Status: "reading", tenant: tenant}
	f.str("name", &x.Name, 64)
	f.str("kv_policy", &x.Policy, s.cfg.Limits.PolicyBytes)
	var special *bool
	var add bool
	if f.boolean("add_special_tokens", &add) {
		special = &add
	}
	p := params{maxTokens: 1}
	f.str("model", &p.model, 512)
	if f.err != nil {
		return nil, f.err
	}
	if !contextName.MatchString(x.Name) || x.Name == anyContext {
		return nil, invalid("name", "'name' must be 1 to 64 letters, digits, dots, dashes or underscores, and not %q.", anyContext)
	}
	if e := s.checkModel(&p); e != nil {
		return nil, e
	}
	if f.has("messages") {
		f.raw["add_generation_prompt"] = json.RawMessage("false")
		c, e := s.parseConversation(f)
		if e == nil {
			x.ids, _, e = s.chatPrompt(tokenizer.WithSearches(ctx), c, nil)
		}
		if e != nil {
			return nil, e
		}
	} else {
		prompts, e := s.decodePrompts(ctx, f.get("prompt"), special)
		if e != nil {
			return nil, e
		}
		if len(prompts) != 1 {
			return nil, invalid("prompt", "A context is one prompt, not %d.", len(prompts))
		}
		x.ids = prompts[0].ids
	}
	x.Tokens = len(x.ids)
	return x, s.fit(x.ids, &p, 1, "prompt")
}

// readContext has the engine read a context and hold it; when the engine gives it up, it is gone.
func (s *Server) readContext(ctx context.Context, x *fixedContext) *apiError {
	held, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	if e := s.contexts.add(x); e != nil {
		cancel()
		return e
	}
	p := sampler.Default()
	p.Temperature = 0
	events, err := s.engine.Submit(held, &Request{ID: "context-" + newID(), Prompt: x.ids, MaxTokens: 1, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1,
		Policy: x.Policy, Tenant: x.tenant, Context: len(x.ids), Hold: true})
	if err != nil {
		s.contexts.drop(x)
		return asAPIError(err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, s.cfg.Limits.RequestTimeout, errRequestTimeout)
	defer stop()
	select {
	case ev := <-events:
		switch {
		case ev.Err != nil:
			err = ev.Err
		case ev.Finish != "":
			err = ErrNotReady{Reason: "the context was given up"}
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		s.contexts.drop(x)
		for range events { // until the engine has let go of it
		}
		return asAPIError(err)
	}
	s.contexts.mu.Lock()
	x.Status = "ready"
	s.contexts.mu.Unlock()
	go func() { // ends when the context is deleted, or the engine gives it up
		for range events {
		}
		s.contexts.drop(x)
	}()
	return nil
}

func (s *Server) handleContexts(w http.ResponseWriter, r *http.Request) {
	list := s.contexts.of(scopeOf(r).who().Name)
	if list == nil {
		list = []fixedContext{}
	}
	s.writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *Server) handleContext(w http.ResponseWriter, r *http.Request) {
	name, tenant := strings.TrimPrefix(r.URL.Path, "/v1/contexts/"), scopeOf(r).who().Name
	x := s.contexts.get(tenant, name)
	switch {
	case x == nil:
		s.writeError(w, noContext("", name), false)
	case r.Method == http.MethodDelete:
		s.contexts.drop(x)
		s.writeJSON(w, http.StatusOK, map[string]any{"object": "context", "name": name, "deleted": true})
	default:
		s.writeJSON(w, http.StatusOK, s.contexts.shown(x))
	}
}

func noContext(param, name string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeInvalid, param: param, code: "context_not_found", message: "There is no context " + quoted(name) + " here: make it with POST /v1/contexts. A restart forgets them."}
}

func quoted(name string) string {
	b, _ := json.Marshal(name[:min(len(name), 64)])
	return string(b)
}

// withContext puts a generation behind the context that it names. A completion's prompt follows
// it; a chat must begin with it.
func (s *Server) withContext(g *generation) *apiError {
	if g.context == "" {
		return nil
	}
	all := s.contexts.of(g.tenant)
	for i := range g.prompts {
		p := &g.prompts[i]
		var found *fixedContext
		for j := range all {
			x := &all[j]
			begins := len(p.ids) > x.Tokens && slices.Equal(p.ids[:x.Tokens], x.ids)
			if x.Name == g.context && x.Status == "ready" && (begins || !g.isChat()) || g.context == anyContext && x.Status == "ready" && begins && (found == nil || x.Tokens > found.Tokens) {
				found = x
			}
		}
		switch {
		case found == nil && g.context == anyContext:
			continue
		case found == nil && s.contexts.get(g.tenant, g.context) != nil:
			return invalid("context", "The messages do not begin with those of context %s, or it is still being read.", quoted(g.context))
		case found == nil:
			return noContext("context", g.context)
		case g.policy != "" && g.policy != found.Policy:
			return invalid("kv_policy", "Context %s was read under %s; leave 'kv_policy' out.", quoted(found.Name), found.Policy)
		case g.echo || g.promptLogprobs >= 0:
			return invalid("echo", "What is behind a context is not echoed or scored.")
		}
		if g.context != anyContext && !g.isChat() {
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

// isChat says that the prompt was rendered from messages.
func (g *generation) isChat() bool { return g.head.Object != "text_completion" }
