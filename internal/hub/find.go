package hub

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// Find returns a model that is on disk, complete. It sends no request. ErrNotCached: it
// has to be pulled.
func (s *Store) Find(r Ref) (Model, error) {
	switch r.Kind {
	case Hub:
		return s.findHub(r)
	case Registry:
		return s.findRegistry(r)
	case URL:
		return s.findURL(r)
	}
	st, err := os.Stat(r.Path)
	if err != nil {
		return Model{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return Model{Ref: r, Name: layout.NameOf(r.Path), Path: r.Path, Bytes: st.Size(), Files: 1}, nil
}

func notHere(r Ref) error {
	return fmt.Errorf("%w: %s: fetch it with 'shoal pull %s'", ErrNotCached, r, r)
}

func (s *Store) findHub(r Ref) (Model, error) {
	cache := repoCache{s.s.Cache, r.Repo}
	commit, err := cache.commit(r.revision())
	if err != nil {
		return Model{}, err
	}
	if commit == "" {
		return Model{}, notHere(r)
	}
	files, err := cache.files(commit)
	if err != nil {
		return Model{}, err
	}
	m, err := inSnapshot(r, cache.snapshot(commit), files)
	if err == nil || errors.Is(err, ErrAmbiguous) {
		return m, err
	}
	return m, fmt.Errorf("%w (%w)", notHere(r), err)
}

// inSnapshot finds a model among the files of a folder.
func inSnapshot(r Ref, dir string, files []File) (Model, error) {
	c, err := choose(r, files)
	if err != nil {
		return Model{}, err
	}
	if c.index != "" {
		names, err := readIndex(filepath.Join(dir, c.index))
		if err != nil {
			return Model{}, err
		}
		more, err := shards(r, names, files)
		if err != nil {
			return Model{}, err
		}
		c.files = append(c.files, more...)
	}
	m := Model{Ref: r, Name: r.Repo, Path: dir, Files: len(c.files)}
	if c.gguf != "" {
		m.Path = filepath.Join(dir, filepath.FromSlash(c.gguf))
	}
	for _, f := range c.files {
		m.Bytes += f.Size
	}
	return m, nil
}

// readIndex lists the files that model.safetensors.index.json names.
func readIndex(path string) ([]string, error) {
	text, err := modelfile.Read(path, maxIndexBytes)
	if err != nil {
		return nil, onDisk(err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := modelfile.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("%w: %s is not an index of weights: %w", ErrProtocol, path, err)
	}
	names := map[string]bool{}
	for _, n := range index.WeightMap {
		if err := CheckFileName(n); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrProtocol, path, err)
		}
		if strings.Contains(n, "/") || filepath.Ext(n) != ".safetensors" {
			return nil, fmt.Errorf("%w: %s names %q, which is not a .safetensors file in the same folder", ErrProtocol, path, n)
		}
		names[n] = true
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: %s names no file", ErrProtocol, path)
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// short returns a file name for a text that cannot be one.
func short(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16] }
