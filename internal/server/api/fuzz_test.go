package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// FuzzRequest: no body makes decoding panic. It gives a 4xx with a reason, or a request within every
// limit.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"Hi"}`, `{"prompt":["a","b"],"n":2,"stop":["x"],"echo":true,"logprobs":3,"max_tokens":0}`, `{"prompt":[[1,2],[3]],"logit_bias":{"1":2},"allowed_token_ids":[1,2],"bad_words":["a"," b"]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"日"}]}],"logprobs":true,"top_logprobs":5,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[1, 2 ,3],"seed":-9223372036854775808,"min_tokens":1,"stop_token_ids":[1],"temperature":1e-300}`, `{"prompt":"\ud800","tools":[{}]}`,
		`{"prompt":{"a":[]},"messages":null}`, `[[[[`, `{"a":1,"a":2}`, `{"stop":"a","stop":null}`, `"x"`, ``, `{"prompt":[1,[2]]}`,
	} {
		f.Add([]byte(seed))
	}
	s := newServer(f, &servertest.Engine{})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, endpoint := range []string{openai.EndpointChat, openai.EndpointCompletions, openai.EndpointResponses} {
			task, err := s.NewTask(context.Background(), endpoint, body, generate.TaskOptions{})
			if (task == nil) == (err == nil) {
				t.Fatal("neither a request nor an error, or both")
			}
			if err == nil {
				checkBounds(t, s, task)
				continue
			}
			status, text := apierr.ErrorStatus(err)
			background := endpoint == openai.EndpointResponses && status == 503 // there is no store
			if !background && (status < 400 || status > 499) || err.Error() == "" || !json.Valid(text) {
				t.Fatalf("%d %s", status, text)
			}
		}
	})
}

func checkBounds(t *testing.T, s *Server, task *generate.Task) {
	l, vocab := s.Limits(), servertest.Tokenizer{}.VocabSize()
	if n := task.Choices(); n < 1 || n > l.Choices {
		t.Fatalf("%d choices", n)
	}
	for i := range task.Choices() {
		r := task.Request(i)
		if err := r.Sampling.Validate(vocab); err != nil {
			t.Fatal(err)
		}
		if len(r.Prompt) == 0 || len(r.Prompt)+r.MaxTokens > testConfig().MaxModelLen+1 || len(r.StopTokens) > l.StopTokens {
			t.Fatalf("%d tokens and %d more, %d stop tokens", len(r.Prompt), r.MaxTokens, len(r.StopTokens))
		}
		for _, id := range r.Prompt {
			if id < 0 || int(id) >= vocab {
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
	e := &servertest.Engine{Script: servertest.Hello}
	h := newServer(f, e).Handler()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages",
			"/v1/messages/count_tokens", "/v1/responses", "/api/chat", "/api/generate", "/tokenize", "/detokenize"} {
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
		e.Live.Wait()
	})
}
