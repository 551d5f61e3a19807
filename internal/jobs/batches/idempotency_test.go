package batches_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// Repeating a request with its Idempotency-Key returns the first result, for any equivalent JSON,
// immediately and after a restart. A different request gets 409.
func TestIdempotencyKeySpellings(t *testing.T) {
	type bodies struct {
		path        string
		same, other []string
		accepted    int
	}
	table := []bodies{
		{"/v1/jobs", []string{ // the first body is the one in docs/jobs.md
			`{"prompt": "Once upon a time", "max_tokens": 400}`, `{"prompt":"Once upon a time","max_tokens":400}`, "{\n  \"prompt\": \"Once upon a time\",\n  \"max_tokens\": 400\n}\n",
			`{"max_tokens": 400, "prompt": "Once upon a time"}`, `{"prompt":"\u004fnce upon a time","max_tokens":4.0e2}`,
		}, []string{`{"prompt": "Once upon a time", "max_tokens": 401}`, `{"prompt": "Once  upon a time", "max_tokens": 400}`, `{"prompt": "Once upon a time"}`}, 202},
		{"/v1/jobs", []string{
			`{"prompt":"<x> && \"y\" é 日 😀 \u2028","max_tokens":3}`, `{"prompt":"\u003cx\u003E \u0026\u0026 \"y\" \u00e9 \u65e5 \ud83d\ude00 ` + "\u2028" + `","max_tokens":3}`,
		}, []string{`{"prompt":"<x> & \"y\" é 日 😀 \u2028","max_tokens":3}`, `{"prompt":"\\u003cx> && \"y\" é 日 😀 \u2028","max_tokens":3}`}, 202},
		{"/v1/jobs", []string{
			`{"endpoint": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a < b"}], "max_tokens": 3}}`,
			`{"body":{"max_tokens":3,"messages":[{"content":"a \u003c b","role":"user"}]},"endpoint":"/v1/chat/completions"}`,
		}, []string{`{"endpoint": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a > b"}], "max_tokens": 3}}`}, 202},
		{"/v1/responses", []string{`{"input": "Name a <fish>.", "background": true, "max_output_tokens": 4}`, `{"background":true,"max_output_tokens":4.0,"input":"Name a \u003cfish\u003e."}`},
			[]string{`{"input": "Name a <bird>.", "background": true, "max_output_tokens": 4}`}, 200},
	}
	for i, b := range table {
		t.Run(fmt.Sprint(i, b.path), func(t *testing.T) {
			log, dir := journaltest.NewMemoryLog(), t.TempDir()
			h := open(t, log, dir, &fakeEngine{}, config{})
			id := h.want(b.accepted, "POST", b.path, b.same[0], "Idempotency-Key", "report-7")["id"].(string)
			for _, restarted := range []bool{false, true} {
				if restarted {
					h.close()
					h = open(t, log, dir, &fakeEngine{}, config{})
				}
				for _, body := range b.same {
					resp := h.open("POST", b.path, body, "Idempotency-Key", "report-7")
					resp.Body.Close()
					if resp.Header.Get("Idempotency-Replayed") != "true" {
						t.Errorf("restarted %v: %s: %s, no Idempotency-Replayed", restarted, body, resp.Status)
					}
					if again := h.want(b.accepted, "POST", b.path, body, "Idempotency-Key", "report-7")["id"]; again != id {
						t.Errorf("restarted %v: %s makes %v, not %s", restarted, body, again, id)
					}
				}
				for _, body := range b.other {
					e := h.want(http.StatusConflict, "POST", b.path, body, "Idempotency-Key", "report-7")
					if e["error"].(map[string]any)["code"] != "idempotency_mismatch" {
						t.Errorf("%s: %v", body, e)
					}
				}
			}
		})
	}
}

// A batch request repeated as equivalent JSON returns the same batch.
func TestIdempotencyKeyOfBatches(t *testing.T) {
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	h := open(t, log, dir, &fakeEngine{}, config{})
	file := h.upload(`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x","max_tokens":2}}`)
	ask := `{"input_file_id": "` + file + `", "endpoint": "/v1/completions", "completion_window": "24h", "metadata": {"b": "<1>", "a": "2"}}`
	again := `{"metadata":{"a":"2","b":"\u003c1\u003e"},"completion_window":"24h","endpoint":"/v1/completions","input_file_id":"` + file + `"}`
	id := h.want(200, "POST", "/v1/batches", ask, "Idempotency-Key", "x")["id"]
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.close()
			h = open(t, log, dir, &fakeEngine{}, config{})
		}
		resp := h.open("POST", "/v1/batches", again, "Idempotency-Key", "x")
		resp.Body.Close()
		if resp.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("restarted %v: %s, no Idempotency-Replayed", restarted, resp.Status)
		}
		if got := h.want(200, "POST", "/v1/batches", again, "Idempotency-Key", "x")["id"]; got != id {
			t.Errorf("restarted %v: %v, not %v", restarted, got, id)
		}
		h.want(http.StatusConflict, "POST", "/v1/batches", `{"input_file_id": "`+file+`", "endpoint": "/v1/completions", "completion_window": "24h"}`, "Idempotency-Key", "x")
	}
}
