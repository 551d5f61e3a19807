package models

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/piecedigest"
	"github.com/shoal-llm/shoal/internal/hub"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// FindModel returns the folder or the .gguf file of the model that word names. It tries, in this
// order: a path, a model that comes with the program, a pulled model on disk, and a pull. It
// merges a LoRA adapter into its base.
func FindModel(e *ui.Env, word string) (string, error) {
	at, err := FindFiles(e, word)
	if err == nil && lora.IsFolder(at) {
		return Merged(e, at)
	}
	return at, err
}

// FindFiles is FindModel, but does not merge an adapter into its base.
func FindFiles(e *ui.Env, word string) (string, error) {
	if strings.HasPrefix(word, checkpoint.RandomPrefix) {
		return word, nil
	}
	if at, err := onDisk(word); at != "" || err != nil {
		return at, err
	}
	r, err := hub.Parse(word)
	if err != nil {
		return "", err
	}
	if r.Kind == hub.Local {
		return kong.ExpandPath(r.Path), nil // the reader reports missing files
	}
	s, err := OpenStore()
	if err != nil {
		return "", err
	}
	defer s.Close()
	p := newPullProgress(e)
	defer p.end()
	m, err := s.Get(e.Ctx, r, p.show)
	return m.Path, err
}

// FindDraft is FindModel for --draft, which can also be mtp, a layer of the model itself.
func FindDraft(e *ui.Env, word string) (string, error) {
	if word == "" || word == "mtp" {
		return word, nil
	}
	at, err := FindModel(e, word)
	if err != nil {
		return "", fmt.Errorf("--draft: %w", err)
	}
	return at, nil
}

// onDisk finds a path, or a model that comes with the program. It returns "" if word is neither. An empty
// word is neither: it is often a variable of a script that is not set.
func onDisk(word string) (string, error) {
	if word == "" {
		return "", nil
	}
	if path := filepath.Clean(kong.ExpandPath(word)); ui.Exists(path) {
		return layout.Locate(path)
	}
	if filepath.Base(word) == word && word != "." && word != ".." {
		return FindBundled(filepath.Join("models", word)), nil
	}
	return "", nil
}

// OpenStore opens the models of this user. A pull caches the digests of the weights for checkpoint.Open.
func OpenStore() (*hub.Store, error) {
	home, _ := os.UserHomeDir() // FromEnv reports a missing home if it needs one
	s, err := hub.FromEnv(os.Getenv, home)
	if err != nil {
		return nil, err
	}
	store := hub.Open(s)
	store.Observe = func(size int64) hub.Observer { return piecedigest.NewDownload(size) }
	return store, nil
}

// Pulled returns the path of a pulled model of a hub, a registry or a URL, or "".
func Pulled(word string) string {
	r, ok := fetchable(word)
	if !ok {
		return ""
	}
	s, err := OpenStore()
	if err != nil {
		return ""
	}
	defer s.Close()
	m, err := s.Find(r)
	if err != nil {
		return ""
	}
	return m.Path
}

// ModelReference returns a reference for exactly the files at path: a repository of the hub with
// its commit. Other machines can pull it. It returns "" if word is not of the hub, or path is not
// in the cache.
func ModelReference(word, path string) string {
	r, ok := fetchable(word)
	if at, err := onDisk(word); !ok || r.Kind != hub.Hub || at != "" || err != nil {
		return ""
	}
	_, after, ok := strings.Cut(filepath.ToSlash(path), "/"+layout.Snapshots+"/")
	if !ok {
		return ""
	}
	r.Revision, _, _ = strings.Cut(after, "/")
	return r.String()
}

// fetchable reports whether a word names a model that can be pulled.
func fetchable(word string) (hub.Ref, bool) {
	r, err := hub.Parse(word)
	return r, err == nil && r.Kind != hub.Local
}

// ErrNoModel returns the error for a word that names no model. It lists the valid forms.
func ErrNoModel(word string) error {
	return fmt.Errorf("there is no model %q: use a folder with config.json, a .gguf file, org/name of a hub (see 'shoal pull --help'), or "+
		"fry, which comes with the program", word)
}

// CanPull reports whether a word is a reference to a hub, a registry or a URL.
func CanPull(word string) bool {
	_, ok := fetchable(word)
	return ok
}
