package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/speculate"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// speculated returns requests with everything that affects drawing. Prompts are repetitive, so that
// drafts can be found.
func speculated(prompts int, policy string) (list []*engine.Request) {
	for i := range prompts {
		p := sampler.Default()
		r := &engine.Request{MaxTokens: 24 + i%9, IgnoreEOS: true, PromptLogprobs: -1, Policy: policy}
		switch i % 4 {
		case 0:
			p.Temperature = 0
		case 1:
			p.Temperature, p.Logprobs, p.RepetitionPenalty, p.FrequencyPenalty = 0, 2, 1.2, 0.2
		case 2:
			p.Temperature, p.TopP, p.Seed, p.Logprobs, p.PresencePenalty = 0.8, 0.9, uint64(i), 0, 0.5
		case 3:
			p.Temperature, p.TopK, p.Seed, p.MinTokens = 0.6, 20, uint64(i), 6
			p.LogitBias = []sampler.Bias{{Token: 7, Value: 2}, {Token: 9, Value: -3}}
			p.BadWords = [][]int32{{12}, {8, 7}}
			r.StopTokens = []int32{int32(11 + i), 17, 23, 42}
			p.Stop = slices.Clone(r.StopTokens)
		}
		for j := range 40 + 11*(i%5) {
			r.Prompt = append(r.Prompt, int32(5+(j%(9+i%7))*(3+i%11)%300))
		}
		r.Sampling = p
		list = append(list, r)
	}
	return list
}

// outcome is everything that a client receives for a request.
type outcome struct {
	events  string
	tokens  []int32
	drafted uint64
	right   uint64
}

func speak(t *testing.T, e engine.Engine, name string, list []*engine.Request) []outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out := make([]outcome, len(list))
	var wg sync.WaitGroup
	for i, r := range list {
		q := *r
		q.ID = fmt.Sprint(name, "/", i)
		events, err := e.Submit(ctx, &q)
		if err != nil {
			t.Fatalf("%s: %v", q.ID, err)
		}
		wg.Go(func() {
			o := &out[i]
			for ev := range events {
				o.events += fmt.Sprintln(ev.Token, ev.Logprob, ev.Top, ev.Finish, ev.Err)
				o.tokens = append(o.tokens, ev.Token)
				if ev.Drafts != nil {
					o.drafted, o.right = ev.Drafts.Drafted, ev.Drafts.Accepted
				}
			}
		})
	}
	wg.Wait()
	return out
}

// protocol is a model and its settings, run with drafts and without.
type protocol struct {
	model    string
	sockets  int
	mapping  string
	replicas int
	policies []string
}

// everyPolicy has one of each policy, small enough that slots are overwritten.
var everyPolicy = []string{"full", "streaming:sink=4,recent=28", "snapkv:topk=40,obs=8",
	"snapstream:sink=4,recent=20,topk=24,obs=8", "sage:sink=4,recent=20,topk=24",
	"h2o:recent=20,topk=20", "tova:size=40", "knorm:sink=4,recent=20,topk=20", "quest:page=16,budget=48",
	"shadowkv:chunk=8,budget=16,outliers=1,local=1", "squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8",
	"pyramidkv:topk=30,obs=8", "lagkv:sink=4,lag=16,topk=20", "loki:budget=40,dims=0.5,calib=32",
	"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5",
	"adakv:topk=30,floor=0.2,obs=8", "snapstream:sink=4,recent=1,topk=12,obs=8,recall=16",
	"quest:page=16,budget=48,skip=1,ring=9", "shadowkv:chunk=8,budget=16,outliers=1,local=1,ring=11",
	"loki:budget=40,dims=0.5,calib=32,ring=12"}

// TestSpeculationChangesNothing follows the protocol of llama.cpp's issue 25618, where 57 of 75
// requests changed with the number of drafts. Here no token, logprob or end may change. Rows have 1
// to 9 tokens, with random right and wrong drafts and with both drafters. SHOAL_E2E=full runs all
// 75 under every policy on 1, 3 and 4 sockets (make speculation).
func TestSpeculationChangesNothing(t *testing.T) {
	cases := []protocol{
		{"llama", 1, "reduce", 0, []string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8", "h2o:recent=20,topk=20,step=1"}},
		{"llama", 3, "gather", 1, []string{"full", "streaming:sink=4,recent=28", "tova:size=40",
			"quest:page=16,budget=48", "squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8", "adakv:topk=30,floor=0.2,obs=8",
			"quest:page=16,budget=48,ring=5"}},
		{"llama", 4, "reduce", 1,
			[]string{"full", "streaming:sink=4,recent=28,positions=cache,half=1", "snapkv:topk=40,obs=8", "h2o:recent=20,topk=20"}},
		{"deepseek_v3", 3, "reduce", 0, []string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8"}},
		{"gemma3", 4, "gather", 0, []string{"full", "sage:sink=4,recent=20,topk=24"}},
		{"gemma4_e2b", 3, "gather", 1, []string{"full", "streaming:sink=4,recent=28"}},
		{"gemma4_26b", 4, "reduce", 0, []string{"full", "quest:page=16,budget=48"}},
		{"qwen3_5", 3, "gather", 1,
			[]string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8", "squeezed:clusters=0.1,sparsity=0.6,tail=4,obs=8"}},
		{"lfm2", 3, "reduce", 1, []string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8"}},
		{"granite_hybrid_moe", 3, "gather", 0, []string{"full", "quest:page=16,budget=48"}},
		{"falcon_h1", 3, "reduce", 0, []string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8"}},
		{"nemotron_h_moe", 4, "gather", 1, []string{"full", "quest:page=16,budget=48"}},
		{"qwen3_moe", 3, "reduce", 0, []string{"full", "knorm:sink=4,recent=20,topk=20", "shadowkv:chunk=8,budget=16,outliers=1,local=1"}},
	}
	prompts, widths := 75, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if testlevel.Full() {
		for i, policy := range everyPolicy {
			for k, sockets := range []int{1, 3, 4} {
				cases = append(cases, protocol{"llama", sockets, []string{"reduce", "gather"}[(i+k)%2], min(k, 1), []string{policy}})
			}
		}
	}
	switch {
	case testing.Short():
		cases, prompts, widths = cases[1:2], 8, []int{2, 9}
	case !testlevel.Long():
		prompts, widths = 25, []int{1, 2, 4, 9}
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c.model, "/", c.sockets, "/", c.mapping, "/", strings.Join(c.policies, " ")), func(t *testing.T) {
			var width atomic.Int64
			var mu sync.Mutex
			known := map[string]outcome{} // results by request number
			var list []*engine.Request
			for i, policy := range c.policies {
				list = append(list, speculated(prompts/len(c.policies)+min(1, i), policy)...)
			}
			guess := func(id string, position int) (drafts []int32) {
				mu.Lock()
				defer mu.Unlock()
				n := int(width.Load()) - 1
				var i int
				if _, err := fmt.Sscanf(filepath.Base(id), "%d", &i); err != nil || n < 1 {
					return nil
				}
				right := (position*7 + i*5) % (n + 2) // of n drafts
				for k := range n {
					at := position - len(list[i].Prompt) + k
					if at >= len(known[filepath.Base(id)].tokens) {
						break
					}
					token := known[filepath.Base(id)].tokens[at]
					if k >= right {
						token = (token + 1) % 300
					}
					drafts = append(drafts, max(token, 0))
				}
				return drafts
			}
			e := startLocal(t, LocalConfig{Sockets: c.sockets, Threads: 1, Serve: ServeConfig{Model: "../internal/engine/model/testdata/" + c.model,
				Weights: "bf16", KV: "bf16", Chunk: 48, Mapping: c.mapping, Replicas: c.replicas, Speculate: "off", guess: guess}})
			want := speak(t, e, "off", list)
			for i, o := range want {
				known[fmt.Sprint(i)] = o
				if o.drafted > 0 {
					t.Fatalf("request %d has drafts without being asked for any", i)
				}
			}
			compare := func(name string, least uint64) {
				t.Helper()
				var drafted, right uint64
				for i, o := range speak(t, e, name, list) {
					if drafted, right = drafted+o.drafted, right+o.right; o.events != want[i].events {
						t.Errorf("%s: request %d under %q: with drafts\n%s\nwithout\n%s", name, i, list[i].Policy, o.events, want[i].events)
					}
				}
				t.Logf("%s: %d of %d drafts were right", name, right, drafted)
				if right < least || drafted < right {
					t.Errorf("%s: %d of %d drafts were right: too few to test anything", name, right, drafted)
				}
			}
			for _, w := range widths {
				width.Store(int64(w))
				compare(fmt.Sprint("width", w), uint64(min(w-1, 1)*len(list)))
			}
			width.Store(0)
			for _, mode := range speculate.Modes {
				for _, r := range list {
					r.Speculate = mode
				}
				compare(mode, 0)
			}
			waitIdle(t, e)
		})
	}
}

// TestEveryPolicyIsSpeculated: the protocol covers every policy.
func TestEveryPolicyIsSpeculated(t *testing.T) {
	for _, usage := range kvpolicy.Usage() {
		name, _, _ := strings.Cut(usage, ":")
		if !slices.ContainsFunc(everyPolicy, func(p string) bool { return strings.HasPrefix(p+":", name+":") }) {
			t.Errorf("%s is not among everyPolicy", name)
		}
	}
}
