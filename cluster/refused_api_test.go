package cluster

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestMistakesOfClientsAreNoFailures: settings that exclude every token get a 400 or an
// invalid_request_error, not a server failure. A prompt of one token can be scored.
func TestMistakesOfClientsAreNoFailures(t *testing.T) {
	const dir = "../models/fry"
	for _, sockets := range []int{1, 2} {
		c := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1, Serve: ServeConfig{Model: dir}})
		s, err := NewAPI(c, c.checkpoint, ServeConfig{Model: dir}, APIConfig{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(s.Handler())
		ask := func(body string) (int, string) {
			t.Helper()
			r, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			answer, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			return r.StatusCode, string(answer)
		}
		for _, more := range []string{ // token 95 is x
			`"allowed_token_ids":[95],"bad_words":["xx"]`,
			`"allowed_token_ids":[95],"bad_words":["xx"],"temperature":0`,
			`"allowed_token_ids":[95],"bad_words":["xx"],"logprobs":2,"n":2`,
			`"allowed_token_ids":[95],"structured_outputs":{"choice":["yes","no"]}`,
			`"allowed_token_ids":[95],"bad_words":["x"]`,
			`"structured_outputs":{"choice":["x"]},"bad_words":["x"]`,
		} {
			body := `{"prompt":"y","max_tokens":5,` + more
			if status, answer := ask(body + "}"); status != 400 || !strings.Contains(answer, `"invalid_request_error"`) || !strings.Contains(answer, `"no_allowed_token"`) {
				t.Errorf("%d sockets, %s: %d %s", sockets, more, status, answer)
			}
			status, answer := ask(body + `,"stream":true}`)
			if status != 400 && status != 200 || !strings.Contains(answer, `"invalid_request_error"`) || strings.Contains(answer, "[DONE]") {
				t.Errorf("%d sockets, %s, stream: %d %s", sockets, more, status, answer)
			}
		}
		for _, body := range []string{
			`{"prompt":[5],"echo":true,"logprobs":1,"max_tokens":0}`, `{"prompt":[5],"echo":true,"logprobs":1,"max_tokens":2}`, `{"prompt":"","echo":true,"logprobs":0,"max_tokens":2}`,
			`{"prompt":[[5],[5,6,7],[6]],"echo":true,"logprobs":2,"max_tokens":1,"n":2}`, `{"prompt":[5],"echo":true,"logprobs":1,"max_tokens":0}`,
		} {
			status, answer := ask(body)
			var v struct {
				Choices []struct {
					Logprobs struct {
						Tokens []string   `json:"tokens"`
						Values []*float64 `json:"token_logprobs"`
					} `json:"logprobs"`
				} `json:"choices"`
			}
			if err := json.Unmarshal([]byte(answer), &v); err != nil || status != 200 {
				t.Errorf("%d sockets, %s: %d %s", sockets, body, status, answer)
			}
			for _, x := range v.Choices {
				if n := len(x.Logprobs.Values); n == 0 || n != len(x.Logprobs.Tokens) || x.Logprobs.Values[0] != nil ||
					n > 1 && x.Logprobs.Values[1] == nil {
					t.Errorf("%d sockets, %s: %s", sockets, body, answer)
				}
			}
		}
		server.Close()
		waitIdle(t, c)
	}
}
