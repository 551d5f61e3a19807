package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// everything returns all events of a request.
func everything(t *testing.T, e engine.Engine, r *engine.Request) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r.Sampling = sampler.Default()
	r.Sampling.Seed, r.Sampling.Logprobs = 11, 2
	events, err := e.Submit(ctx, r)
	if err != nil {
		t.Errorf("%s: %v", r.ID, err)
		return ""
	}
	var out strings.Builder
	for ev := range events {
		if ev.Err != nil {
			t.Errorf("%s: %v", r.ID, ev.Err)
		}
		for i, p := range ev.PromptLogprobs {
			fmt.Fprintf(&out, "prompt %d: %08x %v\n", i, math.Float32bits(p.Logprob), p.Top)
		}
		fmt.Fprintf(&out, "%d %08x %v %v %s\n", ev.Token, math.Float32bits(ev.Logprob), ev.Top, ev.Pooled, ev.Finish)
	}
	return out.String()
}

// TestRolesRules checks requests of every kind. Their events equal those without roles. The cache of a
// request moves if it decodes more than one token after a long prompt without a context.
func TestRolesRules(t *testing.T) {
	folders := writeAdapters(t, t.TempDir(), goldenDir, 1)
	serve := ServeConfig{Model: goldenDir, LoRA: folders, Pooling: "mean", PrefixCache: PrefixOff}
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: serve})
	serve.PrefillOver = 64
	e := startLocal(t, LocalConfig{Sockets: 3, Threads: 1, Serve: serve, roles: rolesOf([2]int{2, 1})})
	const squeezed = "squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16"
	first := generate(t, alone, "first", text(1, 200), 8)
	for name, x := range map[string]struct {
		r     engine.Request
		moves uint64
	}{
		"short":           {engine.Request{Prompt: text(1, 64), MaxTokens: 8}, 0},
		"long":            {engine.Request{Prompt: text(1, 65), MaxTokens: 8}, 1},
		"prompt logprobs": {engine.Request{Prompt: text(1, 200), MaxTokens: 8, PromptLogprobs: 3}, 1},
		"echo":            {engine.Request{Prompt: text(1, 200), MaxTokens: 1, PromptLogprobs: 3}, 0},
		"one token":       {engine.Request{Prompt: text(1, 200), MaxTokens: 1}, 0},
		"a vector":        {engine.Request{Prompt: text(1, 200), Pool: pooling.Mean}, 0},
		"the last state":  {engine.Request{Prompt: text(1, 200), Pool: pooling.Last}, 0},
		"drafts":          {engine.Request{Prompt: append(text(1, 100), text(1, 100)...), MaxTokens: 20, Speculate: "suffix"}, 1},
		"a continued job": {engine.Request{Prompt: text(1, 200), MaxTokens: 16, Emitted: first, Accepted: true}, 1},
		"that drops tokens": {engine.Request{Prompt: text(1, 200), MaxTokens: 16, Emitted: first[:1],
			Accepted: true, Policy: "streaming:sink=4,recent=60"}, 1},
		"a context":             {engine.Request{Prompt: text(1, 200), MaxTokens: 8, Context: 150, Policy: squeezed}, 0},
		"an adapter":            {engine.Request{Prompt: text(1, 200), MaxTokens: 8, Adapter: adapterNamed(t, e, "a0")}, 1},
		"a token that stops it": {engine.Request{Prompt: text(1, 200), MaxTokens: 16, StopTokens: first[2:3]}, 1},
	} {
		r := x.r
		r.ID = name
		if r.PromptLogprobs == 0 {
			r.PromptLogprobs = -1
		}
		if name != "a token that stops it" {
			r.IgnoreEOS = true
		}
		if name == "that drops tokens" { // the token that the rebuilt sequence gives
			probe := r
			probe.Emitted, probe.Accepted, probe.MaxTokens = nil, false, 1
			probe.ID = "probe"
			var token int32
			fmt.Sscan(everything(t, alone, &probe), &token)
			r.Emitted = []int32{token}
		}
		if name == "a continued job" {
			r.Emitted = nil
			var token int32
			probe := r
			probe.ID, probe.MaxTokens, probe.Accepted = "probe", 5, false
			for _, line := range strings.Split(strings.TrimSpace(everything(t, alone, &probe)), "\n") {
				if fmt.Sscan(line, &token); token != engine.NoToken {
					r.Emitted = append(r.Emitted, token)
				}
			}
		}
		again, before := r, e.Cluster().Transfers.Caches
		want := everything(t, alone, &r)
		if got := everything(t, e, &again); got != want || len(got) < 10 {
			t.Errorf("%s: got \n%s, without roles \n%s", name, got, want)
		}
		if s := e.Cluster().Transfers; s.Caches != before+x.moves || s.Failed > 0 {
			t.Errorf("%s: %d caches moved and %d failed, %d should move", name, s.Caches-before, s.Failed, x.moves)
		}
	}
	waitIdle(t, e)
}

// TestRolesConversation: the decode group reads the next turn of a conversation, whose beginning it has,
// and the prefill group a turn with much new text.
func TestRolesConversation(t *testing.T) {
	serve := ServeConfig{Model: goldenDir, PrefillOver: 64}
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, PrefixCache: PrefixOff}})
	e := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: serve, roles: rolesOf([2]int{1, 1})})
	talk := text(1, 200)
	for turn, x := range []struct {
		tokens int
		moves  uint64 // so far
		warm   int
	}{{0, 1, 0}, {20, 1, 192}, {100, 2, 192}} {
		talk = append(talk, text(turn, x.tokens)...)
		want := generate(t, alone, fmt.Sprint("alone", turn), talk, 24)
		got := complete(t, e, &engine.Request{ID: fmt.Sprint("warm", turn), Prompt: talk, MaxTokens: 24})
		answer := generate(t, e, fmt.Sprint("turn", turn), talk, 24)
		if fmt.Sprint(answer) != fmt.Sprint(want) {
			t.Errorf("turn %d: %v, without roles %v", turn, answer, want)
		}
		if n := e.Cluster().Transfers.Caches; n != x.moves || got.cached < x.warm {
			t.Errorf("turn %d: %d caches moved, want %d; %d tokens were found, at least %d should be", turn, n, x.moves, got.cached, x.warm)
		}
		talk = append(talk, answer...)
	}
}

// TestRolesTransfersFail: a cache that does not arrive intact is read again, at last by the decode group.
func TestRolesTransfersFail(t *testing.T) {
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, PrefixCache: PrefixOff}})
	policies := []string{"full", "streaming:sink=4,recent=60", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"}
	request := func(i int) *engine.Request {
		return &engine.Request{ID: fmt.Sprint("r", i), Prompt: text(i, 200+i), Policy: policies[i%3], MaxTokens: 16}
	}
	const requests = 6
	var want []replied
	for i := range requests {
		want = append(want, complete(t, alone, request(i)))
	}
	var pieces atomic.Int64
	for name, x := range map[string]struct {
		lend   func(*proto.RowsReply) error
		caches uint64
		failed uint64
	}{
		"every one fails":      {func(*proto.RowsReply) error { return errors.New("test: no connection") }, 0, 2 * requests},
		"every one is damaged": {func(r *proto.RowsReply) error { r.Rows[len(r.Rows)/2] ^= 1; return nil }, 0, 2 * requests},
		"every one is cut":     {func(r *proto.RowsReply) error { r.Rows = r.Rows[:len(r.Rows)-1]; return nil }, 0, 2 * requests},
		"one piece fails": {func(*proto.RowsReply) error {
			if pieces.Add(1) == 3 {
				return errors.New("test: no connection")
			}
			return nil
		}, requests, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := startLocal(t, LocalConfig{Sockets: 3, Threads: 1, lend: x.lend, roles: rolesOf([2]int{2, 1}),
				Serve: ServeConfig{Model: goldenDir, PrefillOver: 64, PrefixCache: PrefixOff}})
			var wg sync.WaitGroup
			for i := range requests {
				wg.Go(func() {
					if got := complete(t, e, request(i)); got.bits != want[i].bits {
						t.Errorf("request %d: \n%s, without roles \n%s", i, got.bits, want[i].bits)
					}
				})
			}
			wg.Wait()
			if s := e.Cluster().Transfers; s.Caches != x.caches || s.Failed != x.failed {
				t.Errorf("transfers %+v, want %d and %d failed", s, x.caches, x.failed)
			}
			waitIdle(t, e)
		})
	}
}

// TestRolesCancelled: cancelled requests free the memory of both groups in every phase of their prompts.
func TestRolesCancelled(t *testing.T) {
	e := startLocal(t, LocalConfig{Sockets: 3, Threads: 1, roles: rolesOf([2]int{1, 2}), lend: func(*proto.RowsReply) error {
		time.Sleep(time.Millisecond)
		return nil
	},
		Serve: ServeConfig{Model: goldenDir, PrefillOver: 64, PrefixCache: PrefixOff, Chunk: 32}})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*7)*time.Millisecond)
			defer cancel()
			events, err := e.Submit(ctx, &engine.Request{ID: fmt.Sprint("r", i), Prompt: text(i, 300),
				MaxTokens: 100, IgnoreEOS: true, Sampling: sampler.Default(), PromptLogprobs: -1})
			if err != nil {
				return
			}
			for range events {
			}
		})
	}
	wg.Wait()
	waitIdle(t, e)
	if s := e.Cluster(); s.Running+s.Waiting > 0 {
		t.Errorf("%d run and %d wait after all were cancelled", s.Running, s.Waiting)
	}
	e.prefiller.mu.Lock()
	defer e.prefiller.mu.Unlock()
	if n := len(e.prefiller.cancels); n > 0 {
		t.Errorf("%d reads are left", n)
	}
}

// TestRolesShortMemory: caches wait in the prefill group until the decode group has memory, sequences are
// preempted, and all bits stay the same.
func TestRolesShortMemory(t *testing.T) {
	alone := startLocal(t, LocalConfig{Sockets: 1, Threads: 1, Serve: ServeConfig{Model: goldenDir, PrefixCache: PrefixOff}})
	one := alone.geometry.TokenBytes() * 300
	e := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, KVBudget: 4 * one, roles: rolesOf([2]int{1, 1}),
		Serve: ServeConfig{Model: goldenDir, PrefillOver: 64}})
	var wg sync.WaitGroup
	for i := range 12 {
		r := func() *engine.Request {
			return &engine.Request{ID: fmt.Sprint("r", i), Prompt: text(i, 150+10*i), MaxTokens: 60,
				Policy: []string{"full", "streaming:sink=4,recent=60"}[i%2]}
		}
		want := complete(t, alone, r())
		wg.Go(func() {
			if got := complete(t, e, r()); got.bits != want.bits {
				t.Errorf("request %d: \n%s, alone \n%s", i, got.bits, want.bits)
			}
		})
	}
	wg.Wait()
	if s := e.Cluster(); s.Transfers.Caches < 12 || s.Transfers.Failed > 0 {
		t.Errorf("transfers %+v", s.Transfers)
	}
	e.ResetPrefixCache(t.Context())
	waitIdle(t, e)
}

// TestRolesUnknownState: a state of the decode group that is not known, because its batcher does not answer,
// has no sum with that of the prefill group.
func TestRolesUnknownState(t *testing.T) {
	e := startLocal(t,
		LocalConfig{Sockets: 2, Threads: 1, roles: rolesOf([2]int{1, 1}), Serve: ServeConfig{Model: goldenDir, PrefillOver: 64}})
	v, err := e.director.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	s := e.state(late, &v)
	e.addReader(t.Context(), &v, &s)
	if s.WaitingReason == "" || s.Transfers != nil {
		t.Errorf("%+v", s)
	}
}
