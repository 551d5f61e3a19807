package cluster

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/server/engine"
)

// TestOpenEnd: a model's context fits no node. An open request gets as many tokens as all nodes hold, and the tokens of
// a cluster with more memory. A request for the same tokens that is not open is refused. A prompt is truncated to
// exactly what fits.
func TestOpenEnd(t *testing.T) {
	const context = 2048
	local := func(budget int64) *Local {
		return startLocal(t, LocalConfig{Sockets: 2, Threads: 1, KVBudget: budget,
			Serve: ServeConfig{Model: "../models/fry", MaxContext: context, PrefixCache: PrefixOff}})
	}
	small := local(2 << 20)
	request := func(id string, tokens, output int, open bool) *engine.Request {
		p := sampler.Default()
		p.Temperature = 0
		return &engine.Request{ID: id, Prompt: text(3, tokens), MaxTokens: output, Open: open, Sampling: p, IgnoreEOS: true, PromptLogprobs: -1}
	}
	run := func(e *Local, r *engine.Request) (tokens []int32, finish string) {
		t.Helper()
		events, err := e.Submit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for ev := range events {
			if ev.Err != nil {
				t.Fatal(ev.Err)
			}
			if ev.Token != engine.NoToken {
				tokens = append(tokens, ev.Token)
			}
			finish = ev.Finish
		}
		return tokens, finish
	}
	_, err := small.Submit(t.Context(), request("closed", 50, context-50, false))
	if err == nil || !strings.Contains(err.Error(), "max_tokens can be at most") {
		t.Errorf("not open: %v", err)
	}
	got, finish := run(small, request("open", 50, context-50, true))
	room := small.PromptRoom(request("room", context-1, 1, false))
	if finish != engine.FinishLength || len(got) < 64 || 50+len(got) != room+1 {
		t.Errorf("%d tokens, %s; %d tokens of a prompt fit", len(got), finish, room)
	}
	if want, _ := run(local(64<<20), request("large", 50, len(got), false)); string(asBytes(want)) != string(asBytes(got)) {
		t.Error("other tokens than with more memory")
	}
	if _, finish := run(small, request("fits", room, 1, false)); finish != engine.FinishLength {
		t.Errorf("a prompt that fits: %s", finish)
	}
	if _, err := small.Submit(t.Context(), request("too long", room+1, 1, false)); err == nil {
		t.Error("a prompt of one token more was admitted")
	}
	waitIdle(t, small)
}

func asBytes(ids []int32) (out []byte) {
	for _, id := range ids {
		out = append(out, byte(id), byte(id>>8), byte(id>>16))
	}
	return out
}
