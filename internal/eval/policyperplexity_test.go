package eval

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/cluster"
)

// TestPolicyPerplexity: under full attention the tokens that are decoded score as those of a prompt.
// A policy that keeps everything equals it, and one that evicts most of a repeated text scores lower.
func TestPolicyPerplexity(t *testing.T) {
	tok := testTokenizer(t)
	text := strings.Repeat("The number of the gentle-otter is 7012345 and that of the swift-fox 8123456.\n", 12)
	policies, err := ParsePolicies([]string{"full streaming:sink=4,recent=4096 streaming:sink=1,recent=8"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := PolicyPerplexityConfig{Window: 160, Prefix: 100, Windows: 2, Policies: policies}
	got, err := MeasurePolicyPerplexity(t.Context(), tok, text, cfg, TogetherConfig{Model: modelDir, KV: "f32", Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := embedded(t, cluster.ServeConfig{Model: modelDir, KV: "f32"})
	sum, n := 0.0, 0
	for _, w := range windowsOf(tok.EncodeLiteral(text), tok.Encode("", true), cfg) {
		lp, err := c.Logprobs(t.Context(), w) // of w[1:]
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range lp[cfg.Prefix:] {
			sum, n = sum-x, n+1
		}
	}
	if full := got[0]; full.Tokens != n || n < 60 || math.Abs(full.NLL-sum/float64(n)) > 1e-5 || full.Match != 1 {
		t.Errorf("%+v, want %d tokens, at least 60, with %v nats", full, n, sum/float64(n))
	}
	if got[1].NLL != got[0].NLL || got[1].Match != 1 {
		t.Errorf("a ring larger than the window: %+v, want %+v", got[1], got[0])
	}
	if got[2].Perplexity < 1.5*got[0].Perplexity || got[2].Match > 0.95 {
		t.Errorf("a ring of 8: %+v, full %+v", got[2], got[0])
	}
	for _, bad := range []PolicyPerplexityConfig{{Window: 10, Prefix: 9}, {Window: 10, Prefix: 1},
		{Policies: []Policy{{Family: truncatedName}}}, {Window: 4096, Prefix: 4000}} {
		if _, err := MeasurePolicyPerplexity(t.Context(), tok, text, bad, TogetherConfig{Model: modelDir}); !errors.Is(err, ErrText) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}
