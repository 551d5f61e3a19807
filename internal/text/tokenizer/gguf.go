package tokenizer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-llm/shoal/internal/engine/gguf"
	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

// ggufFile returns the GGUF file with the tokenizer of path: the file itself, or the only one in a
// folder that has no tokenizer files.
func ggufFile(path string) (file string, ok bool, err error) {
	for _, own := range []string{tokenizerFile, "config.json"} {
		if _, err := os.Stat(filepath.Join(path, own)); err == nil {
			return "", false, nil
		}
	}
	file, err = gguf.Find(path)
	if errors.Is(err, gguf.ErrNotFound) {
		return "", false, nil // the caller reports the missing files
	} else if err != nil {
		return "", false, fmt.Errorf("tokenizer: %w", err)
	}
	return file, true, nil
}

// takeExtra adds the parts that the files of a folder cannot express. If several ids have the same
// text, encoding uses the first; the others are only decoded.
func (t *Tokenizer) takeExtra(g *vocabfile.Extra) {
	t.converted = true
	for _, id := range slices.Sorted(maps.Keys(g.Again)) {
		first := int32(g.Again[id])
		s := t.Token(first)
		t.warnings = append(t.warnings,
			fmt.Sprintf("%stokens: the ids %d and %d both have the text %q; texts get the id %d", vocabfile.GGUFPrefix, first, id, s, first))
		if a := t.added.byID[first]; a != nil {
			twin := *a
			twin.id = id
			t.added.byID[id] = &twin
			continue
		}
		t.vocab.alias(id, s)
	}
	m, ok := t.model.(*bpe)
	if !ok || g.Scores == nil {
		return
	}
	m.whole = map[string]int32{}
	for id, typ := range g.Types {
		if typ == vocabfile.UserDefined {
			m.whole[t.vocab.tokens[id]] = int32(id)
		}
	}
	m.useScores(g.Scores, func(id int) bool {
		_, again := g.Again[int32(id)]
		return !again && t.added.byID[int32(id)] == nil && (g.Types == nil || g.Types[id] == vocabfile.Normal)
	})
}

// readGGUF converts the tokenizer of a GGUF file.
func readGGUF(path string) (Files, error) {
	d, err := vocabfile.GGUF(path)
	return Files{Tokenizer: d.Tokenizer, Config: d.Config, extra: &d.Extra}, err
}
