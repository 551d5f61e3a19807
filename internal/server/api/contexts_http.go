package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// handleMakeContext reads a context: the answer comes when it is ready.
func (s *Server) handleMakeContext(w http.ResponseWriter, r *http.Request) {
	sc := scopeOf(r)
	body, e := s.readBody(w, r)
	if e == nil {
		var x *fixedContext
		if x, e = s.decodeContext(r.Context(), body, sc.who().Name); e == nil {
			sc.settle()
			if e = sc.who().mayAsk(time.Now()); e == nil {
				e = s.makeContext(r.Context(), x)
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
	f.boolean("automatic", &x.Automatic)
	f.str("model", &p.model, 512)
	if !contextName.MatchString(x.Name) || x.Name == anyContext || x.Name == noContextAsked {
		f.fail(invalid("name", "'name' must be 1 to 64 letters, digits, dots, dashes or underscores, and neither %q nor %q.", anyContext, noContextAsked))
	}
	f.fail(s.checkModel(&p))
	if f.err != nil {
		return nil, f.err
	}
	if f.has("messages") {
		f.raw["add_generation_prompt"] = json.RawMessage("false")
		c := s.parseConversation(f)
		if f.err != nil {
			return nil, f.err
		}
		x.ids, _, e = s.chatPrompt(tokenizer.WithSearches(ctx), c, nil)
	} else {
		var prompts []prompt
		if prompts, e = s.decodePrompts(ctx, f.get("prompt"), special); e == nil && len(prompts) != 1 {
			e = invalid("prompt", "A context is one prompt, not %d.", len(prompts))
		} else if e == nil {
			x.ids = prompts[0].ids
		}
	}
	if e != nil {
		return nil, e
	}
	x.Tokens = len(x.ids)
	return x, s.fit(x.ids, &p, 1, "prompt")
}

// makeContext has a context read, and puts it into the store if there is one.
func (s *Server) makeContext(ctx context.Context, x *fixedContext) *apiError {
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
		if err := s.forgetContext(r.Context(), x); err != nil {
			s.writeError(w, asAPIError(err), false)
			return
		}
		s.contexts.drop(x)
		s.writeJSON(w, http.StatusOK, map[string]any{"object": "context", "name": name, "deleted": true})
	default:
		s.writeJSON(w, http.StatusOK, s.contexts.shown(x))
	}
}

func noContext(param, name string) *apiError {
	return &apiError{status: http.StatusNotFound, typ: typeInvalid, param: param, code: "context_not_found", message: "There is no context " + quoted(name) + " here: make it with POST /v1/contexts."}
}

func quoted(name string) string {
	b, _ := json.Marshal(name[:min(len(name), 64)])
	return string(b)
}
