package socket

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestTokenOfAnotherRank: what a peer says it has drawn is looked at before it is looked up.
func TestTokenOfAnotherRank(t *testing.T) {
	e := &epoch{caches: &caches{}, config: model.Config{Vocab: 10}}
	s := &step{work: &Work{Runs: []Run{{Run: &plan.Run{Seq: 1, Owner: 1, Start: 5, Tokens: []int32{3}}}}}, told: [][]float32{nil, {10}}}
	if err := e.next(s); err == nil || !strings.Contains(err.Error(), "rank 1 has drawn token 10 for sequence 1, vocabulary is 10") {
		t.Error(err)
	}
}
