package cluster

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// writeAdapters writes random adapters of a model to folders of dir, of different ranks.
func writeAdapters(t *testing.T, dir, of string, n int) (folders map[string]string) {
	t.Helper()
	ck, err := checkpoint.Open(of)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	folders = map[string]string{}
	for i := range n {
		rank := []int{8, 16, 4, 64, 16, 32, 1, 100}[i%8]
		name := fmt.Sprint("a", i)
		folders[name] = filepath.Join(dir, name)
		if err := loratest.Write(folders[name], loratest.Config(rank, nil), loratest.Random(&ck.Config, rank, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	return folders
}

func adapterNamed(t *testing.T, c *Local, name string) *engine.Adapter {
	t.Helper()
	if name == "" {
		return nil
	}
	a, ok := c.Adapter(name)
	if !ok {
		t.Fatalf("there is no adapter %s", name)
	}
	return &a
}

// TestAdaptersSameBits: the bits of a request depend on its adapter, and not on the adapters of its
// neighbours, the number of sockets or the mapping. The prefix cache has the same prompts of other
// adapters, and memory holds two of eight adapters at a time.
func TestAdaptersSameBits(t *testing.T) {
	folders := writeAdapters(t, t.TempDir(), goldenDir, 8)
	request := func(c *Local, i int) *engine.Request {
		name := ""
		if i%9 < 8 {
			name = fmt.Sprint("a", i%9)
		}
		return &engine.Request{ID: fmt.Sprint("r", i), Prompt: append(text(3, 130), text(i, 5+i)...),
			Adapter: adapterNamed(t, c, name), Policy: []string{"full", "snapkv:topk=56,obs=8,pool=5"}[i%2]}
	}
	const requests = 18
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, LoRA: folders, PrefixCache: PrefixOff}})
	var want []string
	seen := map[string]bool{}
	for i := range requests {
		want = append(want, complete(t, alone, request(alone, i)).bits)
		seen[want[i]] = true
	}
	if len(seen) != requests {
		t.Errorf("%d different answers of %d requests", len(seen), requests)
	}
	for _, c := range []struct {
		sockets int
		mapping string
	}{{1, "gather"}, {3, "reduce"}, {4, "gather"}, {3, "gather"}, {4, "reduce"}} {
		if t.Failed() {
			break
		}
		e := startLocal(t, LocalConfig{Sockets: c.sockets, Threads: 1, LoRAMemory: 3 << 20,
			Serve: ServeConfig{Model: goldenDir, LoRA: folders, Mapping: c.mapping, Chunk: 50}})
		for round := range 2 { // in the second, the prefix cache has the texts
			var all sync.WaitGroup
			got, cached := make([]string, requests), make([]int, requests)
			for i := range requests {
				all.Go(func() {
					a := complete(t, e, request(e, i))
					got[i], cached[i] = a.bits, a.cached
				})
			}
			all.Wait()
			for i := range requests {
				if got[i] != want[i] {
					t.Errorf("%d sockets, %s, round %d: request %d has other bits than alone", c.sockets, c.mapping, round, i)
				}
				if round == 1 && cached[i] < 128 {
					t.Errorf("%d sockets, %s: request %d found %d tokens of its text", c.sockets, c.mapping, i, cached[i])
				}
			}
		}
		waitIdle(t, e)
	}
}

// TestAdaptersAPI: adapters are listed, chosen by the name of the model in every protocol, loaded and
// unloaded over the API from one folder only, and refused with the reason.
func TestAdaptersAPI(t *testing.T) {
	const dir = "../models/fry"
	root := t.TempDir()
	folders := writeAdapters(t, root, dir, 3)
	outside := t.TempDir()
	secret := writeAdapters(t, outside, dir, 1)["a0"]
	for link, to := range map[string]string{"link": secret,
		"half/adapter_model.safetensors": filepath.Join(secret, "adapter_model.safetensors")} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(secret, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "half/adapter_config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	serve := ServeConfig{Model: dir, Names: []string{"fry"}, LoRA: map[string]string{"tools": "../models/fry-tools"}, LoRADir: root}
	c := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: serve})
	s, err := NewAPI(c, c.checkpoint, serve, APIConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := apiOf{s.Handler()}
	load := func(name, path string) (int, string) {
		return h.ask("/v1/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": path})
	}
	for _, bad := range []struct{ name, path, want string }{
		{"x", "../" + filepath.Base(outside) + "/a0", "not in the folder"},
		{"x", secret, "not in the folder"},
		{"x", "link", "escapes"},
		{"x", "half", "escapes"},
		{"x", "nothing", "no such file"},
		{"fry", "a0", "not the name of the model"},
		{"tools", "a0", "in use"},
		{"a b", "a0", "letters, digits"},
	} {
		if status, body := load(bad.name, bad.path); status != http.StatusBadRequest || !strings.Contains(body, bad.want) {
			t.Errorf("loading %s from %s: %d %s, want 400 with %q", bad.name, bad.path, status, body, bad.want)
		}
	}
	for name, path := range map[string]string{"relative": "a1", "absolute": folders["a2"]} {
		if status, body := load(name, path); status != http.StatusOK || !strings.Contains(body, `"parent":"fry"`) {
			t.Fatalf("loading %s: %d %s", name, status, body)
		}
	}
	if status, body := h.ask("/v1/models", nil); status != 200 || strings.Count(body, `"parent":"fry"`) != 3 || !strings.Contains(body, `"id":"relative"`) {
		t.Errorf("models: %d %s", status, body)
	}
	if status, body := h.ask("/api/tags", nil); status != 200 || strings.Count(body, `"parent_model":"fry"`) != 3 {
		t.Errorf("tags: %d %s", status, body)
	}
	if err := os.RemoveAll(folders["a1"]); err != nil { // the registry has a copy
		t.Fatal(err)
	}
	chat := func(model string) map[string]any {
		return map[string]any{"model": model, "messages": []any{map[string]any{"role": "user", "content": "Once upon a time"}},
			"max_tokens": 12, "temperature": 0, "stream": false, "options": map[string]any{"temperature": 0, "num_predict": 12},
			"max_output_tokens": 12, "input": "Once upon a time", "prompt": "Once upon a time"}
	}
	only := func(body map[string]any, keys ...string) map[string]any {
		out := map[string]any{}
		for _, k := range append(keys, "model", "stream") {
			out[k] = body[k]
		}
		return out
	}
	answers := map[string]map[string]string{}
	for _, model := range []string{"fry", "relative", "absolute", "tools"} {
		for path, keys := range map[string][]string{
			"/v1/chat/completions": {"messages", "max_tokens", "temperature"},
			"/v1/completions":      {"prompt", "max_tokens", "temperature"}, "/v1/messages": {"messages", "max_tokens", "temperature"},
			"/v1/responses": {"input", "max_output_tokens", "temperature"}, "/api/chat": {"messages", "options"},
			"/api/generate": {"prompt", "options"},
		} {
			status, body := h.ask(path, only(chat(model), keys...))
			if status != http.StatusOK || !strings.Contains(body, fmt.Sprintf("%q:%q", "model", model)) {
				t.Fatalf("%s with model %s: %d %s", path, model, status, body)
			}
			answer := answerText(t, body)
			if answers[path] == nil {
				answers[path] = map[string]string{}
			}
			answers[path][model] = answer
		}
	}
	for path, of := range answers {
		for _, model := range []string{"relative", "absolute"} {
			if of[model] == of["fry"] {
				t.Errorf("%s: %s answers as the model does: %q", path, model, of[model])
			}
		}
	}
	if of := answers["/v1/completions"]; of["relative"] == of["absolute"] || of["tools"] == of["fry"] {
		t.Errorf("the adapters answer alike: %q", of)
	}
	// A context belongs to the adapter that it was read with.
	if status, body := h.ask("/v1/contexts",
		map[string]any{"name": "long", "model": "absolute", "prompt": strings.Repeat("Once upon a time ", 20)}); status != http.StatusOK {
		t.Errorf("a context with an adapter: %d %s", status, body)
	}
	for model, want := range map[string]int{"absolute": http.StatusOK, "fry": http.StatusBadRequest, "tools": http.StatusBadRequest} {
		status, body := h.ask("/v1/completions", map[string]any{"model": model, "prompt": "there", "context": "long", "max_tokens": 3})
		if status != want || want != http.StatusOK && !strings.Contains(body, "another adapter") {
			t.Errorf("a context of an adapter with model %s: %d %s, want %d", model, status, body, want)
		}
	}
	if status, body := h.ask("/v1/chat/completions", only(chat("nosuch"), "messages")); status != http.StatusNotFound ||
		!strings.Contains(body, "model_not_found") {
		t.Errorf("an unknown adapter: %d %s", status, body)
	}
	unload := func(name string) (int, string) {
		return h.ask("/v1/unload_lora_adapter", map[string]any{"lora_name": name})
	}
	if status, body := unload("relative"); status != http.StatusOK {
		t.Errorf("unloading: %d %s", status, body)
	}
	if status, body := unload("relative"); status != http.StatusNotFound {
		t.Errorf("unloading twice: %d %s", status, body)
	}
	if status, _ := h.ask("/v1/completions", only(chat("relative"), "prompt", "max_tokens")); status != http.StatusNotFound {
		t.Errorf("an adapter that was unloaded answers: %d", status)
	}
	serve.LoRADir = ""
	off := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	if s, err = NewAPI(off, off.checkpoint, serve, APIConfig{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	h = apiOf{s.Handler()}
	if status, body := load("x", "a0"); status != http.StatusForbidden || !strings.Contains(body, "with lora-dir DIR") {
		t.Errorf("loading while it is off: %d %s", status, body)
	}
	for _, r := range s.Routes() {
		if strings.HasSuffix(r.Path, "_lora_adapter") && !r.Operator {
			t.Errorf("%s does not need an operator", r.Path)
		}
	}
	if _, err := New(t.Context(),
		LocalConfig{Threads: 1, Serve: ServeConfig{Model: dir, LoRA: map[string]string{"x": root + "/nothing"}}}); err == nil ||
		!strings.Contains(err.Error(), "lora x") || !strings.Contains(err.Error(), fs.ErrNotExist.Error()[:4]) {
		t.Errorf("an adapter without a folder: %v", err)
	}
}

// answerText returns the text of an answer of any protocol.
func answerText(t *testing.T, body string) string {
	t.Helper()
	var a struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Content []struct{ Text string }
		Output  []struct {
			Content []struct{ Text string }
		}
		Message  struct{ Content string }
		Response string
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	out := a.Message.Content + a.Response
	for _, c := range a.Choices {
		out += c.Text + c.Message.Content
	}
	for _, c := range a.Content {
		out += c.Text
	}
	for _, o := range a.Output {
		for _, c := range o.Content {
			out += c.Text
		}
	}
	if out == "" {
		t.Fatalf("no text in %s", body)
	}
	return out
}

// TestAdaptersVectors: a vector depends on the adapter of its request, and not on the number of sockets, the
// mapping or the adapters of its neighbours.
func TestAdaptersVectors(t *testing.T) {
	folders := writeAdapters(t, t.TempDir(), goldenDir, 3)
	const requests = 12
	vector := func(c *Local, i int) string {
		r := &engine.Request{ID: fmt.Sprint("r", i), Prompt: text(i/4, 100+i/4), Pool: pooling.Mean,
			Sampling: sampler.Default(), PromptLogprobs: -1}
		if i%4 < 3 {
			r.Adapter = adapterNamed(t, c, fmt.Sprint("a", i%4))
		}
		events, err := c.Submit(t.Context(), r)
		if err != nil {
			t.Error(err)
			return ""
		}
		out := ""
		for e := range events {
			if e.Err != nil {
				t.Error(e.Err)
			}
			if e.Finish != "" {
				out = fmt.Sprint(e.Pooled)
			}
		}
		return out
	}
	var want []string
	seen := map[string]bool{}
	for _, c := range []struct {
		sockets int
		mapping string
	}{{1, "gather"}, {3, "reduce"}, {4, "gather"}} {
		e := startLocal(t, LocalConfig{Sockets: c.sockets, Threads: 1,
			Serve: ServeConfig{Model: goldenDir, Pooling: "mean", LoRA: folders, Mapping: c.mapping, Chunk: 50}})
		if want == nil {
			for i := range requests { // one after the other
				want = append(want, vector(e, i))
				seen[want[i]] = true
			}
		}
		got := make([]string, requests)
		var all sync.WaitGroup
		for i := range requests {
			all.Go(func() { got[i] = vector(e, i) })
		}
		all.Wait()
		for i := range requests {
			if got[i] != want[i] {
				t.Errorf("%d sockets, %s: text %d with adapter %d has other bits than alone", c.sockets, c.mapping, i/4, i%4)
			}
		}
	}
	if len(seen) != requests {
		t.Errorf("%d different vectors of %d requests", len(seen), requests)
	}
}
