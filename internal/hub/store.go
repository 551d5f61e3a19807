package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"
)

// Store fetches models and finds those on disk. Its methods may be called concurrently.
type Store struct {
	s     Settings
	c     *client
	chunk int64 // bytes of one request, where a file is fetched over several connections
}

// Open returns a store with these settings; Close ends its idle connections.
func Open(s Settings) *Store { return &Store{s: s, c: newClient(s), chunk: chunkBytes} }

func (s *Store) Close() { s.c.close() }

// Settings are those of Open.
func (s *Store) Settings() Settings { return s.s }

// Model is a model on this machine.
type Model struct {
	Ref   Ref
	Name  string // under which it is served
	Path  string // what to open: a folder, or a .gguf file
	Bytes int64
	Files int
}

const showEvery = 200 * time.Millisecond

// Pull fetches what is missing of a model and returns where it is. show, if not nil, gets
// the progress five times a second, from one goroutine, and a last time before Pull ends.
func (s *Store) Pull(ctx context.Context, r Ref, show func(Progress)) (Model, error) {
	switch {
	case r.Kind == Local:
		return Model{}, fmt.Errorf("%w: %s is a path on this machine, where there is nothing to pull", ErrRef, r)
	case s.s.Offline:
		return Model{}, fmt.Errorf("%w: HF_HUB_OFFLINE is set, so %s is not fetched: unset it, or name a model that is here", ErrOffline, r)
	}
	t := newTracker(r.String())
	stop := t.report(show, showEvery)
	defer stop()
	switch r.Kind {
	case Hub:
		return s.pullHub(ctx, r, t)
	case Registry:
		return s.pullRegistry(ctx, r, t)
	}
	return s.pullURL(ctx, r, t)
}

// Get is Find, and Pull when the model is not here. fetching is called before a pull.
func (s *Store) Get(ctx context.Context, r Ref, fetching func(), show func(Progress)) (Model, error) {
	m, err := s.Find(r)
	if !errors.Is(err, ErrNotHere) {
		return m, err
	}
	if !s.s.Offline && fetching != nil {
		fetching()
	}
	return s.Pull(ctx, r, show)
}

func (s *Store) pullHub(ctx context.Context, r Ref, t *tracker) (Model, error) {
	h := &hubAPI{s.c, s.s.Endpoint, s.s.Token}
	l, err := h.list(ctx, r)
	if err != nil {
		return Model{}, err
	}
	cache := repoCache{s.s.Cache, r.Repo}
	f := newFetcher(s, t)
	get := func(files []File) error {
		if err := h.complement(ctx, r, l.commit, files); err != nil {
			return err
		}
		blobs := make([]*blob, len(files))
		for i, file := range files {
			if blobs[i], err = h.blob(cache, l.commit, r, file); err != nil {
				return err
			}
		}
		return f.all(ctx, cache.dir(), r.String(), blobs, func(i int) error {
			return cache.link(l.commit, files[i].Name, filepath.Base(blobs[i].path))
		})
	}
	c, err := choose(r, l.files)
	if err != nil {
		return Model{}, err
	}
	files := c.files
	if c.index != "" {
		var first []File
		for _, file := range files {
			if file.Name == c.index {
				first = append(first, file)
			}
		}
		if err := get(first); err != nil {
			return Model{}, err
		}
		names, err := readIndex(filepath.Join(cache.snapshot(l.commit), c.index))
		if err != nil {
			return Model{}, err
		}
		more, err := shards(r, names, l.files)
		if err != nil {
			return Model{}, err
		}
		rest := append(more, files...)
		files = rest[:0]
		for _, file := range rest {
			if file.Name != c.index {
				files = append(files, file)
			}
		}
	}
	if err := get(files); err != nil {
		return Model{}, err
	}
	if err := cache.setCommit(r.revision(), l.commit); err != nil {
		return Model{}, err
	}
	return s.findHub(r)
}

// blob is a file of the hub in the cache. A file whose hash is not known is named after
// its commit, so that no other content gets its name.
func (h *hubAPI) blob(cache repoCache, commit string, r Ref, f File) (*blob, error) {
	if f.Size < 0 || f.Size > maxFileBytes {
		return nil, fmt.Errorf("%w: %s has %d bytes by the hub's word; at most %d", ErrProtocol, f.Name, f.Size, int64(maxFileBytes))
	}
	name := string(f.Digest)
	if name == "" {
		name = "unhashed-" + short(commit+"/"+f.Name)
	}
	return &blob{
		name: f.Name, url: h.fileURL(r.Repo, commit, f.Name), size: f.Size, digest: f.Digest,
		path: cache.blob(name), lock: cache.lock(name),
		send: func(req *http.Request) (*http.Response, error) {
			resp, err := h.send(req)
			return resp, h.explain(req.Context(), r, f.Name, err)
		},
	}, nil
}

// all fetches blobs, a few at once, and calls done after each. Two names of one content are
// fetched once.
func (f *fetcher) all(ctx context.Context, dir, what string, blobs []*blob, done func(i int) error) error {
	var need, total int64
	for _, b := range blobs {
		total += b.size
		if !b.present() {
			need += b.size - b.partial()
		}
	}
	if err := checkSpace(dir, need, what); err != nil {
		return err
	}
	f.track.expect(len(blobs), total)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, filesAtOnce)
	var group sync.WaitGroup
	for i, b := range blobs {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		group.Go(func() {
			defer func() { <-slots }()
			err := f.fetch(ctx, b)
			if err == nil {
				err = done(i)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}
