package hub

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/sys/flock"
	"github.com/shoal-llm/shoal/internal/sys/wholefile"
)

// blob is one file to fetch.
//
// The file path.incomplete is always a prefix of the content: several connections fetch
// chunks ahead, and one writer appends them in order. A process that is killed loses only
// the chunks in memory, and huggingface_hub can continue the file.
type blob struct {
	name   string // for people
	url    string
	size   int64
	digest Digest // "": only the size is checked
	path   string // the final name
	lock   string
	etag   string // the validator of a file without a digest, for If-Range
	part   string // where its first bytes are; "": path.incomplete
	sum    string // set by fetch: the hash of the fetched bytes
	seen   Observer
	send   func(*http.Request) (*http.Response, error)
}

const (
	connections        = 8       // in total
	window             = 4       // chunks of one file that are fetched ahead
	chunkBytes         = 8 << 20 // of one request
	filesAtOnce        = 4       // maximum number of files in work
	lockPoll           = 200 * time.Millisecond
	defaultLockTimeout = 10 * time.Minute // without progress of the process that holds a lock
)

// fetcher fetches blobs. Its limits are fields for tests.
type fetcher struct {
	c           *client
	track       *tracker
	slots       chan struct{} // one for each open connection
	chunk       int64
	lockTimeout time.Duration
	observe     func(size int64) Observer // nil: no observer
}

func newFetcher(s *Store, t *tracker) *fetcher {
	return &fetcher{c: s.c, track: t, slots: make(chan struct{}, connections), chunk: s.chunk, lockTimeout: defaultLockTimeout,
		observe: s.Observe}
}

// present reports whether the file is there, complete. A name is given only to checked
// content, so the size is enough.
func (b *blob) present() bool {
	st, err := os.Stat(b.path)
	return err == nil && st.Mode().IsRegular() && st.Size() == b.size
}

func (b *blob) partPath() string {
	if b.part != "" {
		return b.part
	}
	return b.path + incomplete
}

// partial returns how many bytes of an unfinished download are on disk.
func (b *blob) partial() int64 {
	st, err := os.Stat(b.partPath())
	if err != nil || st.Size() > b.size || b.digest == "" && b.etag == "" {
		return 0
	}
	return st.Size()
}

// fetch makes b.path hold the file.
func (f *fetcher) fetch(ctx context.Context, b *blob) error {
	if !b.present() {
		unlock, err := f.hold(ctx, b)
		if err != nil {
			return err
		}
		defer unlock()
		if !b.present() { // else another process has fetched it meanwhile
			if err := f.fill(ctx, b); err != nil {
				return fmt.Errorf("%s: %w", b.name, err)
			}
		}
	}
	f.track.finish(b.name, b.size)
	return nil
}

// hold takes the lock of a blob. The kernel drops it with the process that holds it.
func (f *fetcher) hold(ctx context.Context, b *blob) (unlock func(), err error) {
	for _, dir := range []string{filepath.Dir(b.path), filepath.Dir(b.lock)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, onDisk(err)
		}
	}
	defer f.track.wait(b.name, "")
	var last int64 = -1
	moved := time.Now()
	for {
		l, err := lockFile(b.lock)
		switch {
		case errors.Is(err, errors.ErrUnsupported): // no locks on this system: two pulls would fetch twice
			return func() {}, nil
		case err == nil:
			return func() { l.Close() }, nil
		}
		if !errors.Is(err, flock.ErrHeld) {
			return nil, onDisk(err)
		}
		var size int64
		for _, at := range []string{b.path, b.partPath()} {
			if st, err := os.Stat(at); err == nil {
				size = min(st.Size(), b.size)
				break
			}
		}
		if size != last {
			last, moved = size, time.Now()
			f.track.set(b.name, size)
		} else if time.Since(moved) > f.lockTimeout {
			return nil, fmt.Errorf("%w: the holder of %s has fetched nothing of %s for %s: end it (lsof or fuser finds it), or try again",
				ErrBusy, b.lock, b.name, f.lockTimeout)
		}
		f.track.wait(b.name, "another process fetches "+b.name)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(lockPoll):
		}
	}
}

// lockFile locks a file alone. filelock of Python may remove a file after its use; a lock
// on a removed file excludes no other process, so the name is checked afterwards.
func lockFile(path string) (*os.File, error) {
	for range 100 {
		if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o664); err == nil {
			f.Close() // made with permissions that other users of the cache can lock
		}
		l, err := flock.Open(path, flock.Own)
		if err != nil {
			if l != nil {
				l.Close()
			}
			return nil, err
		}
		mine, err := l.Stat()
		if err == nil {
			var now os.FileInfo
			if now, err = os.Stat(path); err == nil && os.SameFile(mine, now) {
				return l, nil
			}
		}
		l.Close()
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
	return nil, flock.ErrHeld
}

// fill fetches the missing bytes, checks the content and gives it its name. Wrong content is
// fetched again once.
func (f *fetcher) fill(ctx context.Context, b *blob) error {
	part := b.partPath()
	for try := range 2 {
		err := f.complete(ctx, b, part)
		if errors.Is(err, ErrDamaged) {
			os.Remove(part)
			f.track.set(b.name, 0)
			if try == 0 {
				continue
			}
		}
		if err != nil {
			return err
		}
		break
	}
	if err := os.Rename(part, b.path); err != nil {
		return onDisk(err)
	}
	if b.seen != nil {
		b.seen.Complete(ctx, b.path)
	}
	return onDisk(wholefile.SyncDir(filepath.Dir(b.path)))
}

// complete appends to part until it has the size and the hash of the blob.
func (f *fetcher) complete(ctx context.Context, b *blob, part string) error {
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return onDisk(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return onDisk(err)
	}
	have := st.Size()
	if have > b.size || b.digest == "" && b.etag == "" {
		if err := file.Truncate(0); err != nil {
			return onDisk(err)
		}
		have = 0
	}
	w := &appender{file: file, at: have, hash: b.digest.hasher(b.size), b: b, track: f.track}
	var read io.Writer = w.hash
	if f.observe != nil {
		b.seen = f.observe(b.size)
		read = io.MultiWriter(w.hash, b.seen)
	}
	f.track.set(b.name, have)
	if have > 0 {
		f.track.wait(b.name, "reading the part of "+b.name+" that is here")
		if _, err := io.Copy(read, io.NewSectionReader(file, 0, have)); err != nil {
			return onDisk(err)
		}
		f.track.wait(b.name, "")
	}
	if err := f.fetchFrom(ctx, b, w); err != nil {
		return err
	}
	if b.digest != "" && !b.digest.matches(w.hash) {
		return fmt.Errorf("%w: the bytes from %s have another %s than the announced %s: try again later; if the error stays, the server or a "+
			"proxy in between is at fault", ErrDamaged, hostOf(b.url), b.digest.kind(), b.digest)
	}
	b.sum = fmt.Sprintf("%x", w.hash.Sum(nil))
	if err := file.Sync(); err != nil { // its name must not outlive a power cut without its content
		return onDisk(err)
	}
	return onDisk(file.Close())
}

// appender writes a file in order and computes its hash.
type appender struct {
	file  *os.File
	at    int64
	hash  hash.Hash
	b     *blob
	track *tracker
}

func (w *appender) append(p []byte) error {
	if _, err := w.file.WriteAt(p, w.at); err != nil {
		return onDisk(err)
	}
	w.at += int64(len(p))
	w.hash.Write(p)
	if w.b.seen != nil {
		_, _ = w.b.seen.Write(p)
	}
	return nil
}

// fetchFrom fetches from w.at to the end: large files over several connections, if the server supports ranges.
func (f *fetcher) fetchFrom(ctx context.Context, b *blob, w *appender) error {
	if w.at == b.size {
		return nil
	}
	r := &remote{b: b}
	if b.size-w.at > 2*f.chunk {
		err := f.chunks(ctx, r, w)
		if !errors.Is(err, errNoRanges) {
			return err
		}
	}
	f.track.set(b.name, w.at)
	return f.read(ctx, r, w.at, b.size, true, w.append)
}

// errNoRanges: a server answers with the whole file when it is asked for a part.
var errNoRanges = errors.New("the server ignores ranges")

// chunks fetches chunks ahead and appends them in order.
func (f *fetcher) chunks(ctx context.Context, r *remote, w *appender) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		data []byte
		err  error
	}
	queue := make(chan chan result, window-1)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	size := r.b.size
	workers.Go(func() {
		defer close(queue)
		for from := w.at; from < size; from += f.chunk {
			c := make(chan result, 1)
			select {
			case queue <- c:
			case <-ctx.Done():
				return
			}
			workers.Go(func() {
				to := min(from+f.chunk, size)
				data := make([]byte, 0, to-from)
				err := f.read(ctx, r, from, to, false, func(p []byte) error {
					data = append(data, p...)
					return nil
				})
				c <- result{data, err}
			})
		}
	})
	for c := range queue {
		got := <-c
		if got.err != nil {
			return got.err
		}
		if err := w.append(got.data); err != nil {
			return err
		}
	}
	if w.at < size {
		return context.Cause(ctx)
	}
	return nil
}

// remote remembers where a blob's bytes come from.
type remote struct {
	b      *blob
	mu     sync.Mutex
	direct string // where the last redirect led; "": ask b.url
	etag   string // the strong validator of that place
}

// read fetches bytes [from, to) and passes them to sink in order. With whole it accepts an answer with the
// whole file, and skips the bytes before from.
func (f *fetcher) read(ctx context.Context, r *remote, from, to int64, whole bool, sink func([]byte) error) error {
	select {
	case f.slots <- struct{}{}:
		defer func() { <-f.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	at := from
	buf := make([]byte, 256<<10)
	wait := func(why string) { f.track.wait(r.b.name, why) }
	return f.c.retry(ctx, downloadTries, wait, func() (moved bool, err error) {
		start := at
		resp, skip, err := r.open(ctx, at, to, whole)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		body := newStallReader(resp.Body, resp.Body.Close, f.c.stall)
		defer body.stop()
		if _, err := io.CopyN(io.Discard, body, skip); err != nil {
			return false, r.cut(err)
		}
		for at < to {
			n, err := body.Read(buf[:min(int64(len(buf)), to-at)])
			if n > 0 {
				if err := sink(buf[:n]); err != nil {
					return false, err
				}
				at += int64(n)
				f.track.arrive(r.b.name, int64(n))
			}
			if err != nil && at < to {
				return at-start >= progressBytes, r.cut(err)
			}
		}
		return true, nil
	})
}

// cut returns the error for a body that ended early.
func (r *remote) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection was cut")
	}
	return &transient{err: fmt.Errorf("%w: %s: %w", ErrUnreachable, hostOf(r.b.url), err)}
}

// open requests bytes from at on. skip is how many bytes of the body come before them.
func (r *remote) open(ctx context.Context, at, to int64, whole bool) (resp *http.Response, skip int64, err error) {
	r.mu.Lock()
	direct, etag := r.direct, r.etag
	r.mu.Unlock()
	target := r.b.url
	if direct != "" {
		target = direct
	} else if etag == "" {
		etag = r.b.etag
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: the address of %s: %w", ErrProtocol, r.b.name, err)
	}
	part := at > 0 || to < r.b.size
	if part {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", at, to-1))
		if etag != "" {
			req.Header.Set("If-Range", etag)
		}
	}
	resp, err = r.b.send(req)
	var status *statusError
	if errors.As(err, &status) && direct != "" && status.status/100 == 4 && status.status != http.StatusTooManyRequests {
		r.dropAddress(direct) // a signed address has expired: ask the hub for a new one
		return nil, 0, &transient{err: fmt.Errorf("%w: %w", ErrUnreachable, err)}
	} else if err != nil {
		return nil, 0, err
	}
	if skip, err = r.check(resp, part, at, to, whole); err != nil {
		resp.Body.Close()
		return nil, 0, err
	}
	r.remember(resp)
	return resp, skip, nil
}

// check compares an answer with its request.
func (r *remote) check(resp *http.Response, part bool, at, to int64, whole bool) (skip int64, err error) {
	size := r.b.size
	if e := resp.Header.Get("ETag"); r.b.digest == "" && r.b.etag != "" && e != r.b.etag {
		return 0, fmt.Errorf("%w: %s was replaced on %s while it was fetched: pull it again", ErrDamaged, r.b.name, hostOf(r.b.url))
	}
	if resp.StatusCode == http.StatusPartialContent {
		first, total, ok := contentRange(resp.Header.Get("Content-Range"))
		switch {
		case !part || !ok || first != at:
			return 0, fmt.Errorf("%w: %s sent another range than bytes %d to %d (%q)", ErrProtocol, hostOf(r.b.url), at,
				to-1, clean(resp.Header.Get("Content-Range")))
		case total >= 0 && total != size:
			return 0, fmt.Errorf("%w: %s has %d bytes of %s, where %d were announced", ErrProtocol, hostOf(r.b.url), total, r.b.name, size)
		}
		return 0, nil
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%w: %s answered %d", ErrProtocol, hostOf(r.b.url), resp.StatusCode)
	}
	if n := resp.ContentLength; n >= 0 && n != size {
		return 0, fmt.Errorf("%w: %s has %d bytes of %s, where %d were announced", ErrProtocol, hostOf(r.b.url), n, r.b.name, size)
	}
	if part && !whole {
		return 0, errNoRanges
	}
	return at, nil
}

// remember keeps the address that the redirects led to for the next ranges.
func (r *remote) remember(resp *http.Response) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at := resp.Request.URL.String(); at != r.b.url {
		r.direct = at
	}
	if r.etag == "" {
		if e := resp.Header.Get("ETag"); strings.HasPrefix(e, `"`) {
			r.etag = e
		}
	}
}

func (r *remote) dropAddress(direct string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.direct == direct {
		r.direct, r.etag = "", ""
	}
}

// contentRange reads "bytes 0-9/100"; total is -1 for *.
func contentRange(v string) (first, total int64, ok bool) {
	v, isBytes := strings.CutPrefix(v, "bytes ")
	span, all, ok1 := strings.Cut(v, "/")
	from, _, ok2 := strings.Cut(span, "-")
	first, err := strconv.ParseInt(from, 10, 64)
	if !isBytes || !ok1 || !ok2 || err != nil || first < 0 {
		return 0, 0, false
	}
	if all == "*" {
		return first, -1, true
	}
	total, err = strconv.ParseInt(all, 10, 64)
	return first, total, err == nil && total >= 0
}

func hostOf(address string) string {
	if u, err := url.Parse(address); err == nil {
		return u.Host
	}
	return "the server"
}
