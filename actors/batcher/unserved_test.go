package batcher

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// TestNeedsMissingNode: a request that fits only with a node that has left ends with no_cluster once it has waited long
// enough, whether its cache is cut or whole. A job, and a request that no placement could ever take, end with
// kv_budget_exceeded. A request continues when the node is back in time.
func TestNeedsMissingNode(t *testing.T) {
	both := []Socket{
		{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 12 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}
	one := []Socket{{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 4}}}
	for _, c := range []struct {
		name      string
		tokens    int
		submitted int    // 0: with both nodes; 1: with one node; 2: before there is a placement
		back      bool   // the node returns in time
		code      string // of its end
	}{
		{"cut", 250, 0, false, CodeUnserved},
		{"whole, on the lost node", 170, 0, false, CodeUnserved},
		{"a job", 250, 1, false, CodeBudget},
		{"back in time", 250, 0, true, ""},
		{"never fits", 500, 0, false, CodeBudget},
		{"never fits, submitted early", 500, 2, false, CodeBudget},
	} {
		s := testState(t, func(c *Config) { c.UnservedMillis = 1000 })
		submit := func() {
			s.Step(Submit{Spec{ID: "a", Prompt: prompt("a", c.tokens-9), MaxTokens: 10, Policy: kvcache.Full(), Sampling: greedy,
				PromptLogprobs: -1, Accepted: c.submitted > 0 || c.code == CodeBudget}})
		}
		if c.submitted == 2 {
			submit()
		}
		s.Step(Placed{Epoch: 1, Sockets: both})
		if c.submitted == 0 {
			submit()
		}
		s.Step(Tick{5})
		s.Step(Placed{Epoch: 2, Sockets: one})
		if c.submitted == 1 {
			submit()
		}
		s.Step(Tick{10})
		if c.back {
			s.Step(Placed{Epoch: 3, Sockets: both})
			s.Step(Tick{11})
			s.Step(Placed{Epoch: 4, Sockets: one})
		}
		if e := s.Step(Tick{1004}); len(e.Finishes) > 0 {
			t.Errorf("%s: %+v before its time", c.name, e.Finishes)
		}
		e := s.Step(Tick{1010})
		switch {
		case c.code == "" && len(e.Finishes) == 0:
		case len(e.Finishes) != 1 || e.Finishes[0].Code != c.code || !strings.Contains(e.Finishes[0].Message, "needs"):
			t.Errorf("%s: %+v, want %s", c.name, e.Finishes, c.code)
		}
	}
}

// TestTooLargeForAVector: the refusal of a text for a vector names the reason why its cache is not cut.
func TestTooLargeForAVector(t *testing.T) {
	s := testState(t, nil)
	s.Step(Placed{Epoch: 1, Sockets: []Socket{
		{ID: "n1", Budget: 8 * block, Heads: tensor.Span{Lo: 0, Hi: 2}},
		{ID: "n2", Budget: 8 * block, Heads: tensor.Span{Lo: 2, Hi: 4}},
	}})
	e := s.Step(Submit{Spec{ID: "a", Prompt: prompt("a", 300), Policy: kvcache.Full(), Pool: pooling.Last, Sampling: greedy,
		PromptLogprobs: -1}})
	const why = "for a vector or a score is not cut over nodes; "
	if len(e.Rejects) != 1 || e.Rejects[0].Code != CodeBudget || !strings.Contains(e.Rejects[0].Message, why) {
		t.Errorf("%+v", e.Rejects)
	}
}
