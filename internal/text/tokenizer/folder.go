package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-llm/shoal/internal/text/tokenizer/vocabfile"
)

// vocabularyFiles are the files that replace a missing tokenizer.json, in the order in which they are
// looked for. A name may be a pattern.
var vocabularyFiles = []struct {
	name    string
	convert func(name string, data []byte, s vocabfile.Settings) ([]byte, *vocabfile.Extra, error)
}{
	{"tokenizer.model", sentencePieceOrTiktoken},
	{"spiece.model", vocabfile.SentencePiece},
	{"sentencepiece.bpe.model", vocabfile.SentencePiece},
	{"tiktoken.model", vocabfile.Tiktoken},
	{"*.tiktoken", vocabfile.Tiktoken},
	{vocabfile.VocabText, func(_ string, data []byte, s vocabfile.Settings) ([]byte, *vocabfile.Extra, error) {
		doc, err := vocabfile.WordPiece(data, s)
		return doc, nil, err
	}},
}

func sentencePieceOrTiktoken(name string, data []byte, s vocabfile.Settings) ([]byte, *vocabfile.Extra, error) {
	if vocabfile.IsTiktoken(data) {
		return vocabfile.Tiktoken(name, data, s)
	}
	return vocabfile.SentencePiece(name, data, s)
}

func readFolder(dir string) (Files, error) {
	var f Files
	if _, err := os.Stat(dir); err != nil {
		return f, fmt.Errorf("tokenizer: %w; name a folder that holds %s, or a .gguf file", err, tokenizerFile)
	}
	for _, part := range []struct {
		name string
		to   *[]byte
	}{{tokenizerFile, &f.Tokenizer}, {configFile, &f.Config}, {specialsFile, &f.Specials}, {addedFile, &f.Added}} {
		data, err := readFolderFile(dir, part.name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		*part.to = data
	}
	if f.Tokenizer == nil {
		return f, f.convert(dir)
	}
	return f, nil
}

func readFolderFile(dir, name string) ([]byte, error) {
	data, err := readFile(filepath.Join(dir, name))
	if err != nil && !errors.Is(err, ErrInvalid) {
		err = fmt.Errorf("tokenizer: %w", err)
	}
	return data, err
}

// convert makes a tokenizer.json of the first of vocabularyFiles in the folder.
func (f *Files) convert(dir string) error {
	s, err := f.settings()
	if err != nil {
		return err
	}
	var names []string
	for _, v := range vocabularyFiles {
		names = append(names, v.name)
		found, err := fs.Glob(os.DirFS(dir), v.name)
		if err != nil || len(found) == 0 {
			continue
		}
		data, err := readFolderFile(dir, found[0])
		if err != nil {
			return err
		}
		if f.Tokenizer, f.extra, err = v.convert(found[0], data, s); err != nil {
			return fmt.Errorf("%w (in %s)", err, dir)
		}
		return nil
	}
	return fmt.Errorf("tokenizer: %w: %s has neither %s nor one of %s", fs.ErrNotExist, dir, tokenizerFile, strings.Join(names, ", "))
}

// settings returns the settings in tokenizer_config.json and special_tokens_map.json.
func (f *Files) settings() (s vocabfile.Settings, err error) {
	var specials map[string]json.RawMessage
	for _, part := range []struct {
		name string
		data []byte
		to   *map[string]json.RawMessage
	}{{configFile, f.Config, &s.Raw}, {specialsFile, f.Specials, &specials}} {
		if len(part.data) == 0 {
			continue
		}
		if err := json.Unmarshal(part.data, part.to); err != nil {
			return s, invalid(part.name, "is not a JSON object: %v", err)
		}
	}
	named, err := readSpecials(s.Raw, specials)
	s.Named = named.named
	return s, err
}
