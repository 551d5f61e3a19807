package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/sys/flock"
)

// Entry is a model on disk, or a part of one.
type Entry struct {
	Model
	Format  string // safetensors, gguf, or adapter
	Commit  string // of the hub
	Problem string // why it cannot be served; "": it can
	Foreign bool   // in Ollama's store: used from there, never removed
}

// List returns the models of all caches, by name.
func (s *Store) List() ([]Entry, error) {
	var out []Entry
	for _, list := range []func() ([]Entry, error){s.listHub, s.listOwn, s.listOllama} {
		more, err := list()
		if err != nil {
			return nil, err
		}
		for _, e := range more {
			if !slices.ContainsFunc(out, func(o Entry) bool { return o.Ref == e.Ref }) {
				out = append(out, e)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Ref.String(), b.Ref.String()))
	})
	return out, nil
}

// entries reads a folder, which may be missing.
func entries(dir string) ([]fs.DirEntry, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, onDisk(err)
}

func (s *Store) listHub() (out []Entry, err error) {
	repos, err := entries(s.s.Cache)
	if err != nil {
		return nil, err
	}
	for _, d := range repos {
		repo := repoOfFolder(d.Name())
		if repo == "" {
			continue
		}
		cache := repoCache{s.s.Cache, repo}
		revisions, err := cache.revisions()
		if err != nil {
			return nil, err
		}
		snapshots, err := entries(filepath.Join(cache.dir(), layout.Snapshots))
		if err != nil {
			return nil, err
		}
		for _, snap := range snapshots {
			commit := snap.Name()
			if !commitHash.MatchString(commit) {
				continue
			}
			files, err := cache.files(commit)
			if err != nil {
				return nil, err
			}
			out = append(out, inCache(Ref{Kind: Hub, Repo: repo, Revision: revisionOf(revisions[commit], commit)},
				cache.snapshot(commit), commit, files)...)
		}
	}
	return out, nil
}

// revisionOf returns how a reference names a commit: "" for the main branch.
func revisionOf(names []string, commit string) string {
	switch {
	case slices.Contains(names, "main"):
		return ""
	case len(names) > 0:
		return names[0]
	}
	return commit
}

// inCache lists the models of one snapshot: the one in the folder, or each .gguf model.
func inCache(r Ref, dir, commit string, files []File) (out []Entry) {
	add := func(r Ref) {
		m, err := inSnapshot(r, dir, files)
		e := Entry{Model: m, Commit: commit, Format: "safetensors"}
		switch {
		case err != nil:
			e.Problem = strings.TrimPrefix(err.Error(), "hub: ")
			e.Ref, e.Name, e.Path = r, r.Repo, dir
			for _, f := range files {
				e.Bytes += f.Size
			}
		case isGGUF(m.Path):
			e.Format = "gguf"
			if rel, err := filepath.Rel(dir, m.Path); err == nil {
				e.Ref.File = filepath.ToSlash(rel)
			}
		case slices.ContainsFunc(files, func(f File) bool { return f.Name == adapterFile }) &&
			!slices.ContainsFunc(files, func(f File) bool { return f.Name == weightsFile }):
			e.Format = "adapter"
		}
		out = append(out, e)
	}
	if _, err := inSnapshot(r, dir, files); errors.Is(err, ErrAmbiguous) {
		for _, m := range ggufFiles(files) {
			own := r
			own.File = m.parts[0].Name
			add(own)
		}
		return out
	}
	add(r)
	return out
}

// revisions returns the names of refs by their commit.
func (c repoCache) revisions() (map[string][]string, error) {
	out := map[string][]string{}
	top := filepath.Join(c.dir(), layout.Refs)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") { // no name of a revision begins with a dot
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		if commit, err := c.commit(filepath.ToSlash(rel)); err == nil && commit != "" {
			out[commit] = append(out[commit], filepath.ToSlash(rel))
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return out, onDisk(err)
}

// listOwn lists models of registries and URLs: each has a file that holds its reference.
func (s *Store) listOwn() (out []Entry, err error) {
	for _, top := range []string{"registry", "url"} {
		err := filepath.WalkDir(filepath.Join(s.s.ModelsDir, top), func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != referenceFile {
				return err
			}
			text, err := modelfile.Read(p, maxRef)
			if err != nil {
				return err
			}
			r, err := Parse(strings.TrimSpace(string(text)))
			if err != nil {
				return nil //nolint:nilerr // a file of another program
			}
			m, err := s.Find(r)
			e := Entry{Model: m, Format: "gguf"}
			if err != nil {
				e.Ref, e.Name, e.Path, e.Problem = r, r.String(), filepath.Dir(p), strings.TrimPrefix(err.Error(), "hub: ")
			}
			out = append(out, e)
			return nil
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, onDisk(err)
		}
	}
	return out, nil
}

// listOllama lists the models that Ollama has pulled.
func (s *Store) listOllama() (out []Entry, err error) {
	top := filepath.Join(s.s.Ollama, "manifests")
	err = filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") { // no name of a revision begins with a dot
			return err
		}
		rel, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		r, err := Parse("ollama://" + filepath.ToSlash(filepath.Dir(rel)) + ":" + filepath.Base(rel))
		if err != nil {
			return nil //nolint:nilerr // a file of another program
		}
		if m, err := s.Find(r); err == nil {
			out = append(out, Entry{Model: m, Format: "gguf", Foreign: true})
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return out, err
}

// Remove deletes the models on disk that a reference names: all revisions and files of a
// repository, unless it names one. It returns the bytes that this freed.
func (s *Store) Remove(r Ref) (freed int64, err error) {
	all, err := s.List()
	if err != nil {
		return 0, err
	}
	var found, foreign bool
	for _, e := range all {
		if !e.Ref.within(r) {
			continue
		}
		if e.Foreign {
			foreign = true
			continue
		}
		found = true
		n, err := s.remove(e)
		if freed += n; err != nil {
			return freed, onDisk(err)
		}
	}
	switch {
	case found:
		return freed, nil
	case foreign:
		return 0, fmt.Errorf("%w: %s is in Ollama's store: remove it with 'ollama rm'", ErrNotCached, r)
	}
	return 0, fmt.Errorf("%w: %s: 'shoal models' lists the models on this machine", ErrNotCached, r)
}

// within reports whether r names the same model as wide, or a part of it.
func (r Ref) within(wide Ref) bool {
	if r.Kind != Hub || wide.Kind != Hub {
		return r == wide
	}
	return r.Repo == wide.Repo && (wide.Revision == "" || r.revision() == wide.revision()) &&
		(wide.File == "" || r.File == wide.File) &&
		(wide.Quant == "" || r.File != "" && namesQuant(r.File[:len(r.File)-len(".gguf")], wide.Quant))
}

func (s *Store) remove(e Entry) (freed int64, err error) {
	switch e.Ref.Kind {
	case Hub:
		return s.removeHub(e)
	case URL:
		return s.removeURL(e)
	}
	dir := s.registryDir(e.Ref)
	used := func() map[string]bool { // blobs that a model links to
		out := map[string]bool{}
		_ = filepath.WalkDir(filepath.Join(s.s.ModelsDir, "registry"), func(p string, d fs.DirEntry, err error) error {
			if to, linkErr := os.Readlink(p); err == nil && linkErr == nil {
				out[filepath.Base(to)] = true
			}
			return nil
		})
		return out
	}
	before := used()
	if err := os.RemoveAll(dir); err != nil {
		return 0, err
	}
	after := used()
	for name := range before {
		if at := filepath.Join(s.s.ModelsDir, layout.Blobs, name); !after[name] {
			freed += removeFile(at)
		}
	}
	return freed, nil
}

// removeURL removes the folder of a model, unless a process fetches a newer version of it.
func (s *Store) removeURL(e Entry) (freed int64, err error) {
	at, err := s.urlPath(e.Ref) // the path of the entry is another one if the file is missing
	if err != nil {
		return 0, err
	}
	lock, err := lockFile(at + urlLock)
	switch {
	case errors.Is(err, flock.ErrHeld):
		return 0, fmt.Errorf("%w: %s is being fetched: end that, or try again", ErrBusy, e.Ref)
	case err == nil:
		defer lock.Close()
	case !errors.Is(err, errors.ErrUnsupported):
		return 0, err
	}
	return e.Bytes, os.RemoveAll(filepath.Dir(at))
}

// removeHub removes the links of a model, and then the files without a link.
func (s *Store) removeHub(e Entry) (freed int64, err error) {
	cache := repoCache{s.s.Cache, e.Ref.Repo}
	snapshot := cache.snapshot(e.Commit)
	files, err := cache.files(e.Commit)
	if err != nil {
		return 0, err
	}
	if models := ggufFiles(files); e.Ref.File != "" && len(models) > 1 { // perhaps an incomplete one
		for _, m := range models {
			if m.parts[0].Name != e.Ref.File {
				continue
			}
			for _, p := range m.parts {
				if err := os.Remove(filepath.Join(snapshot, filepath.FromSlash(p.Name))); err != nil {
					return 0, err
				}
			}
		}
	} else {
		if err := os.RemoveAll(snapshot); err != nil {
			return 0, err
		}
		revisions, err := cache.revisions()
		if err != nil {
			return 0, err
		}
		for _, name := range revisions[e.Commit] {
			if err := os.Remove(cache.ref(name)); err != nil {
				return 0, err
			}
		}
	}
	used := map[string]bool{}
	err = filepath.WalkDir(filepath.Join(cache.dir(), layout.Snapshots), func(p string, d fs.DirEntry, err error) error {
		if to, linkErr := os.Readlink(p); linkErr == nil {
			used[filepath.Base(to)] = true
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	blobs, err := entries(filepath.Join(cache.dir(), layout.Blobs))
	if err != nil {
		return 0, err
	}
	for _, b := range blobs {
		digest, _, _ := strings.Cut(b.Name(), ".")
		if used[digest] {
			continue
		}
		l, err := lockFile(cache.lock(digest))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // a process fetches it now
		}
		freed += removeFile(cache.blob(b.Name()))
		if l != nil {
			l.Close()
		}
	}
	if left, err := entries(filepath.Join(cache.dir(), layout.Snapshots)); err != nil || len(left) > 0 {
		return freed, err
	}
	if left, err := entries(filepath.Join(cache.dir(), layout.Blobs)); err != nil || len(left) > 0 {
		return freed, err
	}
	return freed, errors.Join(os.RemoveAll(cache.dir()), os.RemoveAll(filepath.Dir(cache.lock("x"))))
}

// removeFile removes a file and returns its size.
func removeFile(at string) int64 {
	st, err := os.Lstat(at)
	if err != nil || os.Remove(at) != nil {
		return 0
	}
	return st.Size()
}

// Recorded is a file whose hash was recorded when it was fetched.
type Recorded struct {
	Path   string
	Size   int64
	Digest Digest
}

// RecordedAt lists the files of a model, a folder or a .gguf file, whose hashes are known: the
// names of their blobs, or a file next to the one of a URL.
func RecordedAt(path string) (out []Recorded, err error) {
	add := func(p string) error {
		st, err := os.Stat(p)
		if err != nil || !st.Mode().IsRegular() {
			return err
		}
		r := Recorded{Path: p, Size: st.Size()}
		if real, err := filepath.EvalSymlinks(p); err == nil && filepath.Base(filepath.Dir(real)) == layout.Blobs {
			r.Digest = digestOf(strings.TrimPrefix(filepath.Base(real), "sha256-"))
		}
		if text, err := modelfile.Read(p+sumSuffix, 128); err == nil && r.Digest == "" {
			r.Digest = digestOf(string(text))
		}
		if r.Digest != "" {
			out = append(out, r)
		}
		return nil
	}
	if st, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	} else if !st.IsDir() {
		m := splitName.FindStringSubmatch(path)
		if m == nil {
			return out, add(path)
		}
		parts, err := filepath.Glob(globLiteral.Replace(m[1]) + "-[0-9][0-9][0-9][0-9][0-9]-of-" + m[3] + ".gguf")
		for _, p := range parts {
			err = errors.Join(err, add(p))
		}
		return out, err
	}
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return add(p)
	})
	return out, err
}

var globLiteral = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)
