package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// NameOf is what a model at a path is called, which is what clients name it by: ORG/NAME
// for anything in the hub's cache (the repository's folder, a snapshot, a file of one, a
// blob), the name of a .gguf file without its ending, else the name of the folder. A
// symbolic link that has another name keeps it, unless it leads into the cache.
func NameOf(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		abs = filepath.Clean(path)
	}
	if name := cachedRepo(abs); name != "" {
		return name
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		if name := cachedRepo(real); name != "" {
			return name
		}
	}
	base := filepath.Base(abs)
	if isGGUF(base) {
		return base[:len(base)-len(".gguf")]
	}
	return base
}

// cachedRepo is the repository whose folder of the cache a path is in, or is.
func cachedRepo(abs string) string {
	for at := abs; ; at = filepath.Dir(at) {
		rel, err := filepath.Rel(at, abs)
		if err != nil || at == filepath.Dir(at) {
			return ""
		}
		name := repoOfFolder(filepath.Base(at))
		if name == "" {
			continue
		}
		first, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		if slices.Contains([]string{".", snapshotDir, blobsDir, refsDir}, first) {
			return name
		}
		return ""
	}
}

// ErrSnapshot: a repository of the cache has no snapshot, or several and none is main.
var ErrSnapshot = errors.New("hub: no snapshot")

// Locate returns the folder of files that a path means: for a repository's folder of the
// cache the snapshot of its main branch, or its only one; else the path itself.
func Locate(path string) (string, error) {
	dir := path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		dir = real
	}
	if abs, err := filepath.Abs(dir); err != nil || repoOfFolder(filepath.Base(abs)) == "" {
		return path, nil
	}
	snapshots := filepath.Join(path, snapshotDir)
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	} else if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	cache := repoCache{filepath.Dir(abs), repoOfFolder(filepath.Base(abs))}
	commit, err := cache.commit("main")
	if err != nil {
		return "", err
	}
	if commit != "" {
		at := filepath.Join(snapshots, commit)
		if st, err := os.Stat(at); err == nil && st.IsDir() {
			return at, nil
		}
		return "", fmt.Errorf("%w: %s names the snapshot %s, which is not in %s: pull the model again, or name a snapshot", ErrSnapshot, cache.ref("main"), commit, snapshots)
	}
	if len(entries) != 1 {
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return "", fmt.Errorf("%w: %s holds %d snapshots and there is no refs/main: name one of them%s", ErrSnapshot, snapshots, len(entries), listed(names, 4))
	}
	return filepath.Join(snapshots, entries[0].Name()), nil
}
