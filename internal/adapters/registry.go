// Package adapters has the names of the LoRA adapters that a coordinator serves, and where their files
// are. Adapters that came over the API are copied, so they survive their source and, with a data
// directory, the process.
package adapters

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// Entry is an adapter with a name.
type Entry struct {
	Name    string    `json:"name"`
	ID      lora.ID   `json:"id"`
	Root    string    `json:"root"` // where the operator named its files
	Created time.Time `json:"created"`
	Rank    int       `json:"rank"`  // the largest of its matrices
	Bytes   int64     `json:"bytes"` // memory on one socket, at most
	Stored  bool      `json:"-"`     // it came over the API: the registry has a copy
}

// Errors that callers compare with errors.Is.
var (
	ErrName    = errors.New("adapters: bad name")
	ErrExists  = errors.New("adapters: name is in use")
	ErrUnknown = engine.ErrNoAdapter
	ErrFull    = errors.New("adapters: too many adapters")
	ErrOff     = engine.ErrAdaptersOff
)

// MaxAdapters is the maximum number of names.
const MaxAdapters = 1024

const (
	listFile = "adapters.json"
	maxList  = 4 << 20
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}$`)

// Config configures a registry.
type Config struct {
	Model *model.Config
	Hash  string   // of the model; adapters that were stored for another one are not served
	Names []string // of the model, which adapters cannot have
	// Dir stores adapters of the API; "": a temporary folder, which Close removes.
	Dir string
	// From is the folder from which the API may load adapters; "": it may not.
	From string
}

// Registry has the adapters by name. Its methods may be called concurrently.
type Registry struct {
	c     Config
	from  *os.Root // nil: the API may not load adapters
	store *lora.Store
	copy  func(fs.FS) (lora.ID, error) // copies an adapter into the store

	loads sync.Mutex // held while an adapter gets a name; it may take long to read, so mu is not held meanwhile

	mu      sync.Mutex
	named   map[string]Entry
	folders map[lora.ID]string // of all adapters that had a name since the start, for requests that continue
	kept    []stored           // adapters in the list that are not served: of this model first, then of other models
}

// stored is the file with the adapters of the API.
type stored struct {
	Model    string   `json:"model"`
	Adapters []Entry  `json:"adapters"`
	Others   []stored `json:"others,omitempty"` // of models that had this folder before, the last one first
}

// Open opens a registry. It returns the errors of stored adapters that can no longer be served apart: they
// keep no other from being served.
func Open(c Config) (_ *Registry, skipped []error, err error) {
	r := &Registry{c: c, named: map[string]Entry{}, folders: map[lora.ID]string{}, kept: []stored{{Model: c.Hash}}}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if c.From != "" {
		if r.from, err = os.OpenRoot(c.From); err != nil {
			return nil, nil, fmt.Errorf("adapters: the folder for adapters of the API: %w", err)
		}
	}
	if r.store, err = lora.OpenStore(c.Dir, 0); err != nil {
		return nil, nil, err
	}
	if r.copy = r.store.Copy; c.Dir == "" {
		return r, nil, nil
	}
	text, err := modelfile.Read(filepath.Join(c.Dir, listFile), maxList)
	var list stored
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err == nil:
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("adapters: %s: %w", filepath.Join(c.Dir, listFile), err)
	}
	lists := append([]stored{{Model: list.Model, Adapters: list.Adapters}}, list.Others...)
	for _, l := range lists {
		if l.Model != c.Hash {
			for _, e := range l.Adapters {
				skipped = append(skipped,
					fmt.Errorf("adapters: %s was loaded for model %.12s, this is %.12s: load it again, or serve that model", e.Name, l.Model, c.Hash))
			}
			if len(l.Adapters) > 0 {
				r.kept = append(r.kept, stored{Model: l.Model, Adapters: l.Adapters})
			}
			continue
		}
		for _, e := range l.Adapters {
			opened, err := r.open(e.Name, r.store.Path(e.ID), e.Root, e.Created)
			if err != nil {
				skipped = append(skipped, err)
				r.kept[0].Adapters = append(r.kept[0].Adapters, e)
				continue
			}
			opened.Stored = true
			r.named[e.Name], r.folders[e.ID] = opened, r.store.Path(e.ID)
		}
	}
	if err := r.removeUnnamed(); err != nil { // it takes space and nothing else
		skipped = append(skipped, err)
	}
	return r, skipped, nil
}

// removeUnnamed removes the copies of adapters that were unloaded. No request of this process uses them yet.
func (r *Registry) removeUnnamed() error {
	files, err := os.ReadDir(r.c.Dir)
	if err != nil {
		return fmt.Errorf("adapters: %w", err)
	}
	named := map[string]bool{}
	for _, e := range r.named {
		named[e.ID.String()] = true
	}
	for _, l := range r.kept {
		for _, e := range l.Adapters {
			named[e.ID.String()] = true
		}
	}
	for _, f := range files {
		var id lora.ID
		if id.UnmarshalText([]byte(f.Name())) != nil || !f.IsDir() || named[id.String()] {
			continue
		}
		if err := r.store.Remove(id); err != nil {
			return fmt.Errorf("adapters: %w", err)
		}
	}
	return nil
}

// Close removes the temporary files.
func (r *Registry) Close() {
	if r.from != nil {
		_ = r.from.Close()
	}
	if r.store != nil {
		r.store.Close()
	}
}

// open checks the adapter in a folder, which may take long.
func (r *Registry) open(name, dir, root string, created time.Time) (Entry, error) {
	if err := r.checkName(name); err != nil {
		return Entry{}, err
	}
	a, err := lora.Open(dir)
	if err != nil {
		return Entry{}, err
	}
	defer a.Close()
	if err := shard.CheckAdapter(r.c.Model, a); err != nil {
		return Entry{}, err
	}
	e := Entry{Name: name, ID: a.ID, Root: root, Created: created, Bytes: shard.AdapterBytes(r.c.Model, a)}
	for i := range a.Pairs {
		e.Rank = max(e.Rank, a.Pairs[i].Rank())
	}
	return e, nil
}

func (r *Registry) checkName(name string) error {
	if !validName.MatchString(name) || slices.Contains(r.c.Names, name) {
		return fmt.Errorf("%w: %.140q: want 1 to 128 letters, digits and . _ - / : @, beginning with a letter or digit, and not the "+
			"name of the model", ErrName, name)
	}
	return nil
}

// Add serves the adapter in a folder of the operator, which must not change while it is served.
func (r *Registry) Add(name, dir string) (Entry, error) {
	r.loads.Lock()
	defer r.loads.Unlock()
	if err := r.free(name); err != nil {
		return Entry{}, err
	}
	e, err := r.open(name, dir, dir, time.Now())
	if err != nil {
		return Entry{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named[name], r.folders[e.ID] = e, dir
	return e, nil
}

// free checks that a name is valid and free. The caller holds loads.
func (r *Registry) free(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkName(name); err != nil {
		return err
	}
	if _, ok := r.named[name]; ok {
		return fmt.Errorf("%w: %q: unload it first, or use another name", ErrExists, name)
	}
	if len(r.named) >= MaxAdapters {
		return fmt.Errorf("%w: %d are loaded: unload some first", ErrFull, len(r.named))
	}
	return nil
}

// Load copies an adapter from a folder below Config.From and serves it. path is relative to that folder,
// or absolute in it. Symbolic links that leave the folder are not followed.
func (r *Registry) Load(name, path string) (Entry, error) {
	if r.from == nil {
		return Entry{}, ErrOff
	}
	r.loads.Lock()
	defer r.loads.Unlock()
	if err := r.free(name); err != nil {
		return Entry{}, err
	}
	inside := path
	if filepath.IsAbs(path) {
		var err error
		if inside, err = filepath.Rel(r.c.From, path); err != nil {
			return Entry{}, fmt.Errorf("adapters: %.200q is not in the folder for adapters: %w", path, fs.ErrPermission)
		}
	}
	if !filepath.IsLocal(inside) {
		return Entry{}, fmt.Errorf("adapters: %.200q is not in the folder for adapters: %w", path, fs.ErrPermission)
	}
	folder, err := r.from.OpenRoot(inside)
	if err != nil {
		return Entry{}, fmt.Errorf("adapters: %w", err)
	}
	defer folder.Close()
	id, err := r.copy(folder.FS())
	if err != nil {
		return Entry{}, err
	}
	e, err := r.open(name, r.store.Path(id), path, time.Now())
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		e.Stored = true
		r.named[name] = e
		if err = r.save(); err != nil {
			delete(r.named, name)
		}
	}
	if err != nil {
		r.remove(id)
		return Entry{}, err
	}
	r.folders[id] = r.store.Path(id)
	return e, nil
}

// Unload releases a name. Requests that use the adapter continue.
func (r *Registry) Unload(name string) (Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.named[name]
	if !ok {
		return Entry{}, fmt.Errorf("adapters: %.140q: %w", name, ErrUnknown)
	}
	delete(r.named, name)
	kept := r.kept[0].Adapters // an older one of this name, which is not served
	r.kept[0].Adapters = slices.DeleteFunc(slices.Clone(kept), func(e Entry) bool { return e.Name == name })
	if err := r.save(); err != nil {
		r.named[name], r.kept[0].Adapters = e, kept
		return Entry{}, err
	}
	return e, nil
}

// remove removes the copy of an adapter that got no name, unless it has or had another one. The caller holds mu.
func (r *Registry) remove(id lora.ID) {
	if _, had := r.folders[id]; had {
		return
	}
	for _, l := range r.kept {
		if slices.ContainsFunc(l.Adapters, func(e Entry) bool { return e.ID == id }) {
			return
		}
	}
	_ = r.store.Remove(id)
}

// save writes the list of stored adapters. The caller holds mu.
func (r *Registry) save() error {
	if r.c.Dir == "" {
		return nil
	}
	list := stored{Model: r.c.Hash, Others: r.kept[1:]}
	for _, name := range slices.Sorted(maps.Keys(r.named)) {
		if e := r.named[name]; e.Stored {
			list.Adapters = append(list.Adapters, e)
		}
	}
	for _, e := range r.kept[0].Adapters {
		if served, taken := r.named[e.Name]; !taken || !served.Stored {
			list.Adapters = append(list.Adapters, e)
		}
	}
	for {
		text, err := json.MarshalIndent(list, "", " ")
		switch {
		case err != nil:
			return err
		case len(text) <= maxList:
			return wholefile.Write(filepath.Join(r.c.Dir, listFile), text, 0o600)
		case len(list.Others) == 0:
			return fmt.Errorf("%w: their list has %d bytes, at most %d: unload some first", ErrFull, len(text), maxList)
		}
		list.Others = list.Others[:len(list.Others)-1] // the model that is away for the longest time
	}
}

// Get returns the adapter of a name.
func (r *Registry) Get(name string) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.named[name]
	return e, ok
}

// List returns all adapters by name.
func (r *Registry) List() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.named), func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
}

// Folder returns the folder with the files of an adapter that has or had a name.
func (r *Registry) Folder(id lora.ID) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir, ok := r.folders[id]
	return dir, ok
}
