// Package layout describes the folders of Hugging Face's cache: the names of models in it, and the files that
// a path refers to. It sends no request.
//
// The cache has one folder models--ORG--NAME for each repository:
//
//	blobs/DIGEST                   the content of a file, and DIGEST.incomplete while it is fetched
//	snapshots/COMMIT/path/of/file  relative symbolic links to blobs
//	refs/REVISION                  the commit that a branch or a tag had
package layout

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
)

// Names of folders in the cache.
const (
	RepoPrefix = "models--"
	Blobs      = "blobs"
	Snapshots  = "snapshots"
	Refs       = "refs"
)

// RepoFolder returns the name of the folder of a repository ORG/NAME.
func RepoFolder(repo string) string { return RepoPrefix + strings.ReplaceAll(repo, "/", "--") }

var hexDigits = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

func isGGUF(name string) bool { return strings.EqualFold(filepath.Ext(name), ".gguf") }

// NameOf returns the name by which clients request a model at a path: ORG/NAME
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

// cachedRepo returns the repository whose folder of the cache a path is in, or is.
func cachedRepo(abs string) string {
	for at := abs; at != filepath.Dir(at); at = filepath.Dir(at) {
		name, ok := strings.CutPrefix(filepath.Base(at), RepoPrefix)
		if !ok || name == "" {
			continue
		}
		rel, err := filepath.Rel(at, abs)
		first, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		if err != nil || !slices.Contains([]string{".", Snapshots, Blobs, Refs}, first) {
			return ""
		}
		return strings.ReplaceAll(name, "--", "/")
	}
	return ""
}

// Origin returns ORG/NAME@COMMIT for a snapshot folder of the cache or a file directly in it, and ""
// for every other path.
func Origin(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for _, at := range []string{abs, filepath.Dir(abs)} {
		commit, snapshots := filepath.Base(at), filepath.Dir(at)
		name, ok := strings.CutPrefix(filepath.Base(filepath.Dir(snapshots)), RepoPrefix)
		if ok && filepath.Base(snapshots) == Snapshots && hexDigits.MatchString(commit) {
			return strings.ReplaceAll(name, "--", "/") + "@" + commit
		}
	}
	return ""
}

// ErrSnapshot: a repository of the cache has no snapshot, or several and none is main.
var ErrSnapshot = errors.New("no snapshot")

// Locate returns the path of the model that a path refers to. For a repository's folder of the cache it is
// the snapshot of the main branch, or the only one. For a blob it is the .gguf file, or the folder of the
// snapshot that has it. For a .safetensors file it is its folder. Any other path is returned unchanged.
func Locate(path string) (string, error) {
	if filepath.Ext(path) == ".safetensors" {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
			return filepath.Dir(path), nil
		}
	}
	if blob := filepath.Base(path); filepath.Base(filepath.Dir(path)) == Blobs && hexDigits.MatchString(blob) {
		return ofBlob(filepath.Join(filepath.Dir(filepath.Dir(path)), Snapshots), blob, path)
	}
	if !isRepo(path) {
		return path, nil
	}
	snapshots := filepath.Join(path, Snapshots)
	entries, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	} else if err != nil {
		return "", err
	}
	main := filepath.Join(path, Refs, "main")
	text, err := modelfile.Read(main, 1<<10)
	switch {
	case err == nil:
		name := strings.TrimSpace(string(text))
		at := filepath.Join(snapshots, name)
		if st, err := os.Stat(at); err == nil && st.IsDir() && filepath.IsLocal(name) && filepath.Base(name) == name && name != "." {
			return at, nil
		}
		return "", fmt.Errorf("%w: %s names the snapshot %s, which is not in %s: pull the model again, or name a snapshot", ErrSnapshot,
			main, fmt.Sprintf("%.100q", name), snapshots)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	case len(entries) != 1:
		what := "no snapshot"
		var names []string
		for _, e := range entries[:min(len(entries), 4)] {
			names = append(names, e.Name())
		}
		if len(names) > 0 {
			what = strings.Join(names, ", ")
		}
		return "", fmt.Errorf("%w: %s holds %s and there is no refs/main: name one of them", ErrSnapshot, snapshots, what)
	}
	return filepath.Join(snapshots, entries[0].Name()), nil
}

// isRepo reports whether a path is, or links to, a repository's folder that is not a model itself.
func isRepo(path string) bool {
	if _, err := os.Stat(filepath.Join(path, "config.json")); err == nil {
		return false
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	return err == nil && strings.HasPrefix(filepath.Base(abs), RepoPrefix)
}

// ofBlob finds the file of a snapshot that is a link to a blob; otherwise is the answer
// when there is none.
func ofBlob(snapshots, blob, otherwise string) (at string, err error) {
	at = otherwise
	err = filepath.WalkDir(snapshots, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		if to, err := os.Readlink(p); err != nil || filepath.Base(to) != blob {
			return err
		}
		if at = p; !isGGUF(p) {
			at = filepath.Dir(p)
		}
		return fs.SkipAll
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return at, err
}
