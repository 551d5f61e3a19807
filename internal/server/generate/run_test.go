package generate

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/server/servertest"
)

// A prompt that ends inside a character leaves nothing of it in the answer.
func TestBytesOfThePromptDoNotLeak(t *testing.T) {
	tok := servertest.RealTokenizers(t)["fry"]
	ids := servertest.EncodeReal(t, tok, "🚀")
	if len(ids) < 2 {
		t.Skip("one token")
	}
	part := ids[:len(ids)-1]
	s := continueText(tok, part, true)
	if got := s.Push(servertest.EncodeReal(t, tok, "x")[0]) + s.Flush(); got != "x" {
		t.Errorf("the answer reads %q", got)
	}
	s = continueText(tok, ids, true)
	if got := s.Push(servertest.EncodeReal(t, tok, "x")[0]) + s.Flush(); got != "x" {
		t.Errorf("the answer reads %q", got)
	}
}
