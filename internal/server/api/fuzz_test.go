package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"testing"
)

// FuzzRequest: whatever the body, decoding ends without a panic, in a 4xx that
// names what was wrong or in a request that keeps to every limit.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"Hi"}`, `{"prompt":["a","b"],"n":2,"stop":["x"],"echo":true,"logprobs":3,"max_tokens":0}`, `{"prompt":[[1,2],[3]],"logit_bias":{"1":2},"allowed_token_ids":[1,2],"bad_words":["a"," b"]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"日"}]}],"logprobs":true,"top_logprobs":5,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[1, 2 ,3],"seed":-9223372036854775808,"min_tokens":1,"stop_token_ids":[1],"temperature":1e-300}`, `{"prompt":"\ud800","tools":[{}]}`,
		`{"prompt":{"a":[]},"messages":null}`, `[[[[`, `{"a":1,"a":2}`, `{"stop":"a","stop":null}`, `"x"`, ``, `{"prompt":[1,[2]]}`,
	} {
		f.Add([]byte(seed))
	}
	s := newServer(f, &fakeEngine{})
	responses := func(ctx context.Context, body []byte) (*generation, *apiError) {
		in, e := s.openai.decodeResponses(ctx, body)
		if e != nil {
			return nil, e
		}
		return in.generation, nil
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if s.cfg.Limits.checkShape(body, true) != nil {
			return
		}
		for _, decode := range []func(context.Context, []byte) (*generation, *apiError){s.openai.decodeChat, s.openai.decodeCompletions, responses, s.anthropic.decodeMessagesBody} {
			g, e := decode(context.Background(), body)
			if (g == nil) == (e == nil) {
				t.Fatal("neither a request nor an error, or both")
			}
			if e != nil {
				if e.status < 400 || e.status > 499 || e.message == "" {
					t.Fatalf("%+v", e)
				}
				if _, err := json.Marshal(e); err != nil {
					t.Fatal(err)
				}
				continue
			}
			checkBounds(t, s, g)
		}
		_, _ = s.openai.tokenize(context.Background(), body)
		_, _ = s.openai.detokenize(context.Background(), body)
	})
}

func checkBounds(t *testing.T, s *Server, g *generation) {
	l := s.cfg.Limits
	if err := g.sampling.Validate(s.service.vocab); err != nil {
		t.Fatal(err)
	}
	if n := len(g.prompts); n < 1 || n > l.Prompts || n*g.n > l.Choices || len(g.stop) > l.Stops || len(g.stopTokens) > l.StopTokens {
		t.Fatalf("%d prompts, n %d, %d stops", n, g.n, len(g.stop))
	}
	for _, p := range g.prompts {
		if len(p.ids) == 0 || len(p.ids)+g.maxTokens > s.service.cfg.MaxModelLen || g.maxTokens < 0 {
			t.Fatalf("%d tokens and %d more", len(p.ids), g.maxTokens)
		}
		for _, id := range p.ids {
			if id < 0 || int(id) >= s.service.vocab {
				t.Fatalf("token %d", id)
			}
		}
	}
}

// FuzzHTTP sends bodies through the whole server: a status, a JSON body or a
// stream that ends in [DONE] or an error, and no panic (which would be a 500).
func FuzzHTTP(f *testing.F) {
	f.Add([]byte(`{"prompt":"Hi","stream":true,"stop":["lo"]}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":"Hi"}],"n":2}`))
	e := &fakeEngine{script: hello}
	h := newServer(f, e).Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"} {
			r := httptest.NewRequest("POST", path, bytes.NewReader(body))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			switch {
			case w.Code >= 500:
				t.Fatalf("%d %s", w.Code, w.Body)
			case w.Header().Get("Content-Type") == "application/json":
				if !json.Valid(w.Body.Bytes()) {
					t.Fatalf("%s", w.Body)
				}
			default:
				ev := parseEvents(t, w.Body.String())
				if last := ev[len(ev)-1]; last.data != "[DONE]" {
					t.Fatalf("%s", w.Body)
				}
			}
		}
		e.live.Wait()
	})
}
