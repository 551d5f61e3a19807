package generate

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/server/servertest"
	"github.com/shoal-llm/shoal/internal/text/toolcall"
)

// A character that a thought leaves unfinished belongs to the thought, although its bytes are still held back
// when the control token comes that ends the thought.
func TestUnfinishedCharacterBeforeAMark(t *testing.T) {
	for name, logprobs := range map[string]bool{"text alone": false, "with log-probabilities": true} {
		c := &Choice{text: servertest.Tokenizer{}.NewStream(true), maxTokens: 99, logprobs: logprobs,
			parts: &parts{tok: servertest.Tokenizer{},
				think: toolcall.NewThoughtParser(toolcall.Tags{Open: "<|user|>", Close: "<|end|>"}, true, false)}}
		var thought, text string
		var tokens []int32
		for _, ev := range []engine.Event{{Token: 'a'}, {Token: 0xe6}, {Token: 0x97}, {Token: servertest.TokEnd}, {Token: 'b'},
			{Token: servertest.TokAssistant}, {Token: servertest.TokEOS, Finish: engine.FinishStop}} {
			d, _, err := c.accept(ev)
			if err != nil {
				t.Fatal(err)
			}
			thought, text = thought+d.Thought, text+d.Text
			for _, r := range d.Tokens {
				tokens = append(tokens, r.Id)
			}
		}
		if thought != "a\uFFFD" || text != "b" {
			t.Errorf("%s: the thought is %q, the answer %q", name, thought, text)
		}
		if logprobs && len(tokens) != 7 {
			t.Errorf("tokens %v", tokens)
		}
	}
}
