package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// handleMakeContext reads a context: the answer comes when it is ready.
func (s *openAI) handleMakeContext(w http.ResponseWriter, r *http.Request) {
	sc := scopeOf(r)
	body, e := s.http.readBody(w, r)
	if e == nil {
		var x *fixedContext
		if x, e = s.decodeContext(r.Context(), body, sc.principal().Name); e == nil {
			sc.settle()
			if e = sc.principal().checkTokens(time.Now()); e == nil {
				e = s.makeContext(r.Context(), x)
			}
			if e == nil {
				sc.principal().charge(x.Tokens, time.Now())
				s.http.writeJSON(w, http.StatusOK, s.contexts.shown(x))
				return
			}
		}
	}
	s.http.writeError(w, e, false)
}

// decodeContext reads a body: a name, a policy, and a prompt or messages.
func (s *openAI) decodeContext(ctx context.Context, body []byte, tenant string) (*fixedContext, *apiError) {
	f, e := parseFields(body, s.context)
	if e != nil {
		return nil, e
	}
	x := &fixedContext{Object: "context", Policy: "squeezed", Created: time.Now().Unix(), Status: "reading", tenant: tenant}
	f.str("name", &x.Name)
	f.str("kv_policy", &x.Policy)
	var special *bool
	var add bool
	if f.boolean("add_special_tokens", &add) {
		special = &add
	}
	p := params{maxTokens: 1}
	f.boolean("automatic", &x.Automatic)
	f.str("model", &p.model)
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

func (s *openAI) handleContexts(w http.ResponseWriter, r *http.Request) {
	list := s.contexts.of(scopeOf(r).principal().Name)
	if list == nil {
		list = []fixedContext{}
	}
	s.http.writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *openAI) handleContext(w http.ResponseWriter, r *http.Request) {
	name, tenant := strings.TrimPrefix(r.URL.Path, "/v1/contexts/"), scopeOf(r).principal().Name
	x := s.contexts.get(tenant, name)
	switch {
	case x == nil:
		s.http.writeError(w, noContext("", name), false)
	case r.Method == http.MethodDelete:
		if err := s.forgetContext(r.Context(), x); err != nil {
			s.http.writeError(w, asAPIError(err), false)
			return
		}
		s.contexts.drop(x)
		s.http.writeJSON(w, http.StatusOK, map[string]any{"object": "context", "name": name, "deleted": true})
	default:
		s.http.writeJSON(w, http.StatusOK, s.contexts.shown(x))
	}
}
