package eval

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/eval/resultfile"
)

// TestEmbeddedFindsNeedles runs the bundled model in this process.
func TestEmbeddedFindsNeedles(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	e, err := StartEmbedded(ctx, cluster.LocalConfig{KVBudget: 64 << 20, Serve: cluster.ServeConfig{Model: modelDir}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	c, err := NewClient(ctx, e.Address, "", "", 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tok := testTokenizer(t)
	if same, known := c.SameTokens(ctx, "Find it, 1234567.", tok.Encode("Find it, 1234567.", false)); !same || !known {
		t.Error("the server tokenizes otherwise", same, known)
	}
	policies, err := ParsePolicies([]string{"full streaming/64"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Tasks: []string{"passkey", "niah_single_text", "kv_json", "chat_niah"}, Lengths: []int{512}, Samples: 2, Policies: policies}
	path := filepath.Join(t.TempDir(), "results.jsonl")
	store, err := OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	records, err := Run(ctx, c, tok, testGenerator(t, 1), store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	sharesPrompts(ctx, t, e, cfg, records)
	s := Summarize(records, cfg)
	if s.Model != "fry" || len(s.Rows) != 2 {
		t.Fatalf("%+v", s)
	}
	for task, cell := range s.Rows[0].Tasks {
		if cell.Exact != 100 || cell.Samples != 2 {
			t.Errorf("full attention, %s: %+v", task, cell)
		}
	}
	if s.Rows[0].Mean != 100 || s.Rows[1].Mean > 50 {
		t.Errorf("full %.0f, 64 tokens kept %.0f", s.Rows[0].Mean, s.Rows[1].Mean)
	}
	p, err := MeasurePerplexity(ctx, c, tok, ownEnglish[:3000], PerplexityConfig{Window: 512})
	if err != nil || !(p.NLL > 1 && p.NLL < 9) || p.Bytes != 3000 {
		t.Errorf("%+v, %v", p, err)
	}
	resume(t, path, cfg)
}

// sharesPrompts: each prompt was read once for all policies, and a server without the prefix cache
// gives the same answers.
func sharesPrompts(ctx context.Context, t *testing.T, e *Embedded, cfg Config, records []Record) {
	t.Helper()
	prompts, blocks := uint64(len(records)/len(cfg.Policies)), uint64(cfg.Lengths[0]-1)/tensor.BlockSlots
	if p := e.cluster.Cluster().PrefixCache; p.Hits != uint64(len(cfg.Policies)-1)*prompts*blocks*tensor.BlockSlots {
		t.Errorf("of %d prompts under %d policies %d tokens were found: %+v", prompts, len(cfg.Policies), p.Hits, *p)
	}
	cold, err := StartEmbedded(ctx,
		cluster.LocalConfig{KVBudget: 64 << 20, Serve: cluster.ServeConfig{Model: modelDir, PrefixCache: cluster.PrefixOff}})
	if err != nil {
		t.Fatal(err)
	}
	defer cold.Close()
	c, err := NewClient(ctx, cold.Address, "", "", 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	store, err := OpenStore(filepath.Join(t.TempDir(), "cold.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	again, err := Run(ctx, c, testTokenizer(t), testGenerator(t, 1), store, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range again {
		if w := records[i]; r.Policy != w.Policy || r.Task != w.Task || r.Output != w.Output || r.Exact != w.Exact || r.Tokens != w.Tokens {
			t.Errorf("%s under %s: %q, without the prefix cache %q", w.Task, w.Policy, w.Output, r.Output)
		}
	}
}

// resume opens the results of a killed run and counts the requests to the server.
func resume(t *testing.T, path string, cfg Config) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	torn := strings.Join(lines[:12], "") + lines[12][:30] // 12 of 16 records, and part of one
	if err := os.WriteFile(path, []byte(torn), 0o644); err != nil {
		t.Fatal(err)
	}
	store, err := OpenStore(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	have := *store.first()
	var asked atomic.Int64
	f := &fakeServer{complete: func(map[string]any) any {
		asked.Add(1)
		return map[string]any{"choices": []any{map[string]any{"text": " no"}}}
	}}
	c := connect(t, f.start(t))
	c.model, c.fingerprint = have.Model, have.Fingerprint
	records, err := Run(t.Context(), c, testTokenizer(t), testGenerator(t, 1), store, cfg)
	if err != nil || len(records) != 16 || asked.Load() != 4 {
		t.Errorf("%d records, %d asked again, want 16 and 4: %v", len(records), asked.Load(), err)
	}
	store.Close()
	again, err := OpenStore(path)
	if err != nil || len(again.have) != 16 {
		t.Errorf("the file holds %d results: %v", len(again.have), err)
	}
	again.Close()
}

func (s *Store) first() *Record {
	for _, r := range s.have {
		return r
	}
	return &Record{}
}

func TestRunStopsAtTheFirstError(t *testing.T) {
	var asked atomic.Int64
	f := &fakeServer{complete: func(map[string]any) any {
		asked.Add(1)
		return `{"error":{"message":"no such policy"}}`
	}}
	c := connect(t, f.start(t))
	store, err := OpenStore("")
	if err != nil {
		t.Fatal(err)
	}
	_, err = Run(t.Context(), c, testTokenizer(t), testGenerator(t, 1), store, Config{Lengths: []int{512}, Concurrency: 2})
	if !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "no such policy") ||
		!strings.Contains(err.Error(), "512 tokens, sample 0") {
		t.Error(err)
	}
	if n := asked.Load(); n > 4 {
		t.Errorf("%d requests after the first failed", n)
	}
	for _, bad := range []Config{{Tasks: []string{"x"}}, {Lengths: []int{7}}, {Samples: -1}, {Concurrency: 5000}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestStoreRefusesForeignFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("{\"task\":\"vt\",\"length\":512}\nhello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(path); !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), "line 2") {
		t.Error(err)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "hello") {
		t.Errorf("the file was changed: %q %v", b, err)
	}
}

func FuzzStore(f *testing.F) {
	f.Add([]byte("{\"task\":\"vt\",\"length\":512}\n{\"task"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := OpenStore("")
		if err != nil {
			t.Fatal(err)
		}
		n, err := resultfile.Read(strings.NewReader(string(b)), s.parse)
		if err == nil && (n < 0 || n > int64(len(b)) || n > 0 && b[n-1] != '\n') {
			t.Errorf("%q: %d whole bytes", b, n)
		}
	})
}

func TestSummaryByHand(t *testing.T) {
	d := func(v float64) *float64 { return &v }
	cfg := Config{Tasks: []string{"vt", "passkey", "fwe"}, Lengths: []int{512}, Samples: 2, Policies: []Policy{{Name: "full"}, {Name: "none"}}}
	s := Summarize([]Record{
		{Model: "m", Policy: "full", Task: "passkey", Length: 512, Exact: true, Tokens: 1, Recall: 1, Depth: d(0.99)},
		{Policy: "full", Task: "passkey", Length: 512, Tokens: 0.5, Depth: d(0)},
		{Policy: "full", Task: "vt", Length: 512, Exact: true, Tokens: 1},
		{Policy: "full", Task: "fwe", Length: 512, Tokens: 0.25},
		{Policy: "none", Task: "vt", Length: 512},
	}, cfg)
	full := s.Rows[0]
	if full.Tasks["passkey"] != (Cell{Samples: 2, Exact: 50, Tokens: 75, Recall: 50}) || full.Mean != 75 || full.MeanTasks != 2 {
		t.Errorf("%+v", full)
	}
	if full.Depth[0] != 0 || full.Depth[7] != 100 || full.Depth[3] != -1 {
		t.Errorf("depths %v", full.Depth)
	}
	var md, table strings.Builder
	s.WriteMarkdown(&md)
	s.WriteTable(&table)
	want := "| policy | passkey | vt | fwe | mean2 |\n|---|---|---|---|---|\n| full | 50 | 100 | 0 | 75.0 |\n| none | - | 0 | - | 0.0 |\n"
	if !strings.HasSuffix(md.String(), want) {
		t.Errorf("got\n%swant\n%s", md.String(), want)
	}
	want = "policy  passkey   vt  fwe  mean2\nfull         50  100    0   75.0\nnone          -    0    -    0.0\n"
	if !strings.HasSuffix(table.String(), want) {
		t.Errorf("got\n%swant\n%s", table.String(), want)
	}
}

func TestPolicies(t *testing.T) {
	for _, p := range presets {
		for _, b := range []int{512, 1024, 1023} {
			got, err := ParsePolicy(p.name + "/" + strconv.Itoa(b))
			keeps := b
			switch p.name { // the whole files
			case "quest":
				keeps -= b % 16
			case "shadowkv", "shadowkv_o8":
				keeps -= (b + 1) % 8
			case "shadowkv_c4":
				keeps -= (b - 99) % 4
			case truncatedName: // the text is cut, not the cache
				keeps = 0
			}
			if err != nil || budgetOf(got.Spec) != keeps || got.Budget != b || got.Family != p.name {
				t.Errorf("%s/%d: %+v keeps %d, %v", p.name, b, got, budgetOf(got.Spec), err)
			}
		}
		if _, err := ParsePolicy(p.name + "/1"); !errors.Is(err, ErrPolicyName) {
			t.Errorf("%s/1: %v", p.name, err)
		}
		if _, err := ParsePolicy(p.name + "/" + strconv.Itoa(p.least)); err != nil {
			t.Error(err)
		}
	}
	list, err := ParsePolicies([]string{"full default", "full;streaming:sink=4,recent=508", "other:x=1"})
	if err != nil || len(list) != 4 || list[2].Budget != 512 || list[2].Family != "streaming" || list[3].Budget != 0 || list[1].Spec != "" {
		t.Errorf("%+v %v", list, err)
	}
	if _, err := ParsePolicies([]string{"nothing/512"}); !errors.Is(err, ErrPolicyName) || !strings.Contains(err.Error(), "snapkv/BUDGET") {
		t.Error(err)
	}
}

func TestDiceAreFair(t *testing.T) {
	d := newRNG(1, "x", 2, 3)
	var count [7]int
	sum := 0.0
	for range 70_000 {
		count[d.below(7)]++
		sum += d.unit()
	}
	for i, n := range count {
		if n < 9_500 || n > 10_500 {
			t.Errorf("%d came %d times of 10000", i, n)
		}
	}
	if math.Abs(sum/70_000-0.5) > 0.01 {
		t.Error("mean", sum/70_000)
	}
}
