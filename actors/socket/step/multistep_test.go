package step

import (
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/caches"
	"github.com/shoal-llm/shoal/actors/socket/machine"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
)

// TestTokenOfAnotherRank checks that the sampled token of another rank is validated before it is used.
func TestTokenOfAnotherRank(t *testing.T) {
	e := &Epoch{Epoch: &caches.Epoch{}, config: model.Config{Vocab: 10}}
	s := &Step{Work: &machine.Work{Runs: []plan.Run{{Seq: 1, Owner: 1, Start: 5, Tokens: []int32{3}}}}, sampledBy: [][]float32{nil, {10}}}
	if err := e.fillNextPass(s); err == nil || !strings.Contains(err.Error(), "rank 1 sampled token 10 for sequence 1, vocabulary is 10") {
		t.Error(err)
	}
}
