package api

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// TestManyTexts: a long list leaves places in the engine to others, and waits where the queue is full.
func TestManyTexts(t *testing.T) {
	var live, most, full atomic.Int64
	e := &servertest.Engine{Delay: 30 * time.Millisecond}
	e.Refuse = func(r *engine.Request) error {
		if r.MaxTokens != 0 || r.Pool == 0 {
			t.Errorf("asked for %d tokens, pooling %v", r.MaxTokens, r.Pool)
		}
		if full.Add(1) == 500 { // once there is no place
			return apierr.ErrOverloaded{Reason: "full"}
		}
		most.Store(max(most.Load(), live.Add(1)))
		go func() { time.Sleep(30 * time.Millisecond); live.Add(-1) }()
		return nil
	}
	url := serve(t, e, makesVectors)
	var texts []string
	for i := range 600 {
		texts = append(texts, fmt.Sprint("text ", i))
	}
	a := post(t, url+"/v1/embeddings", M{"input": texts})
	if a.status != 200 || len(a.body["data"].([]any)) != 600 {
		t.Fatalf("%d %.200s", a.status, a.raw)
	}
	if most.Load() > 300 { // at most 256 of a request, and those whose goroutines have not ended
		t.Errorf("%d texts were in the engine at once", most.Load())
	}
}

// TestFirstTextIsRefused: a request that finds the queue full at its first text gets a 503.
func TestFirstTextIsRefused(t *testing.T) {
	e := &servertest.Engine{Refuse: func(*engine.Request) error { return apierr.ErrOverloaded{Reason: "full", RetryAfter: time.Second} }}
	if a := post(t, serve(t, e, makesVectors)+"/v1/embeddings", M{"input": []string{"a", "b"}}); a.status != 503 ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

// TestVectorsAreCounted: keys, limits on tokens and metrics count the tokens of texts.
func TestVectorsAreCounted(t *testing.T) {
	key := httpserver.Key{Name: "app", Secret: strings.Repeat("k", 32), Role: httpserver.RoleOperator, TokensPerMinute: 30}
	url := serve(t, &servertest.Engine{}, makesVectors, func(c *Config) { c.Keys = []httpserver.Key{key} })
	auth := map[string]string{"Authorization": "Bearer " + key.Secret}
	if a := requestAs(t, "POST", url+"/v1/embeddings", `{"input":"a"}`, nil); a.status != 401 {
		t.Errorf("without a key: %d", a.status)
	}
	status := 0
	for range 20 {
		if status = requestAs(t, "POST", url+"/v1/embeddings", `{"input":"ten bytes."}`, auth).status; status != 200 {
			break
		}
	}
	if status != 429 {
		t.Errorf("tokens beyond the limit: %d", status)
	}
	text := requestAs(t, "GET", url+"/metrics", "", auth).raw
	for _, want := range []string{`vllm:prompt_tokens_total{model_name="fake/model"} 33`, `vllm:generation_tokens_total{model_name="fake/model"} 0`, `finished_reason="stop",model_name="fake/model"} 3`} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
