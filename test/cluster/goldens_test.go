package cluster_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// goldenFile is what Hugging Face transformers computed in float32 for a small
// Llama with random weights (internal/engine/model/testdata/llama, made by a script in train/).
type goldenFile struct {
	Items []struct {
		Prompt []int     `json:"prompt"`
		Logits []float64 `json:"logits"` // after the prompt
		Greedy []int     `json:"greedy"` // 32 tokens
	} `json:"items"`
}

const goldenModel = "../../internal/engine/model/testdata/llama"

// completion is the part of a completion's answer that the tests read.
type completion struct {
	Choices []struct {
		Text         string `json:"text"`
		FinishReason string `json:"finish_reason"`
		Logprobs     struct {
			Tokens        []string             `json:"tokens"`
			TokenLogprobs []*float64           `json:"token_logprobs"`
			TopLogprobs   []map[string]float64 `json:"top_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	} `json:"usage"`
}

func parseCompletion(t testing.TB, body []byte) completion {
	t.Helper()
	var c completion
	if err := json.Unmarshal(body, &c); err != nil || len(c.Choices) == 0 {
		t.Fatalf("not a completion (%v): %.400s", err, body)
	}
	return c
}

// TestGoldens: over the API and any number of nodes, the greedy tokens are those
// of the reference and the logprobs its log-softmax. (All logits are compared in
// actors/socket.)
func TestGoldens(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(goldenModel, "goldens.json"))
	if err != nil {
		t.Fatal(err)
	}
	var g goldenFile
	if err := json.Unmarshal(b, &g); err != nil || len(g.Items) == 0 {
		t.Fatalf("goldens.json: %v, %d items", err, len(g.Items))
	}
	counts := []int{1, 3, 16}
	switch {
	case full():
		counts = []int{1, 2, 3, 5, 16}
	case testing.Short():
		counts = []int{1, 3}
	}
	var first []string
	for _, n := range counts {
		t.Run(fmt.Sprintf("n%d", n), func(t *testing.T) {
			mapping := "reduce"
			if n%2 == 1 {
				mapping = "gather" // TestSameBits runs reduce on 1 and 3, and gather on 16
			}
			c := up(t, n, "--model", goldenModel, "--quant", "f32", "--kv-type", "f32", "--mapping", mapping)
			var reqs []request
			for i, it := range g.Items {
				reqs = append(reqs, request{fmt.Sprintf("item %d", i), "/v1/completions", map[string]any{"prompt": it.Prompt, "max_tokens": len(it.Greedy),
					"temperature": 0, "logprobs": 5, "return_tokens_as_token_ids": true, "ignore_eos": true}})
			}
			got := c.send(t, reqs, 8)
			for i, it := range g.Items {
				checkGolden(t, reqs[i].name, parseCompletion(t, []byte(got[i])), it.Logits, it.Greedy)
			}
			if first == nil {
				first = got
			}
			compare(t.Errorf, fmt.Sprintf("n%d", n), reqs, first, got)
		})
	}
}

func checkGolden(t *testing.T, name string, c completion, logits []float64, greedy []int) {
	t.Helper()
	lp := c.Choices[0].Logprobs
	if len(lp.Tokens) != len(greedy) {
		t.Errorf("%s: %d tokens, want %d", name, len(lp.Tokens), len(greedy))
		return
	}
	for k, id := range greedy {
		if lp.Tokens[k] != fmt.Sprintf("token_id:%d", id) {
			t.Errorf("%s: token %d is %s, the reference says %d", name, k, lp.Tokens[k], id)
			return
		}
	}
	top := lp.TopLogprobs[0]
	if len(top) != 5 {
		t.Errorf("%s: %d top logprobs, want 5", name, len(top))
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(l)
	}
	for token, got := range top {
		var id int
		if _, err := fmt.Sscanf(token, "token_id:%d", &id); err != nil || id < 0 || id >= len(logits) {
			t.Errorf("%s: token %q", name, token)
			continue
		}
		if want := logits[id] - math.Log(sum); math.Abs(got-want) > 2e-3 {
			t.Errorf("%s: logprob of token %d is %v, the reference says %v", name, id, got, want)
		}
	}
}
