package cluster

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/booking"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// replied is the result of one request: tokens and exact log-probabilities, and the number of
// prompt tokens found in the cache.
type replied struct {
	bits   string
	cached int
}

func complete(t *testing.T, e engine.Engine, r *engine.Request) replied {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.MaxTokens, r.IgnoreEOS, r.PromptLogprobs = cmp.Or(r.MaxTokens, 12), true, -1
	r.Sampling = sampler.Default()
	r.Sampling.Seed, r.Sampling.Logprobs, r.Sampling.RepetitionPenalty = 7, 5, 1.1
	events, err := e.Submit(ctx, r)
	if err != nil {
		t.Error(err)
		return replied{}
	}
	var a replied
	var out strings.Builder
	for ev := range events {
		if ev.Err != nil {
			t.Error(ev.Err)
		}
		if ev.Token == engine.NoToken {
			continue
		}
		a.cached = ev.Cached
		fmt.Fprintf(&out, "%d %08x", ev.Token, math.Float32bits(ev.Logprob))
		for _, top := range ev.Top {
			fmt.Fprintf(&out, " %d:%08x", top.Token, math.Float32bits(top.Logprob))
		}
		out.WriteByte('\n')
	}
	a.bits = out.String()
	return a
}

// text returns the first n tokens of one of several texts.
func text(number, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i*31+number*1777+i*(7+number))%490 + 5)
	}
	return out
}

// prefixPolicies has one of every policy.
var prefixPolicies = []string{"full", "streaming:sink=4,recent=60", "snapkv:topk=56,obs=8,pool=5",
	"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7",
	"sage:sink=4,recent=30,topk=50", "h2o:recent=40,topk=40", "h2o:recent=40,topk=40,step=1", "tova:size=80", "knorm:sink=4,recent=40,topk=40",
	"streaming:sink=4,recent=60,positions=cache", "quest:page=16,budget=96", "shadowkv:chunk=8,budget=40,outliers=5,local=2",
	"shadowkv:chunk=4,budget=16,outliers=4,local=2,keys=lowrank,rank=16", "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16",
	"pyramidkv:topk=50,obs=8,pool=5,beta=4", "lagkv:sink=4,lag=16,topk=70", "loki:budget=40,dims=0.5,calib=32",
	"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5", "adakv:topk=70,obs=8,pool=5",
	"snapstream:sink=4,recent=20,topk=20,obs=8,recall=16",
	"snapkv:topk=40,obs=8,ring=5", "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16,ring=14",
	"shadowkv:chunk=8,budget=40,outliers=5,local=2,ring=16", "quest:page=16,budget=96,skip=1,ring=9",
	"shadowkv:chunk=4,budget=16,outliers=4,local=2,keys=lowrank,rank=16,ring=11", "loki:budget=40,dims=0.5,calib=32,ring=12",
	"infinigen:alpha=2,most=0.3,calib=32,ring=7"}

// TestWarmIsCold: a prompt that shares a prefix with an earlier one is computed only after the last
// shared block of 64 tokens. The answer is the same, bit for bit, under every policy, on any number
// of sockets, with any chunk size.
func TestWarmIsCold(t *testing.T) {
	policies := prefixPolicies
	if testing.Short() {
		policies = []string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "h2o:recent=40,topk=40", "quest:page=16,budget=96",
			"shadowkv:chunk=4,budget=16,outliers=4,local=2,keys=lowrank,rank=16", "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16"}
	}
	warmIsCold(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: goldenDir, KV: "bf16"}}, policies)
}

// TestWarmIsColdFamilies repeats that for models with windows and with latent attention.
func TestWarmIsColdFamilies(t *testing.T) {
	for _, name := range []string{"gemma3", "gemma4_31b", "gemma4_e2b", "mistral_window", "deepseek_v2", "swiftkv"} {
		t.Run(name, func(t *testing.T) {
			warmIsCold(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name)}},
				[]string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "h2o:recent=40,topk=40"})
		})
	}
}

// TestWarmIsColdByLayers repeats that for prompts that are read layer by layer: every layer begins with the cached blocks.
func TestWarmIsColdByLayers(t *testing.T) {
	for _, name := range []string{"llama", "swiftkv", "swiftkv_across", "qwen3_5", "falcon_h1", "gemma4_31b"} {
		t.Run(name, func(t *testing.T) {
			warmIsCold(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name),
				Prefill: booking.Layers}}, []string{"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "streaming:sink=4,recent=60"})
		})
	}
}

// TestWarmIsColdWithStates repeats that for models with recurrent states. A prompt starts after the last
// snapshot before the tokens that it shares with an earlier one.
func TestWarmIsColdWithStates(t *testing.T) {
	for _, name := range []string{"qwen3_5", "qwen3_5_uneven", "qwen3_next", "lfm2", "granite_hybrid", "falcon_h1", "nemotron_h"} {
		t.Run(name, func(t *testing.T) {
			warmIsCold(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name)}},
				[]string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "h2o:recent=40,topk=40", "quest:page=16,budget=96"})
		})
	}
}

func warmIsCold(t *testing.T, cfg LocalConfig, policies []string) {
	lengths := []int{64, 65, 128, 129, 200, 256, 300}
	cold := cfg
	cold.Sockets, cold.Serve.PrefixCache, cold.Serve.Prefill = 1, PrefixOff, booking.Chunks
	alone := startLocal(t, cold)
	want := map[string]replied{}
	prompt := func(n, parts int) []int32 { // differs from a given token on
		p := text(1, n)
		copy(p[min(parts, n):], text(2, n)[min(parts, n):])
		return p
	}
	for _, policy := range policies {
		for _, n := range lengths {
			for _, parts := range []int{n, 64, 100} {
				want[fmt.Sprint(policy, n, parts)] = complete(t, alone,
					&engine.Request{ID: fmt.Sprint(policy, n, parts), Prompt: prompt(n, parts), Policy: policy})
			}
		}
	}
	cuts := []LocalConfig{{Sockets: 1}, {Sockets: 3, Shares: []float64{1, 5, 2}}, {Sockets: 4}}
	for i, c := range cuts {
		mapping, chunk := []string{"gather", "reduce"}[i%2], []int{256, 50, 64}[i]
		t.Run(fmt.Sprintf("%d sockets, %s, chunks of %d", c.Sockets, mapping, chunk), func(t *testing.T) {
			warm := cfg
			warm.Sockets, warm.Shares = c.Sockets, c.Shares
			warm.Serve.Mapping, warm.Serve.Chunk, warm.Serve.StepTokens = mapping, chunk, 300
			e := startLocal(t, warm)
			complete(t, e, &engine.Request{ID: "first", Prompt: text(1, 320)})
			states := e.geometry.Recurrent.Layers > 0
			sums := map[string]bool{} // policies that store sums of attention with the rows at the end of a text
			for _, policy := range policies {
				found := 0
				p, err := kvpolicy.Parse(policy)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range lengths {
					for _, parts := range []int{n, 64, 100} {
						id := fmt.Sprint(policy, n, parts)
						got := complete(t, e, &engine.Request{ID: id, Prompt: prompt(n, parts), Policy: policy})
						if got.bits != want[id].bits {
							t.Errorf("%s, %d tokens of which %d are of the text: another answer with %d from the cache", policy, n, parts, got.cached)
						}
						least := min(parts, p.ReusableTokens(n)) / 64 * 64
						if p.Needs.PromptAttention {
							least = 0
							for at := 64; at <= p.ReusableTokens(n); at += 64 {
								if sums[fmt.Sprint(prompt(n, parts)[:at])] {
									least = at
								}
							}
							found += least
							for at := p.SumsAt(n, 0); at > 0; at = p.SumsAt(n, at) {
								sums[fmt.Sprint(prompt(n, parts)[:at])] = true
							}
						}
						if states { // where snapshots are depends on the texts before; TestSnapshotPlaces checks it
							found += got.cached
							continue
						}
						if got.cached < least || p.Needs.PromptAttention && got.cached != least {
							t.Errorf("%s, %d tokens of which %d are of the text: %d from the cache, want %d", policy, n, parts, got.cached, least)
						}
					}
				}
				if (states || p.Needs.PromptAttention) && found == 0 {
					t.Errorf("%s found nothing in the cache", policy)
				}
			}
			waitIdle(t, e)
		})
	}
}

// TestPrefixCacheIsKeptApart: by key, by salt, by request, and if it is off or empty.
func TestPrefixCacheIsKeptApart(t *testing.T) {
	e := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: ServeConfig{Model: goldenDir}})
	shared := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, PrefixCache: PrefixShared}})
	off := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, PrefixCache: PrefixOff}})
	for i, c := range []struct {
		on     *Local
		tenant string
		salt   string
		none   bool
		text   int
		want   int
	}{
		{e, "a", "", false, 1, 0}, {e, "a", "", false, 1, 192}, {e, "b", "", false, 1, 0},
		{e, "a", "x", false, 1, 0}, {e, "a", "x", false, 1, 192},
		{e, "a", "", true, 1, 0}, {e, "a", "", true, 2, 0}, {e, "a", "", false, 2, 0},
		{e, "ax", "", false, 1, 0}, {e, "", "ax", false, 1, 0},
		{shared, "a", "", false, 1, 0}, {shared, "b", "", false, 1, 192}, {shared, "b", "x", false, 1, 0},
		{off, "a", "", false, 1, 0}, {off, "a", "", false, 1, 0},
	} {
		got := complete(t, c.on, &engine.Request{ID: fmt.Sprint(i), Prompt: text(c.text, 200), Tenant: c.tenant, Salt: c.salt, NoCache: c.none})
		if got.cached != c.want {
			t.Errorf("request %d of %q with salt %q, without the cache %v: %d tokens were cached, want %d",
				i, c.tenant, c.salt, c.none, got.cached, c.want)
		}
	}
	s := e.Cluster().PrefixCache
	if s == nil || s.Queries != 8*200 || s.Hits != 2*192 || s.Tokens != 6*192 || off.Cluster().PrefixCache != nil {
		t.Errorf("%+v", s)
	}
	e.batcher.ResetPrefixCache()
	if got := complete(t, e, &engine.Request{ID: "again", Prompt: text(1, 200), Tenant: "a"}); got.cached != 0 {
		t.Errorf("%d tokens were cached after the cache was emptied", got.cached)
	}
	waitIdle(t, e)
}

// TestChoicesShareTheirPrompt: concurrent sequences with the same prompt compute it once.
func TestChoicesShareTheirPrompt(t *testing.T) {
	for _, sockets := range []int{1, 3, 4} {
		e := startLocal(t, LocalConfig{Sockets: sockets, Threads: 1, Serve: ServeConfig{Model: goldenDir, Chunk: 64}})
		for number, policies := range [][]string{prefixPolicies[:5], slices.Repeat([]string{"h2o:recent=40,topk=40"}, 5)} {
			got := make([]replied, 5)
			done := make(chan bool)
			for i := range got {
				go func() {
					got[i] = complete(t, e, &engine.Request{ID: fmt.Sprint(number, i), Prompt: text(3+number, 300), Policy: policies[i]})
					done <- true
				}()
			}
			for range got {
				<-done
			}
			cached := []int{}
			for _, a := range got {
				cached = append(cached, a.cached)
			}
			slices.Sort(cached)
			if !slices.Equal(cached, []int{0, 256, 256, 256, 256}) {
				t.Errorf("%d sockets, policies %v: %v tokens of 300 came from the cache", sockets, policies, cached)
			}
		}
	}
}

// TestConversations: the next turn reuses the last answer too, under policies whose decoded rows
// equal those of prefill; otherwise it is computed again. With several sockets, the owner sends
// each its heads' rows.
func TestConversations(t *testing.T) {
	for _, c := range []struct {
		sockets int
		mapping string
		shares  []float64
		model   string
		policy  string
		answers bool
	}{
		{1, "gather", nil, "llama", "full", true},
		{1, "gather", nil, "llama", "streaming:sink=4,recent=60", false},
		{1, "gather", nil, "llama", "quest:page=16,budget=96", false},
		{2, "reduce", nil, "llama", "full", true},
		{3, "gather", []float64{1, 5, 2}, "llama", "full", true},
		{4, "reduce", nil, "llama", "full", true},
		{5, "gather", nil, "llama", "full", true}, // one socket exchanges no heads
		{3, "gather", nil, "deepseek_v2", "full", true},
		{3, "gather", nil, "gemma3", "full", false},
		{1, "gather", nil, "qwen3_5", "full", true},
		{3, "reduce", []float64{1, 5, 2}, "qwen3_5_uneven", "full", true},
		{4, "gather", nil, "qwen3_next", "full", true},
		{1, "reduce", nil, "lfm2", "full", true},
		{2, "gather", nil, "granite_hybrid", "full", true},
		{1, "gather", nil, "granite_hybrid", "streaming:sink=4,recent=60", false},
		{3, "gather", nil, "llama", "tova:size=80", false},
	} {
		t.Run(fmt.Sprint(c.sockets, " ", c.mapping, " ", c.model, " ", c.policy), func(t *testing.T) {
			serve := ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", c.model), Policy: c.policy}
			off := serve
			off.PrefixCache = PrefixOff
			cold := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: off})
			serve.Mapping, serve.Replicas = c.mapping, min(1, c.sockets-1)
			warm := startLocal(t, LocalConfig{Sockets: c.sockets, Shares: c.shares, Threads: 1, Serve: serve})
			chat, before := text(4, 50), 0
			for turn := range 3 {
				id, kept := fmt.Sprint(turn), warm.Cluster().PrefixCache.Answers
				answer := generate(t, warm, "a"+id, chat, 90)
				if again := generate(t, cold, "a"+id, chat, 90); !slices.Equal(answer, again) {
					t.Fatalf("turn %d: %v, without the cache %v", turn, answer, again)
				}
				prompt := len(chat)
				chat = append(append(slices.Clone(chat), answer...), text(5+turn, 30)...)
				a, b := complete(t, warm, &engine.Request{ID: "b" + id, Prompt: chat}), complete(t, cold, &engine.Request{ID: "b" + id, Prompt: chat})
				if a.bits != b.bits {
					t.Errorf("turn %d: another answer with %d of %d tokens from the cache", turn, a.cached, len(chat))
				}
				before = max(before, prompt/64*64) // tokens that were computed
				want := before
				if c.answers {
					want = (prompt + 89) / 64 * 64 // the last token was never fed back
				}
				late := c.sockets > 1 && warm.Cluster().PrefixCache.Answers == kept // the fetch of the answer's blocks, for lack of time
				if a.cached != want && !(late && a.cached >= before) {
					t.Errorf("turn %d: %d of %d tokens came from the cache, want %d", turn, a.cached, len(chat), want)
				}
				before = len(chat) / 64 * 64
			}
			waitIdle(t, warm)
			if kept := warm.Cluster().PrefixCache.Answers; kept > 0 != c.answers {
				t.Errorf("%d tokens of answers were kept", kept)
			}
		})
	}
}
