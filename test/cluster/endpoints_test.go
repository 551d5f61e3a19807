package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestEndpoints calls every route of a server with raw requests, like curl, and then with
// openai-go.
func TestEndpoints(t *testing.T) {
	c := up(t, 2)
	t.Run("probes", c.sub((*system).probes))
	t.Run("models", c.sub((*system).models))
	t.Run("tokenizer", c.sub((*system).tokenizer))
	t.Run("completions", c.sub((*system).completions))
	t.Run("chat", c.sub((*system).chat))
	t.Run("streams", c.sub((*system).streams))
	t.Run("refusals", c.sub((*system).refusals))
	t.Run("openai-go", c.sub((*system).openaiGo))
	t.Run("cluster", c.sub((*system).clusterState))
	t.Run("metrics", c.sub((*system).metrics)) // counts the requests of the other subtests
}

// sub runs a method against the same cluster in a subtest.
func (s *system) sub(f func(*system)) func(*testing.T) {
	return func(t *testing.T) {
		client := *s.httpClient
		client.t = t
		f(&system{httpClient: &client, t: t, head: s.head, logs: s.logs})
	}
}

func (s *system) probes() {
	for _, path := range []string{"/health", "/ready"} {
		if b := s.want(200, "GET", path, nil).body; !strings.Contains(string(b), `"ok"`) {
			s.t.Errorf("the answer of %s is %s", path, b)
		}
	}
	var v struct{ Version string }
	if s.getJSON("/version", &v); v.Version == "" {
		s.t.Error("no version")
	}
	for path, want := range map[string]string{"/": "Ollama is running", "/web/index.html": "<html"} { // a browser gets the page at / instead
		if b := s.want(200, "GET", path, nil).body; !strings.Contains(string(b), want) {
			s.t.Errorf("%s is %.100s", path, b)
		}
	}
	var shown struct {
		Details struct {
			Family string
		}
		Capabilities []string
	}
	if b := s.want(200, "POST", "/api/show", `{"model":"fry"}`).body; json.Unmarshal(b, &shown) != nil || shown.Details.Family != "llama" || len(shown.Capabilities) < 2 {
		s.t.Errorf("/api/show returns %s", b)
	}
}

func (s *system) models() {
	var list struct {
		Object string
		Data   []struct {
			ID, Object, Root string
			MaxModelLen      int `json:"max_model_len"`
		}
	}
	s.getJSON("/v1/models", &list)
	if len(list.Data) != 1 || list.Data[0].ID != "fry" || list.Data[0].Root == "" ||
		list.Data[0].MaxModelLen != 8192 || list.Object != "list" {
		s.t.Errorf("%+v", list)
	}
	s.want(200, "GET", "/v1/models/fry", nil)
	s.want(404, "GET", "/v1/models/none", nil)
}

func (s *system) tokenizer() {
	const text = "func main() {\n\tfmt.Println(\"héllo, 世界 🐟\")\n}"
	var tok struct {
		Count       int      `json:"count"`
		MaxModelLen int      `json:"max_model_len"`
		Tokens      []int    `json:"tokens"`
		TokenStrs   []string `json:"token_strs"`
	}
	a := s.want(200, "POST", "/tokenize", map[string]any{"prompt": text, "add_special_tokens": false, "return_token_strs": true})
	if err := json.Unmarshal(a.body, &tok); err != nil || tok.Count != len(tok.Tokens) || tok.Count == 0 ||
		len(tok.TokenStrs) != tok.Count || tok.MaxModelLen != 8192 {
		s.t.Errorf("%v %s", err, a.body)
	}
	var back struct{ Prompt string }
	a = s.want(200, "POST", "/detokenize", map[string]any{"tokens": tok.Tokens})
	if err := json.Unmarshal(a.body, &back); err != nil || back.Prompt != text {
		s.t.Errorf("%v: %q came back as %q", err, text, back.Prompt)
	}
	var info map[string]any
	s.getJSON("/tokenizer_info", &info)
	for _, k := range []string{"bos_token", "eos_token"} {
		if info[k] == nil {
			s.t.Errorf("/tokenizer_info has no %s: %v", k, info)
		}
	}
}

func (s *system) completions() {
	body := map[string]any{"model": "fry", "prompt": "func add(", "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": true}
	got := parseCompletion(s.t, s.want(200, "POST", "/v1/completions", body).body)
	ch := got.Choices[0]
	if ch.FinishReason != "length" || len(ch.Logprobs.Tokens) != 8 || got.Usage.Completion != 8 ||
		got.Usage.Prompt == 0 || strings.Join(ch.Logprobs.Tokens, "") != ch.Text {
		s.t.Errorf("%+v", got)
	}
	// several prompts, as texts and as ids, each with n choices, in order
	body["prompt"], body["n"] = []string{"func add(", "func add("}, 2
	if got := parseCompletion(s.t, s.want(200, "POST", "/v1/completions", body).body); len(got.Choices) != 4 ||
		got.Choices[3].Text != ch.Text {
		s.t.Errorf("%+v", got)
	}
	body["prompt"], body["n"] = [][]int{{100, 200, 300}, {100, 200, 300}}, 1
	if got := parseCompletion(s.t, s.want(200, "POST", "/v1/completions", body).body); len(got.Choices) != 2 ||
		got.Choices[0].Text != got.Choices[1].Text {
		s.t.Errorf("%+v", got)
	}
	// a request of lm-eval: score a given text
	echo := map[string]any{"prompt": []int{100, 200, 300, 400}, "max_tokens": 1, "echo": true, "logprobs": 1, "seed": 1234, "temperature": 0}
	ch = parseCompletion(s.t, s.want(200, "POST", "/v1/completions", echo).body).Choices[0]
	if lp := ch.Logprobs; len(lp.Tokens) != 5 || lp.TokenLogprobs[0] != nil || lp.TokenLogprobs[1] == nil ||
		*lp.TokenLogprobs[1] >= 0 || len(lp.TopLogprobs[2]) == 0 {
		s.t.Errorf("%+v", ch)
	}
	// a stop string ends the text before it
	whole := parseCompletion(s.t, s.want(200, "POST", "/v1/completions",
		map[string]any{"prompt": "func add(", "max_tokens": 40, "temperature": 0, "ignore_eos": true}).body).Choices[0].Text
	stop := whole[len(whole)/2 : len(whole)/2+3]
	ch = parseCompletion(s.t, s.want(200, "POST", "/v1/completions",
		map[string]any{"prompt": "func add(", "max_tokens": 40, "temperature": 0, "ignore_eos": true, "stop": stop}).body).Choices[0]
	if ch.FinishReason != "stop" || ch.Text != whole[:strings.Index(whole, stop)] {
		s.t.Errorf("stop %q of %q gave %+v", stop, whole, ch)
	}
}

// message has the fields of a chat answer that the tests use.
type message struct {
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Message      struct{ Role, Content string }
		Delta        struct{ Role, Content string }
		Logprobs     struct {
			Content []struct {
				Token   string
				Logprob float64
				Bytes   []uint16
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
	}
}

func (s *system) chat() {
	if !s.chats() {
		s.t.Skip("the model has no chat template")
	}
	body := map[string]any{"messages": []map[string]any{
		{"role": "system", "content": "Be brief."},
		{"role": "user", "content": "Write a Go function that adds two ints."},
	},
		"max_completion_tokens": 12, "temperature": 0, "logprobs": true, "top_logprobs": 3}
	var m message
	a := s.want(200, "POST", "/v1/chat/completions", body)
	if err := json.Unmarshal(a.body, &m); err != nil || len(m.Choices) != 1 ||
		m.Choices[0].Message.Role != "assistant" || m.Choices[0].Message.Content == "" ||
		len(m.Choices[0].Logprobs.Content) == 0 || len(m.Choices[0].Logprobs.Content[0].Top) != 3 {
		s.t.Errorf("%v: %s", err, a.body)
	}
	// The prompt tokens equal those of the rendered template.
	var tok struct{ Count int }
	if err := json.Unmarshal(s.want(200, "POST", "/tokenize", map[string]any{"messages": body["messages"]}).body, &tok); err != nil {
		s.t.Error(err)
	}
	var u struct {
		Usage struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	if err := json.Unmarshal(a.body, &u); err != nil || u.Usage.Prompt != tok.Count {
		s.t.Errorf("%v: %d prompt tokens, /tokenize counts %d", err, u.Usage.Prompt, tok.Count)
	}
}

func (s *system) streams() {
	body := map[string]any{"prompt": "func add(", "max_tokens": 20, "temperature": 0, "ignore_eos": true}
	whole := parseCompletion(s.t, s.want(200, "POST", "/v1/completions", body).body).Choices[0].Text
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	st, err := s.stream(context.Background(), "/v1/completions", body, nil)
	if err != nil || !st.done || len(st.events) < 10 {
		s.t.Fatalf("%v, done %v, %d events", err, st.done, len(st.events))
	}
	var text strings.Builder
	finish, usages := []string{}, 0
	for i, e := range st.events {
		c := completion{}
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			s.t.Fatal(err)
		}
		if i == len(st.events)-1 {
			usages = c.Usage.Completion
			continue
		}
		text.WriteString(c.Choices[0].Text)
		if c.Choices[0].FinishReason != "" {
			finish = append(finish, c.Choices[0].FinishReason)
		}
	}
	if text.String() != whole || !slices.Equal(finish, []string{"length"}) || usages != 20 {
		s.t.Errorf("streamed %q (%v, %d tokens), whole %q", text.String(), finish, usages, whole)
	}
}

func (s *system) refusals() {
	for _, r := range []struct {
		status             int
		method, path, body string
		say                string
	}{
		{400, "POST", "/v1/completions", `{"prompt":`, "JSON"},
		{400, "POST", "/v1/completions", `{"prompt":[5000]}`, "vocabulary"},
		{400, "POST", "/v1/completions", `{"prompt":"a","temperature":3}`, "temperature"},
		{400, "POST", "/v1/completions", `{"prompt":[` + strings.Repeat("5,", 8999) + `5],"max_tokens":10}`, "9010 tokens (9000 in the prompt, 10 in the completion)"},
		{400, "POST", "/v1/completions", `{"prompt":"a","kv_policy":"nonsense"}`, "known"},
		{400, "POST", "/v1/completions", `{"prompt":"a","tools":[{}]}`, "tools"},
		{404, "POST", "/v1/completions", `{"prompt":"a","model":"gpt-4"}`, "gpt-4"},
		{404, "GET", "/v1/nothing", "", ""},
		{405, "GET", "/v1/completions", "", ""},
	} {
		var body any
		if r.body != "" {
			body = r.body
		}
		a := s.want(r.status, r.method, r.path, body)
		var e struct {
			Error struct{ Message, Type string }
		}
		if err := json.Unmarshal(a.body, &e); err != nil || e.Error.Message == "" || e.Error.Type == "" ||
			!strings.Contains(e.Error.Message, r.say) {
			s.t.Errorf("%s %s %s: %v %s", r.method, r.path, r.body, err, a.body)
		}
	}
}

func (s *system) clusterState() {
	s.waitIdle(patience)
	var c wire.ClusterState
	testutil.Eventually(s.t, patience, "a report of every node on this epoch", func() (bool, string) {
		c = s.state()
		reported := 0
		for _, n := range c.Nodes {
			if n.RSSBytes > 0 && n.WeightBytes > 0 {
				reported++
			}
		}
		return reported == len(c.Nodes), fmt.Sprintf("%d of %d", reported, len(c.Nodes))
	})
	total := 0.0
	for _, n := range c.Nodes {
		total += n.Share
		if n.PID == 0 || n.Address == "" || n.State != "ready" || n.KVBudgetBytes == 0 {
			s.t.Errorf("%+v", n)
		}
	}
	if len(c.Nodes) != 2 || c.Epoch < 1 || c.Model != "fry" || failed(c) != 0 || total < 0.99 || total > 1.01 {
		s.t.Errorf("%+v", c)
	}
}

func (s *system) metrics() {
	text := string(s.want(200, "GET", "/metrics", nil).body)
	for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting",
		"vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
		"vllm:generation_tokens_total", `vllm:request_success_total{finished_reason="length"`, "vllm:time_to_first_token_seconds_count",
		"vllm:inter_token_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum", "shoal_epoch", "shoal_recoveries_total", `shoal_node_kv_used_bytes`,
		`shoal_http_requests_total{code="200",route="`, "go_goroutines", "process_open_fds"} {
		if !strings.Contains(text, name) {
			s.t.Errorf("/metrics lacks %s", name)
		}
	}
	if strings.Contains(text, "vllm:generation_tokens_total{model_name=\"fry\"} 0\n") {
		s.t.Error("no token was counted")
	}
}
