package api

import (
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/generate"
	"github.com/shoal-llm/shoal/internal/server/openai"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// twoModels serves a chat model and one that only makes vectors.
func twoModels(t *testing.T, chat, vectors *servertest.Engine) (*Server, string) {
	t.Helper()
	a, b := testConfig(), testConfig()
	a.Models, a.SystemFingerprint = []string{"chat", "chat-alias"}, "print-chat"
	b.Models, b.MaxModelLen, b.SystemFingerprint = []string{"vectors"}, 64, "print-vectors"
	makesVectors(&b)
	b.Recipe.Only = true
	s, err := NewModels(testConfig(), chat, []Model{
		{a, chat, servertest.Tokenizer{}, servertest.Template{}},
		{b, vectors, servertest.Tokenizer{}, nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(chat.Live.Wait)
	t.Cleanup(vectors.Live.Wait)
	return s, serveIt(t, s)
}

// TestRequestsFindTheirModel: on every protocol a request goes to the model that it names, one without a
// name to the first that can answer, and an unknown name gets a 404 in the protocol's form.
func TestRequestsFindTheirModel(t *testing.T) {
	chat, vectors := &servertest.Engine{Script: servertest.Hello}, &servertest.Engine{}
	_, url := twoModels(t, chat, vectors)
	messages := []M{{"role": "user", "content": "Hi"}}
	for _, c := range []struct {
		path    string
		body    M
		vectors bool // the model with vectors answers
		status  int
	}{
		{"/v1/chat/completions", M{"model": "chat", "messages": messages}, false, 200},
		{"/v1/chat/completions", M{"model": "chat-alias", "messages": messages}, false, 200},
		{"/v1/chat/completions", M{"messages": messages}, false, 200},
		{"/v1/completions", M{"model": "chat", "prompt": "Hi"}, false, 200},
		{"/v1/completions", M{"model": "vectors", "prompt": "Hi"}, true, 400},
		{"/v1/responses", M{"model": "chat", "input": "Hi"}, false, 200},
		{"/v1/messages", M{"model": "chat", "max_tokens": 5, "messages": messages}, false, 200},
		{"/api/chat", M{"model": "chat", "messages": messages, "stream": false}, false, 200},
		{"/api/chat", M{"model": "chat:latest", "messages": messages, "stream": false}, false, 200},
		{"/v1/embeddings", M{"model": "vectors", "input": "Hi"}, true, 200},
		{"/v1/embeddings", M{"input": "Hi"}, true, 200},
		{"/v1/embeddings", M{"model": "chat", "input": "Hi"}, false, 400},
		{"/api/embed", M{"model": "vectors:latest", "input": "Hi"}, true, 200},
		{"/v1/rerank", M{"model": "vectors", "query": "a", "documents": []string{"b"}}, true, 200},
		{"/v1/score", M{"model": "vectors", "text_1": "a", "text_2": "b"}, true, 200},
	} {
		before := [2]int{len(chat.Requests), len(vectors.Requests)}
		a := post(t, url+c.path, c.body)
		asked, other := len(chat.Requests)-before[0], len(vectors.Requests)-before[1]
		if c.vectors {
			asked, other = other, asked
		}
		if a.status != c.status || other != 0 || (asked > 0) != (c.status == 200) {
			t.Errorf("%s %v: %d, %d sequences of its model and %d of the other: %s", c.path, c.body, a.status, asked, other, a.raw)
		}
		c.body["model"] = "gone"
		if a := post(t, url+c.path, c.body); a.status != 404 || !strings.Contains(a.raw, "`gone` does not exist; this server has `chat`, `vectors`") {
			t.Errorf("%s of an unknown model: %d %s", c.path, a.status, a.raw)
		} else if anthropic := strings.Contains(a.raw, `"type":"not_found_error"`); anthropic != (c.path == "/v1/messages") {
			t.Errorf("%s: the error has another protocol's form: %s", c.path, a.raw)
		}
	}
	if a := post(t, url+"/v1/chat/completions", `{"model":`); a.status != 400 {
		t.Errorf("a body that is not JSON: %d %s", a.status, a.raw)
	}
}

// TestModelsAreListed: all models are in the lists of every protocol, each with its own properties.
func TestModelsAreListed(t *testing.T) {
	_, url := twoModels(t, &servertest.Engine{Script: servertest.Hello}, &servertest.Engine{})
	for path, key := range map[string]string{"/v1/models": "id", "/api/tags": "name"} {
		var names []string
		a := get(t, url+path)
		list, _ := a.body[map[string]string{"id": "data", "name": "models"}[key]].([]any)
		for _, m := range list {
			names = append(names, m.(map[string]any)[key].(string))
		}
		if !slices.Equal(names, []string{"chat", "chat-alias", "vectors"}) {
			t.Errorf("%s lists %v", path, names)
		}
	}
	for name, want := range map[string]string{"chat": `"completion"`, "vectors": `"max_model_len":64,"capabilities":["embedding","rerank"]`} {
		if a := get(t, url+"/v1/models/"+name); a.status != 200 || !strings.Contains(a.raw, want) {
			t.Errorf("/v1/models/%s: %d %s", name, a.status, a.raw)
		}
	}
	if a := get(t, url+"/v1/models/gone"); a.status != 404 || !strings.Contains(a.raw, "`chat`, `vectors`") {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if a := get(t, url+"/api/ps"); strings.Count(a.raw, `"size_vram"`) != 2 {
		t.Errorf("/api/ps: %s", a.raw)
	}
	for query, want := range map[string]string{"": `"max_model_len":512`, "?model=vectors": `"max_model_len":64`} {
		if a := get(t, url+"/tokenizer_info"+query); !strings.Contains(a.raw, want) {
			t.Errorf("/tokenizer_info%s: %s", query, a.raw)
		}
	}
}

// TestMetricsByModel: vLLM's metrics have a series for each model, and those of nodes count all.
func TestMetricsByModel(t *testing.T) {
	chat := &servertest.Engine{Script: servertest.Hello}
	chat.State = wire.ClusterState{Running: 5, Nodes: []wire.NodeState{{ID: "a", KVUsedBytes: 7, KVBudgetBytes: 12}},
		Models: []wire.ModelState{
			{Model: "chat", Running: 3, Waiting: 1, KVUsedBytes: 5, KVBudgetBytes: 10, Preemptions: 4,
				Drafts: &wire.DraftsState{Drafted: 6, TextBytes: 10}, PrefixCache: &wire.PrefixCacheState{Hits: 8}},
			{Model: "vectors", Running: 2, KVUsedBytes: 2, KVBudgetBytes: 2, Drafts: &wire.DraftsState{TextBytes: 1},
				PrefixCache: &wire.PrefixCacheState{}}}}
	_, url := twoModels(t, chat, &servertest.Engine{})
	text := get(t, url+"/metrics").raw
	for _, want := range []string{
		`vllm:prompt_tokens_total{model_name="chat"} 0`, `vllm:prompt_tokens_total{model_name="vectors"} 0`,
		`vllm:num_requests_running{model_name="chat"} 3`, `vllm:num_requests_running{model_name="vectors"} 2`,
		`vllm:num_requests_waiting{model_name="chat"} 1`, `vllm:num_preemptions_total{model_name="chat"} 4`,
		`vllm:kv_cache_usage_perc{model_name="chat"} 0.5`, `vllm:kv_cache_usage_perc{model_name="vectors"} 1`,
		`vllm:prefix_cache_hits_total{model_name="chat"} 8`, `vllm:spec_decode_num_draft_tokens_total{model_name="chat"} 6`,
		`shoal_speculate_bytes{of="sequences"} 11`, `shoal_node_kv_used_bytes{node="a"} 7`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// TestTasksKeepTheirModel: a task of a body without a model stays with the model that accepted it.
func TestTasksKeepTheirModel(t *testing.T) {
	s, _ := twoModels(t, &servertest.Engine{Script: servertest.Hello}, &servertest.Engine{})
	for _, c := range []struct{ endpoint, body, accepted, want, model string }{
		{openai.EndpointChat, `{"messages":[{"role":"user","content":"Hi"}]}`, "", "print-chat", "chat"},
		{"/v1/embeddings", `{"input":"a"}`, "", "print-vectors", "vectors"},
		{"/v1/embeddings", `{"input":"a"}`, "print-vectors", "print-vectors", "vectors"},
		{"/v1/embeddings", `{"model":"vectors","input":"a"}`, "print-chat", "print-vectors", "vectors"},
		{openai.EndpointChat, `{"messages":[{"role":"user","content":"Hi"}]}`, "print-old", "print-chat", "chat"},
	} {
		if got := s.Fingerprint(c.endpoint, []byte(c.body), c.accepted); got != c.want {
			t.Errorf("%s accepted by %q: %q, want %q", c.body, c.accepted, got, c.want)
		}
		task, err := s.NewTask(t.Context(), c.endpoint, []byte(c.body), generate.TaskOptions{ID: "x", Fingerprint: c.accepted})
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
		} else if got := task.Request(0).Model; got != c.model {
			t.Errorf("%s accepted by %q runs on %q, want %q", c.body, c.accepted, got, c.model)
		}
	}
}

// TestTaskOfTheSecondChatModel: a task without a model stays with a second model that could also answer,
// as after a restart with the models in another order.
func TestTaskOfTheSecondChatModel(t *testing.T) {
	a, b := testConfig(), testConfig()
	a.Models, a.SystemFingerprint, b.Models, b.SystemFingerprint = []string{"a"}, "print-a", []string{"b"}, "print-b"
	e := &servertest.Engine{}
	s, err := NewModels(testConfig(), e, []Model{
		{a, e, servertest.Tokenizer{}, servertest.Template{}},
		{b, e, servertest.Tokenizer{}, servertest.Template{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for accepted, want := range map[string]string{"": "a", "print-a": "a", "print-b": "b"} {
		task, err := s.NewTask(t.Context(), openai.EndpointCompletions, []byte(`{"prompt":"Hi"}`), generate.TaskOptions{ID: "x", Fingerprint: accepted})
		if err != nil {
			t.Fatal(err)
		}
		if got := task.Request(0).Model; got != want {
			t.Errorf("accepted by %q it runs on %q, want %q", accepted, got, want)
		}
	}
}

// TestContextsOfTwoModels: a name of a context is one of the server, not of a model.
func TestContextsOfTwoModels(t *testing.T) {
	_, url := twoModels(t, &servertest.Engine{}, &servertest.Engine{})
	if a := post(t, url+"/v1/contexts", M{"model": "chat", "name": "c", "prompt": "Hi", "kv_policy": "full"}); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.raw)
	}
	if a := post(t, url+"/v1/contexts", M{"model": "vectors", "name": "c", "prompt": "Hi", "kv_policy": "full"}); a.status != 409 {
		t.Errorf("the name of a context of the other model: %d %s", a.status, a.raw)
	}
	if a := get(t, url+"/v1/contexts"); strings.Count(a.raw, `"name":"c"`) != 1 {
		t.Errorf("%s", a.raw)
	}
	if a := requestAs(t, "DELETE", url+"/v1/contexts/c", "", nil); a.status != 200 {
		t.Errorf("%d %s", a.status, a.raw)
	}
}
