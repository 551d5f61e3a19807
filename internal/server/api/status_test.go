package api

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/server/apierr"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
)

func TestModels(t *testing.T) {
	url := serve(t, &servertest.Engine{})
	a := get(t, url+"/v1/models")
	m := at(t, a.body, "data", 0)
	if at(t, a.body, "object") != "list" || at(t, m, "id") != "fake/model" || at(t, m, "root") != "weights/fake" ||
		at(t, m, "max_model_len") != 512.0 || at(t, m, "object") != "model" {
		t.Error(a.raw)
	}
	for _, id := range []string{"fake/model", "fake%2Fmodel", "alias"} {
		if a := get(t, url+"/v1/models/"+id); a.status != 200 {
			t.Errorf("%s: %s", id, a.raw)
		}
	}
}

func TestHealthAndReady(t *testing.T) {
	e := &servertest.Engine{}
	url := serve(t, e)
	for _, path := range []string{"/health", "/ready"} {
		if a := get(t, url+path); a.status != 200 || at(t, a.body, "status") != "ok" {
			t.Error(a.raw)
		}
	}
	e.HealthErr, e.ReadyErr = errors.New("rank 3 at 10.0.0.7 hangs"), apierr.ErrNotReady{Reason: "loading"}
	a := get(t, url+"/health")
	if a.status != 503 || strings.Contains(a.raw, "10.0.0.7") {
		t.Error(a.raw)
	}
	if a = get(t, url+"/ready"); a.status != 503 || at(t, a.body, "reason") != "loading" || a.header.Get("Retry-After") == "" {
		t.Error(a.raw)
	}
}

func TestVersion(t *testing.T) {
	if a := get(t, serve(t, &servertest.Engine{})+"/version"); at(t, a.body, "version") != "1.2.3" {
		t.Error(a.raw)
	}
}

func TestCluster(t *testing.T) {
	e := &servertest.Engine{}
	url := serve(t, e)
	a := get(t, url+"/v1/cluster")
	if at(t, a.body, "model") != "fake/model" || len(at(t, a.body, "nodes").([]any)) != 0 {
		t.Error(a.raw)
	}
	e.State = testState
	a = get(t, url+"/v1/cluster")
	n := at(t, a.body, "nodes", 1)
	for k, want := range (M{"id": "b", "pid": 12.0, "address": "10.0.0.2:1", "state": "suspect", "share": 0.25, "sequences": 3.0,
		"kv_used_bytes": 30.0, "kv_budget_bytes": 100.0, "kv_reserved_bytes": 70.0, "kv_freed_bytes": 900.0, "kv_prefix_bytes": 40.0}) {
		if got := at(t, n, k); got != want {
			t.Errorf("%s: %v, want %v", k, got, want)
		}
	}
	for k, want := range (M{"epoch": 7.0, "mapping": "gather", "running": 4.0, "waiting": 2.0, "batch_sequences": 5.0}) {
		if got := at(t, a.body, k); got != want {
			t.Errorf("%s: %v, want %v", k, got, want)
		}
	}
}

var testState = wire.ClusterState{Epoch: 7, Mapping: "gather", Running: 4, Waiting: 2, BatchSequences: 5, TokensPerSecond: 37.5,
	Clustering: 1.5, ExchangeWait: 2.5, MicroBatches: 2, Recoveries: 1, PrefixCache: &wire.PrefixCacheState{Queries: 50,
		Hits: 20, Disk: &wire.PrefixDiskState{Bytes: 70, Restored: 64, Damaged: 3}}, Nodes: []wire.NodeState{
		{ID: "a", PID: 11, Address: "10.0.0.1:1", State: "ready", Share: 0.75, Sequences: 1, KVUsedBytes: 20, KVBudgetBytes: 100},
		{ID: "b", PID: 12, Address: "10.0.0.2:1", State: "suspect", Share: 0.25, Sequences: 3, KVUsedBytes: 30, KVPeakBytes: 95,
			KVBudgetBytes: 100, KVReserved: 70, KVFreed: 900, KVPrefix: 40, KVDiskUsedBytes: 41, KVDiskBytes: 42, KVDiskFailures: 43},
		{ID: "b", State: "fenced"}, // the same name twice must not fail a scrape
	}, Recovery: &wire.RecoveryState{Preemptions: 6},
	SavedCaches: &wire.SavedCachesState{Caches: 3, Bytes: 99, Written: 12, Read: 9, Failed: 2},
	Drafts:      &wire.DraftsState{Mode: "suffix", Steps: 5, Drafted: 20, Accepted: 11, At: []uint64{5, 4, 2}, TextBytes: 77, Recent: 88}}

func TestMetrics(t *testing.T) {
	e := &servertest.Engine{Script: servertest.Hello, State: testState}
	url := serve(t, e)
	post(t, url+"/v1/completions", completion(nil))
	post(t, url+"/v1/completions", completion(M{"max_tokens": 2}))
	post(t, url+"/v1/completions", completion(M{"stop": "wor"}))
	post(t, url+"/v1/completions", completion(M{"n": 0}))
	e.Script = func(*engine.Request) []engine.Event {
		return []engine.Event{{Token: engine.NoToken, Finish: engine.FinishError, Err: errors.New("x")}}
	}
	post(t, url+"/v1/completions", completion(nil))
	var raw string
	for _, want := range []string{
		`shoal_saved_caches 3`, `shoal_saved_cache_bytes 99`, `shoal_saved_caches_written_total 12`, `shoal_saved_caches_read_total 9`,
		`shoal_saved_caches_failures_total 2`,
		`vllm:num_requests_running{model_name="fake/model"} 4`,
		`vllm:num_requests_waiting{model_name="fake/model"} 2`,
		`vllm:kv_cache_usage_perc{model_name="fake/model"} 0.25`,
		`vllm:prompt_tokens_total{model_name="fake/model"} 9`,
		`vllm:request_success_total{finished_reason="stop",model_name="fake/model"} 2`,
		`vllm:request_success_total{finished_reason="length",model_name="fake/model"} 1`,
		`vllm:request_success_total{finished_reason="error",model_name="fake/model"} 1`,
		`vllm:request_success_total{finished_reason="abort",model_name="fake/model"} 0`,
		`vllm:e2e_request_latency_seconds_count{model_name="fake/model"} 3`,
		`vllm:time_to_first_token_seconds_count{model_name="fake/model"} 3`,
		`vllm:num_preemptions_total{model_name="fake/model"} 6`,
		`vllm:request_prompt_tokens_sum{model_name="fake/model"} 9`, `vllm:request_prompt_tokens_count{model_name="fake/model"} 3`,
		`vllm:request_generation_tokens_sum{model_name="fake/model"} 8`, `vllm:request_generation_tokens_bucket{model_name="fake/model",le="5"} 3`,
		`vllm:prefix_cache_queries_total{model_name="fake/model"} 50`, `vllm:prefix_cache_hits_total{model_name="fake/model"} 20`, `shoal_node_kv_prefix_bytes{node="b"} 40`,
		`shoal_node_kv_disk_used_bytes{node="b"} 41`, `shoal_node_kv_disk_failures_total{node="b"} 43`,
		`shoal_prefix_disk_bytes 70`, `shoal_prefix_disk_restored_tokens_total 64`, `shoal_prefix_disk_trouble_total{kind="damaged"} 3`,
		`vllm:spec_decode_num_drafts_total{model_name="fake/model"} 5`,
		`vllm:spec_decode_num_draft_tokens_total{model_name="fake/model"} 20`,
		`vllm:spec_decode_num_accepted_tokens_total{model_name="fake/model"} 11`,
		`vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="fake/model",position="1"} 4`,
		`shoal_speculate_bytes{of="recent outputs"} 88`,
		`shoal_epoch 7`, `shoal_recoveries_total 1`, `shoal_nodes{state="suspect"} 1`, `shoal_node_kv_used_bytes{node="b"} 30`, `shoal_node_kv_peak_bytes{node="b"} 95`,
		`shoal_node_kv_reserved_bytes{node="b"} 70`, `shoal_node_kv_freed_bytes{node="b"} 900`, `shoal_batch_sequences 5`, `shoal_tokens_per_second 37.5`, `shoal_clustering_seconds_total 1.5`, `shoal_exchange_wait_seconds_total 2.5`, `shoal_micro_batches 2`,
		`shoal_http_requests_total{code="400",route="/v1/completions"} 1`,
		`shoal_http_requests_total{code="500",route="/v1/completions"} 1`,
		"vllm:inter_token_latency_seconds_bucket", "vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum",
		"vllm:request_decode_time_seconds_sum", "vllm:generation_tokens_total", "go_goroutines", "process_open_fds",
	} {
		servertest.Eventually(t, want, func() bool {
			if !strings.Contains(raw, want) {
				raw = get(t, url+"/metrics").raw
			}
			return strings.Contains(raw, want)
		})
	}
}

func TestTokenize(t *testing.T) {
	url := serve(t, &servertest.Engine{})
	a := post(t, url+"/tokenize", M{"prompt": "Hello!", "return_token_strs": true})
	if !reflect.DeepEqual(at(t, a.body, "tokens"), []any{256.0, 261.0, 263.0}) || at(t, a.body, "count") != 3.0 ||
		at(t, a.body, "max_model_len") != 512.0 ||
		!reflect.DeepEqual(at(t, a.body, "token_strs"), []any{"<bos>", "Hello", "!"}) {
		t.Error(a.raw)
	}
	a = post(t, url+"/tokenize", M{"prompt": "", "add_special_tokens": false})
	if a.status != 200 || len(at(t, a.body, "tokens").([]any)) != 0 || at(t, a.body, "token_strs") != nil {
		t.Error(a.raw)
	}
	a = post(t, url+"/tokenize", chat(nil))
	if at(t, a.body, "count") != 6.0 {
		t.Error(a.raw)
	}
	a = post(t, url+"/detokenize", M{"tokens": []int{256, 261, 263}})
	if at(t, a.body, "prompt") != "<bos>Hello!" {
		t.Error(a.raw)
	}
	checkParam(t, post(t, url+"/tokenize", M{}), "prompt", nil)
	checkParam(t, post(t, url+"/tokenize", chat(M{"prompt": "x"})), "prompt", nil)
	checkParam(t, post(t, url+"/tokenize", M{"messages": 3}), "messages", 3)
	checkParam(t, post(t, url+"/detokenize", M{}), "tokens", nil)
	checkParam(t, post(t, url+"/detokenize", M{"tokens": []int{9999}}), "tokens", nil)
	checkParam(t, post(t, url+"/detokenize", M{"tokens": []int{1}, "model": 3}), "model", 3)
}

func TestTokenizerInfo(t *testing.T) {
	url := serve(t, &servertest.Engine{}, func(c *Config) {
		c.TokenizerConfig = json.RawMessage(`{"eos_token":{"content":"<eos>","lstrip":false},"bos_token":"<bos>","chat_template":"{{x}}","extra":1}`)
	})
	a := get(t, url+"/tokenizer_info")
	for k, want := range (M{"eos_token": "<eos>", "bos_token": "<bos>", "chat_template": "{{x}}", "extra": 1.0}) {
		if at(t, a.body, k) != want {
			t.Error(a.raw)
		}
	}
	a = get(t, serve(t, &servertest.Engine{})+"/tokenizer_info")
	if at(t, a.body, "chat_template") != nil || at(t, a.body, "eos_token") != nil {
		t.Error(a.raw)
	}
	for _, bad := range []string{"null", "[]", "{"} {
		cfg := testConfig()
		cfg.TokenizerConfig = json.RawMessage(bad)
		if _, err := New(cfg, &servertest.Engine{}, servertest.Tokenizer{}, nil); err == nil {
			t.Errorf("%s accepted", bad)
		}
	}
}

func TestConfig(t *testing.T) {
	two := 200.0
	for name, change := range map[string]func(*Config){
		"models":      func(c *Config) { c.Models = nil },
		"context":     func(c *Config) { c.MaxModelLen = 0 },
		"temperature": func(c *Config) { c.DefaultTemperature = &two },
	} {
		cfg := testConfig()
		change(&cfg)
		if _, err := New(cfg, &servertest.Engine{}, servertest.Tokenizer{}, nil); err == nil {
			t.Errorf("%s accepted", name)
		}
	}
	if _, err := New(testConfig(), nil, servertest.Tokenizer{}, nil); err == nil {
		t.Error("no engine accepted")
	}
}
