package eval

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/cluster"
)

// everyPolicy has one of each policy. Some need fewer statistics than others collect.
var everyPolicy = []string{"streaming/96 full snapkv/128 snapstream/128 snapstream_w32/128 " +
	"snapstream_half/128 sage/128 h2o/96 quest/64 knorm/128 truncated/96 pyramidkv/128 adakv/128 lagkv/128",
	"h2o:recent=40,topk=40,step=1 tova:size=90 streaming:sink=4,recent=60,positions=cache shadowkv/460 shadowkv_c4/150 " +
		"squeezed:sparsity=0.8 squeezed:levels=2 squeezed:clusters=0.2,sparsity=0.98 squeezed:clusters=0.1,sparsity=0.99,tail=48,obs=32"}

// TestTogetherIsTheServer: prompts read once for all policies give the server's answer to each
// policy, token by token.
func TestTogetherIsTheServer(t *testing.T) {
	for _, dir := range []string{modelDir, "../../models/dace"} { // with the same tokenizer
		t.Run(filepath.Base(dir), func(t *testing.T) { testTogether(t, dir) })
	}
}

func testTogether(t *testing.T, dir string) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	cfg := Config{Tasks: []string{"niah_multiquery"}, Lengths: []int{512}, Samples: 1}
	var err error
	if cfg.Policies, err = ParsePolicies(everyPolicy); err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		cfg.Policies = cfg.Policies[:4]
	}
	e, err := StartEmbedded(ctx, cluster.LocalConfig{KVBudget: 64 << 20, Serve: cluster.ServeConfig{Model: dir}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c, err := NewClient(ctx, e.Address, "", "", 5*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	memory := func() *Store {
		s, err := OpenStore("")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	tok, g := testTokenizer(t), testGenerator(t, 1)
	want, err := Run(ctx, c, tok, g, memory(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	store := memory()
	got, err := RunTogether(ctx, tok, g, store, cfg, TogetherConfig{Model: dir, Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(r Record) string {
		r.Millis = 0
		b, _ := json.Marshal(r)
		return string(b)
	}
	outputs := map[string]bool{}
	for _, r := range want {
		outputs[r.Output] = true
		at := slices.IndexFunc(got, func(o Record) bool { return o.key() == r.key() })
		if at < 0 || plain(got[at]) != plain(r) {
			t.Errorf("together %+v, the server %s", got[max(0, at)], plain(r))
		}
	}
	if len(got) != len(want) || len(outputs) < len(cfg.Policies)/3 {
		t.Errorf("%d answers, the server gave %d, %d of them different", len(got), len(want), len(outputs))
	}
	before := *store.have[got[0].key()]
	again, err := RunTogether(ctx, tok, g, store, cfg, TogetherConfig{Model: dir, Workers: 1})
	if err != nil || len(again) != len(got) || again[0].Millis != before.Millis {
		t.Errorf("a second run: %d answers, %v", len(again), err)
	}
}

// TestPromptsFromAFile: the samples of a file are used unchanged, and the first words of an answer
// are given.
func TestPromptsFromAFile(t *testing.T) {
	tok, g := testTokenizer(t), testGenerator(t, 3)
	plain, chat := sample(t, g, "passkey", 512, 0), sample(t, g, "chat_niah", 512, 0)
	file := map[string]any{
		"passkey@512": map[string]any{"prompt": [][]int32{plain.Prompt},
			"ans": [][]int32{append(slices.Clone(plain.Answer), -1, -1)}, "sf": []int{0}, "depth": []any{0.25}},
		"chat_niah@512": map[string]any{"prompt": [][]int32{chat.Prompt}, "ans": [][]int32{chat.Answer},
			"sf": []int{chat.From}, "depth": []any{nil}},
	}
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(text)
	z.Close()
	path := filepath.Join(t.TempDir(), "prompts.json.gz")
	if err := os.WriteFile(path, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ReadPrompts(path, tok)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(p.Tasks(), p.Lengths(), p.Samples()) != "[passkey chat_niah] [512] 1" {
		t.Error(p.Tasks(), p.Lengths(), p.Samples())
	}
	s, err := p.Sample("chat_niah", 512, 0)
	if err != nil || s.Given != chat.From || s.Given == 0 || s.Depth != -1 || s.To != len(chat.Answer)-1 {
		t.Fatalf("%+v, %v", s, err)
	}
	c := continuation{}
	for i := range s.Answer {
		c.Token = 99
		c.add(s, []int32{99}) // an end token does not end the answer while words are given
		if i < s.Given && (c.over || c.Token != s.Answer[i]) {
			t.Errorf("word %d: %+v", i, c)
		}
	}
	if !c.over || len(c.ids) != s.Given {
		t.Errorf("%+v", c)
	}
	store, err := OpenStore("")
	if err != nil {
		t.Fatal(err)
	}
	full, err := ParsePolicies([]string{"full"})
	if err != nil {
		t.Fatal(err)
	}
	records, err := RunTogether(t.Context(), tok, p, store,
		Config{Tasks: p.Tasks(), Lengths: p.Lengths(), Samples: 1, Policies: full}, TogetherConfig{Model: modelDir})
	if err != nil || len(records) != 2 || !records[0].Exact || !records[1].Exact || records[0].Depth == nil || *records[0].Depth != 0.25 {
		t.Errorf("%+v, %v", records, err)
	}
	if _, err := p.Sample("vt", 512, 0); !errors.Is(err, ErrTask) {
		t.Error(err)
	}
}

// TestWritePrompts: the file contains the generated samples.
func TestWritePrompts(t *testing.T) {
	tok, g := testTokenizer(t), testGenerator(t, 3)
	path := filepath.Join(t.TempDir(), "prompts.json.gz")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := WritePrompts(f, g, []string{"chat_niah", "cwe", "vt"}, []int{512}, 2); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := ReadPrompts(path, tok)
	if err != nil || fmt.Sprint(p.Tasks()) != "[vt chat_niah]" || p.Samples() != 2 {
		t.Fatalf("%v, %v", p, err)
	}
	for _, task := range p.Tasks() {
		for i := range 2 {
			want, err := g.Sample(task, 512, i)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Sample(task, 512, i)
			if err != nil || !slices.Equal(got.Prompt, want.Prompt) || !slices.Equal(got.Answer, want.Answer) ||
				got.From != want.From || got.To != want.To || got.Depth != want.Depth {
				t.Errorf("%s %d: %+v, made %+v, %v", task, i, got, want, err)
			}
		}
	}
}

func FuzzPrompts(f *testing.F) {
	tok := testTokenizer(f)
	f.Add([]byte(`{"vt@3":{"prompt":[[1,2,3]],"ans":[[5,6,-1]],"sf":[0],"depth":[null]}}`))
	f.Add([]byte(`{"vt@3":{"prompt":[[1,2]],"ans":[[5,6]]}}`))
	f.Add([]byte(`{"vt@1":{"prompt":[[1]],"ans":[[-1]],"sf":[9]}}`))
	f.Add([]byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := parsePrompts(bytes.NewReader(b), tok)
		if err != nil {
			if !errors.Is(err, ErrPrompts) {
				t.Error(err)
			}
			return
		}
		for _, task := range p.Tasks() {
			for _, l := range p.Lengths() {
				if s, err := p.Sample(task, l, 0); err == nil && (len(s.Prompt) != l || s.From < 0 || s.From >= s.To || s.To >= len(s.Answer)) {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}
