package servertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// RealTokenizers returns a byte-level and a SentencePiece-like one, whose decoder
// strips the first space of a text.
func RealTokenizers(t testing.TB) map[string]engine.Tokenizer {
	t.Helper()
	dir := filepath.Join("..", "..", "text", "tokenizer", "testdata")
	fry, err := tokenizer.Load(filepath.Join(dir, "fry"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "hf", "spm_llama2.tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	spm, err := tokenizer.Parse(tokenizer.Files{Tokenizer: raw})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]engine.Tokenizer{"fry": engine.FromTokenizer(fry), "spm": engine.FromTokenizer(spm)}
}

func EncodeReal(t testing.TB, tok engine.Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(t.Context(), []engine.Segment{{Text: text}}, false)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}
