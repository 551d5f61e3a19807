package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Store fetches models and finds those on disk. Its methods may be called concurrently.
type Store struct {
	s     Settings
	c     *client
	chunk int64 // bytes of one request, where a file is fetched over several connections

	// Observe, if not nil, makes an observer of a file of that size. Set it before the first Pull.
	Observe func(size int64) Observer
}

// Observer gets the bytes of one file while it is fetched, so that its caller need not read the
// file again. The bytes of a file that an earlier pull began come from the disk.
type Observer interface {
	io.Writer                                  // takes the bytes in order, from one goroutine; errors are ignored
	Complete(ctx context.Context, path string) // path is the final name of the file, whose hash was checked
}

// Open returns a store with these settings; Close ends its idle connections.
func Open(s Settings) *Store { return &Store{s: s, c: newClient(s), chunk: chunkBytes} }

func (s *Store) Close() { s.c.close() }

// Settings configure Open.
func (s *Store) Settings() Settings { return s.s }

// Model is a model on this machine.
type Model struct {
	Ref   Ref
	Name  string // under which it is served
	Path  string // a folder, or a .gguf file
	Bytes int64
	Files int
}

const showEvery = 200 * time.Millisecond

// Pull fetches the missing files of a model and returns its path. show, if not nil, gets
// the progress five times a second, from one goroutine, and a last time before Pull ends.
func (s *Store) Pull(ctx context.Context, r Ref, show func(Progress)) (Model, error) {
	switch {
	case r.Kind == Local:
		return Model{}, fmt.Errorf("%w: %s is a path on this machine, where there is nothing to pull", ErrRef, r)
	case s.s.Offline:
		return Model{}, fmt.Errorf("%w: HF_HUB_OFFLINE is set, so %s is not fetched: unset it and run 'shoal pull %s', or name a model "+
			"that is here", ErrOffline, r, r)
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

// Get is Find, and Pull when the model is not here.
func (s *Store) Get(ctx context.Context, r Ref, show func(Progress)) (Model, error) {
	m, err := s.Find(r)
	if !errors.Is(err, ErrNotCached) {
		return m, err
	}
	return s.Pull(ctx, r, show)
}

// Config returns the folder with config.json of a repository of the hub. It fetches that
// file alone when the model is not here.
func (s *Store) Config(ctx context.Context, r Ref) (string, error) {
	if m, err := s.Find(r); err == nil || r.Kind != Hub {
		return m.Path, err
	}
	if s.s.Offline {
		return "", fmt.Errorf("%w: HF_HUB_OFFLINE is set, so the config of %s is not fetched", ErrOffline, r)
	}
	p, err := s.repository(ctx, r, newTracker(r.String()))
	if err != nil {
		return "", err
	}
	files := p.named("config.json")
	if len(files) == 0 {
		return "", fmt.Errorf("%w: %s has no config.json", ErrNotFound, r)
	}
	return p.cache.snapshot(p.commit), p.get(ctx, files)
}

func (s *Store) pullHub(ctx context.Context, r Ref, t *tracker) (Model, error) {
	p, err := s.repository(ctx, r, t)
	if err != nil {
		return Model{}, err
	}
	c, err := choose(r, p.files)
	if err != nil {
		return Model{}, err
	}
	files := c.files
	if c.index != "" {
		if err := p.get(ctx, p.named(c.index)); err != nil {
			return Model{}, err
		}
		names, err := readIndex(filepath.Join(p.cache.snapshot(p.commit), c.index))
		if err != nil {
			return Model{}, err
		}
		more, err := shards(r, names, p.files)
		if err != nil {
			return Model{}, err
		}
		files = append(slices.DeleteFunc(files, func(f File) bool { return f.Name == c.index }), more...)
	}
	if err := p.get(ctx, files); err != nil {
		return Model{}, err
	}
	if err := p.cache.setCommit(r.revision(), p.commit); err != nil {
		return Model{}, err
	}
	return s.findHub(r)
}

// repository is a repository of the hub at one commit, and its place in the cache.
type repository struct {
	listing
	h     *hubAPI
	r     Ref
	cache repoCache
	f     *fetcher
}

func (s *Store) repository(ctx context.Context, r Ref, t *tracker) (*repository, error) {
	h := &hubAPI{s.c, s.s.Endpoint, s.s.Token}
	l, err := h.list(ctx, r)
	return &repository{l, h, r, repoCache{s.s.Cache, r.Repo}, newFetcher(s, t)}, err
}

// named returns the file of that name, or nil if there is none.
func (p *repository) named(name string) (out []File) {
	for _, f := range p.files {
		if f.Name == name {
			out = append(out, f)
		}
	}
	return out
}

// get fetches files and links them into the snapshot.
func (p *repository) get(ctx context.Context, files []File) (err error) {
	if err := p.h.complement(ctx, p.r, p.commit, files); err != nil {
		return err
	}
	blobs := make([]*blob, len(files))
	for i, f := range files {
		if blobs[i], err = p.h.blob(p.cache, p.commit, p.r, f); err != nil {
			return err
		}
	}
	return p.f.all(ctx, p.cache.dir(), p.r.String(), blobs, func(i int) error {
		return p.cache.link(p.commit, files[i].Name, filepath.Base(blobs[i].path))
	})
}

// blob returns a file of the hub in the cache. A file whose hash is not known is named after
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
