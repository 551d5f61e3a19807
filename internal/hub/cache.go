package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// .locks/models--ORG--NAME/DIGEST.lock in the cache's own folder is locked by the process
// that fetches the blob; DIGEST.incomplete holds its first bytes meanwhile.
const (
	locksDir   = ".locks"
	incomplete = ".incomplete"
)

// repoOfFolder is ORG/NAME of such a folder, or "" for another folder.
func repoOfFolder(folder string) string {
	id, ok := strings.CutPrefix(folder, layout.RepoPrefix)
	if id = strings.Replace(id, "--", "/", 1); !ok || checkRepo(id) != nil {
		return ""
	}
	return id
}

// repoCache is one repository in the cache.
type repoCache struct {
	cache, repo string
}

func (c repoCache) dir() string          { return filepath.Join(c.cache, layout.RepoFolder(c.repo)) }
func (c repoCache) blob(d string) string { return filepath.Join(c.dir(), layout.Blobs, d) }
func (c repoCache) snapshot(commit string) string {
	return filepath.Join(c.dir(), layout.Snapshots, commit)
}
func (c repoCache) ref(revision string) string {
	return filepath.Join(c.dir(), layout.Refs, filepath.FromSlash(revision))
}
func (c repoCache) lock(d string) string {
	return filepath.Join(c.cache, locksDir, layout.RepoFolder(c.repo), d+".lock")
}

// commit returns the commit of a revision when it was last fetched; "": it was not.
func (c repoCache) commit(revision string) (string, error) {
	if commitHash.MatchString(revision) {
		return revision, nil
	}
	text, err := modelfile.Read(c.ref(revision), 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	commit := strings.TrimSpace(string(text))
	if errors.Is(err, fs.ErrPermission) {
		return "", onDisk(err)
	} else if err != nil || !commitHash.MatchString(commit) {
		return "", fmt.Errorf("%w: %s holds no commit: remove it and pull the model again", ErrDamaged, c.ref(revision))
	}
	return commit, nil
}

// setCommit records the commit of a revision.
func (c repoCache) setCommit(revision, commit string) error {
	if revision == commit {
		return nil
	}
	return writeFile(c.ref(revision), []byte(commit))
}

// link gives a blob its name in a snapshot. Where the file system has no symbolic links
// the blob moves there, as huggingface_hub does.
func (c repoCache) link(commit, name, digest string) error {
	at := filepath.Join(c.snapshot(commit), filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return onDisk(err)
	}
	to, err := filepath.Rel(filepath.Dir(at), c.blob(digest))
	if err != nil {
		return err
	}
	if old, err := os.Readlink(at); err == nil && old == to {
		return nil
	}
	return replaceLink(to, c.blob(digest), at)
}

// replaceLink makes at a symbolic link to to, in one step. Without symbolic links blob moves
// to at; "": it must stay where it is. Other processes may do the same, also of containers in which each is process 1.
func replaceLink(to, blob, at string) error {
	tmp := fmt.Sprintf("%s.%x.new", at, rand.Uint64())
	if err := os.Symlink(to, tmp); err != nil {
		if blob == "" {
			return onDisk(err)
		}
		return onDisk(os.Rename(blob, at))
	}
	if err := os.Rename(tmp, at); err != nil {
		os.Remove(tmp)
		return onDisk(err)
	}
	return nil
}

// files lists a snapshot as a hub would list the repository. Links whose blob is not there
// are left out.
func (c repoCache) files(commit string) ([]File, error) {
	dir := c.snapshot(commit)
	var out []File
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := os.Stat(p)
		if err != nil || !st.Mode().IsRegular() {
			return nil //nolint:nilerr // a link to nothing is a file that is not here
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		f := File{Name: filepath.ToSlash(rel), Size: st.Size()}
		if to, err := os.Readlink(p); err == nil {
			f.Digest = digestOf(filepath.Base(to))
		}
		if out = append(out, f); len(out) > maxFiles {
			return fmt.Errorf("%w: %s has more than %d files", ErrUnsupported, dir, maxFiles)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return out, onDisk(err)
}

// writeFile writes a small file in one step.
func writeFile(at string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return onDisk(err)
	}
	return onDisk(wholefile.Write(at, text, 0o644))
}

// onDisk adds advice to an error about a full disk or a missing permission.
func onDisk(err error) error {
	switch {
	case err == nil || errors.Is(err, ErrSpace) || errors.Is(err, ErrPermission):
		return err
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w; free some, or set HF_HUB_CACHE and SHOAL_MODELS to folders on a larger disk", ErrSpace, err)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w; give this user the folder, or set HF_HUB_CACHE and SHOAL_MODELS to folders that it may write",
			ErrPermission, err)
	}
	return err
}
