package answers

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// TestOwnersTakeTurns compares two answers with those of each request alone. While one sequence waits
// for its clusters, a step decodes only the other, whose owner is another node. With an FFN of a single
// unit, one node has all rows of a projection, so only its own sequences need no exchange.
func TestOwnersTakeTurns(t *testing.T) {
	const policy = "squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=9,obs=8,segment=64"
	prompt := func(policy, seed string, n int) request {
		return request{policy: policy, kind: greedy, output: 4, prompt: makePrompt(512, n, request{policy: seed, kind: greedy}.seed())}
	}
	pair := []request{prompt(policy, policy+",ring=16", 169),
		prompt("snapkv:topk=60,obs=16,pool=5", "snapkv:topk=60,obs=16,pool=5,ring=7", 242)}
	for _, name := range []string{"granite_hybrid_moe", "nemotron_h_moe"} {
		s, dir := setup{source: source{name: name}, weights: "bf16", kv: "bf16"}, "../../internal/engine/model/testdata/"+name
		answer := func(c cut, requests ...request) []answer {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			a, err := s.ask(ctx, dir, c, requests, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			return a.answers
		}
		want := map[string]string{}
		for _, r := range pair {
			want[r.policy] = fmt.Sprint(answer(cuts[0], r))
		}
		for range 6 { // the order of arrival determines the owners and varies
			slices.Reverse(pair)
			for i, a := range answer(cuts[1], pair...) {
				if got := fmt.Sprint([]any{a}); got != want[pair[i].policy] {
					t.Errorf("%s, %s with the other: %s, alone %s", name, pair[i].policy, got, want[pair[i].policy])
				}
			}
		}
	}
}
