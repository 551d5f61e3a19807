package eval

import (
	_ "embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// The default text for haystacks: a snapshot of this project's sources, and the prose of its
// comments and documents. It is committed and never updated with the sources, so that a seed gives
// everyone the same prompts.
var (
	//go:embed haystack/code.txt
	ownCode string
	//go:embed haystack/english.txt
	ownEnglish string
)

// Corpus is the text from which haystacks are cut. The tasks take three quarters of them from Code,
// like the model's training.
type Corpus struct {
	Name    string // identifies the text in results
	Code    string
	English string
}

// OwnCorpus returns the text that comes with the package.
func OwnCorpus() *Corpus { return named("own", ownCode, ownEnglish) }

func named(what, code, english string) *Corpus {
	h := fnv.New32a()
	_, _ = h.Write([]byte(code + "\x00" + english)) // a hash write never fails
	return &Corpus{Name: fmt.Sprintf("%s-%08x", what, h.Sum32()), Code: code, English: english}
}

const (
	// maxCorpus is the maximum text that ReadCorpus reads: more than any prompt.
	maxCorpus = 16 << 20
	// maxCorpusFile excludes generated tables, like the training.
	maxCorpusFile = 250 << 10
)

// ErrCorpus: a text cannot be used for haystacks.
var ErrCorpus = errors.New("eval: unusable text")

// ReadCorpus reads a text file, or all .go, .md and .txt files in a folder in path order, up to 16
// MiB. Go files are code, the others prose. If one kind is missing, the other replaces it.
func ReadCorpus(path string) (*Corpus, error) {
	var code, english strings.Builder
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != path && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return fs.SkipDir
			}
			return nil
		}
		into := &english
		switch ext := filepath.Ext(p); {
		case ext == ".go":
			into = &code
		case ext != ".md" && ext != ".txt" && p != path:
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		limit := int64(maxCorpusFile)
		if p == path {
			limit = maxCorpus
		}
		if !info.Mode().IsRegular() || info.Size() > limit || into.Len()+int(info.Size()) > maxCorpus/2 && p != path {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if utf8.Valid(b) {
			into.Write(b)
			into.WriteByte('\n')
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrCorpus, err)
	}
	c, e := code.String(), english.String()
	if c == "" {
		c = e
	}
	if e == "" {
		e = c
	}
	if len(c) < 4096 {
		return nil, fmt.Errorf("%w: %s holds %d bytes of .go, .md and .txt files; want at least 4096", ErrCorpus, path, len(c))
	}
	return named(filepath.Base(path), c, e), nil
}
