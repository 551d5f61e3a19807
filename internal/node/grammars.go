package node

import (
	"fmt"
	"sync"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/text/grammar"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// Grammars returns a function that builds the grammar engine for a checkpoint's vocabulary at its
// first call.
func Grammars(ck *checkpoint.Checkpoint) func() (*grammar.Engine, error) {
	return sync.OnceValues(func() (*grammar.Engine, error) {
		t, err := tokenizer.Load(ck.Dir)
		if err != nil {
			return nil, fmt.Errorf("cluster: a grammar needs the tokenizer: %w", err)
		}
		v := grammar.NewVocabulary(min(t.VocabSize(), ck.Config.Vocab), t.PlainBytes, ck.Config.EOS)
		for _, mark := range grammar.Marks() {
			if id, ok := t.ID(mark); ok && t.IsSpecial(id) {
				v.Mark(id, mark)
			}
		}
		return grammar.NewEngine(v), nil
	})
}
