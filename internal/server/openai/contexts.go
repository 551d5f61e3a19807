package openai

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/jsonbody"
	"github.com/shoal-llm/shoal/internal/server/sessions"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// handleMakeContext reads a context: the answer comes when it is ready.
func (s *API) handleMakeContext(w http.ResponseWriter, r *http.Request) {
	sc := httpserver.ScopeOf(r)
	body, e := s.HTTP.ReadBody(w, r)
	if e == nil {
		var x *generate.FixedContext
		if x, e = s.decodeContext(r.Context(), body, sc.Principal().Name); e == nil {
			sc.Settle()
			if e = sc.Principal().CheckTokens(time.Now()); e == nil {
				e = s.MakeContext(r.Context(), x)
			}
			if e == nil {
				sc.Principal().Charge(x.Tokens, time.Now())
				s.HTTP.WriteJSON(w, http.StatusOK, s.Contexts.Shown(x))
				return
			}
		}
	}
	s.HTTP.Fail(w, e, false)
}

// decodeContext reads a body: a name, a policy, and a prompt or messages.
func (s *API) decodeContext(ctx context.Context, body []byte, tenant string) (*generate.FixedContext, *apierr.Error) {
	f, e := jsonbody.Parse(body, s.context)
	if e != nil {
		return nil, e
	}
	x := &generate.FixedContext{Object: "context", Policy: "squeezed", Created: time.Now().Unix(), Status: "reading", Tenant: tenant}
	f.Text("name", &x.Name)
	f.Text("kv_policy", &x.Policy)
	var special *bool
	var add bool
	if f.Boolean("add_special_tokens", &add) {
		special = &add
	}
	p := generate.Params{MaxTokens: 1}
	f.Boolean("automatic", &x.Automatic)
	f.Text("model", &p.Model)
	if !sessions.ValidName(x.Name) || x.Name == generate.AnyContext || x.Name == generate.NoContext {
		f.Fail(apierr.Invalid("name", "'name' must be 1 to %d letters, digits, dots, dashes or underscores, and none of %q, %q, \".\", \"..\".",
			sessions.MaxName, generate.AnyContext, generate.NoContext))
	}
	f.Fail(s.CheckModel(&p))
	if f.Err != nil {
		return nil, f.Err
	}
	if f.Has("messages") {
		f.Raw["add_generation_prompt"] = json.RawMessage("false")
		c := s.ParseConversation(f)
		if f.Err != nil {
			return nil, f.Err
		}
		x.Ids, _, e = s.ChatPrompt(tokenizer.WithSearches(ctx), c, nil)
	} else {
		var prompts []generate.Prompt
		if prompts, e = s.decodePrompts(ctx, f.Get("prompt"), special); e == nil && len(prompts) != 1 {
			e = apierr.Invalid("prompt", "A context is one prompt, not %d.", len(prompts))
		} else if e == nil {
			x.Ids = prompts[0].Ids
		}
	}
	if e != nil {
		return nil, e
	}
	x.Tokens, x.Adapter = len(x.Ids), p.Adapter()
	return x, s.Fit(x.Ids, &p, 1, "prompt")
}

func (s *API) handleContexts(w http.ResponseWriter, r *http.Request) {
	list := []generate.FixedContext{}
	for _, p := range s.peers {
		list = append(list, p.RefreshStatus(p.Contexts.Of(httpserver.ScopeOf(r).Principal().Name)...)...)
	}
	s.HTTP.WriteJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

func (s *API) handleContext(w http.ResponseWriter, r *http.Request) {
	name, tenant := strings.TrimPrefix(r.URL.Path, "/v1/contexts/"), httpserver.ScopeOf(r).Principal().Name
	x := s.Contexts.Get(tenant, name)
	for _, p := range s.peers {
		if found := p.Contexts.Get(tenant, name); found != nil {
			s, x = p, found
		}
	}
	switch {
	case x == nil:
		s.HTTP.Fail(w, generate.ContextNotFound("", name), false)
	case r.Method == http.MethodDelete:
		if err := s.RemoveContext(r.Context(), x); err != nil {
			s.HTTP.Fail(w, apierr.Of(err), false)
			return
		}
		s.Contexts.Drop(x)
		s.HTTP.WriteJSON(w, http.StatusOK, map[string]any{"object": "context", "name": name, "deleted": true})
	default:
		s.HTTP.WriteJSON(w, http.StatusOK, s.RefreshStatus(s.Contexts.Shown(x))[0])
	}
}
