package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
)

// Cache is a partial copy of a checkpoint, fetched from other processes or from the hub. Its files have
// their full size, with holes where nothing was fetched, in a folder named by the hash of the file list. This
// process hashes every chunk before its first use, also those that another process fetched. So a torn, damaged or
// missing chunk is simply fetched again, and no other record of the present chunks exists.
type Cache struct {
	dir     string
	list    *proto.WeightsReply
	lock    *os.File // the claim on dir
	request Requester
	nearer  nearer
	log     *slog.Logger
	fetched atomic.Int64 // bytes received from other processes and from the hub
	flights chan struct{}

	mu    sync.Mutex
	files map[string]*cachedFile
}

type cachedFile struct {
	*proto.WeightsFile
	file   *os.File
	hashes []byte
	mu     sync.Mutex
	good   map[int64]bool // verified chunks
}

const requestsAtOnce = 3

// ErrDamaged: received data does not match its hash.
var ErrDamaged = errors.New("weights: data does not match its hash")

// Open asks the cluster for its checkpoint and fetches the files that are needed to open it: config,
// tokenizer, and the headers of the weights.
//
// hub, if not nil, is the other source of a model that a process of the cluster has from there.
func Open(
	ctx context.Context, request Requester, hub Ranges, cache string, limit int64, log *slog.Logger,
) (*checkpoint.Checkpoint, *Cache, error) {
	if cache == "" {
		return nil, nil, errors.New("weights: a node without a checkpoint needs a folder for the fetched weights: " +
			options.Name("weights-cache") + " DIR")
	}
	m := &Cache{log: log, request: request, flights: make(chan struct{}, requestsAtOnce), files: map[string]*cachedFile{}}
	folder := filepath.Join(cache, "bus")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, fmt.Errorf("weights: %w", err)
	}
	err := m.try(ctx, &proto.WeightsRequest{}, func(r *proto.WeightsReply) error {
		m.list = r
		return checkList(r)
	})
	if err != nil {
		return nil, nil, err
	}
	list := m.list
	m.nearer.hub, m.nearer.origin, m.nearer.log = hub, list.Origin, log
	m.dir = filepath.Join(folder, list.List)
	if m.lock, err = claim(m.dir); err != nil {
		return nil, nil, err
	}
	var size int64
	for _, f := range list.Files {
		size += f.Size
	}
	if err := evict(folder, list.List, size, limit, log); err != nil {
		log.Warn("removing old weights failed", "error", err)
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("weights: %w", err), m.Close())
	}
	ck, err := m.open(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	log.Info("checkpoint from the bus", "model", fmt.Sprintf("%.12s", list.ModelHash), "files", len(list.Files),
		"folder", m.dir, "fetched_bytes", m.fetched.Load())
	return ck, m, nil
}

func (m *Cache) open(ctx context.Context) (*checkpoint.Checkpoint, error) {
	gguf := ""
	for _, f := range m.list.Files {
		file, err := os.OpenFile(filepath.Join(m.dir, f.Name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("weights: %w", err)
		}
		m.files[f.Name] = &cachedFile{WeightsFile: f, file: file, good: map[int64]bool{}}
		if st, err := file.Stat(); err != nil || st.Size() != f.Size {
			if err := file.Truncate(f.Size); err != nil {
				return nil, fmt.Errorf("weights: %w", err)
			}
		}
		if err := m.Fetch(ctx, f.Name, []checkpoint.Span{{From: 0, To: f.Head}}); err != nil {
			return nil, err
		}
		if strings.EqualFold(filepath.Ext(f.Name), ".gguf") && gguf == "" {
			gguf = f.Name
		}
	}
	return checkpoint.OpenPartial(ctx, filepath.Join(m.dir, gguf), m.list.ModelHash, m)
}

// checkList bounds all values of a list before they are used.
func checkList(r *proto.WeightsReply) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: the list of files: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	if h, err := hex.DecodeString(r.ModelHash); err != nil || len(h) != sha256.Size {
		return bad("the model's hash is %.80q", r.ModelHash)
	}
	if len(r.Files) == 0 || len(r.Files) > maxFiles {
		return bad("%d files", len(r.Files))
	}
	seen, sum := map[string]bool{}, int64(0)
	for _, f := range r.Files {
		if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name || strings.ContainsAny(f.Name, "/\\\x00") ||
			strings.HasPrefix(f.Name, ".") || len(f.Name) > 255 || seen[f.Name] {
			return bad("the name %.80q", f.Name)
		}
		seen[f.Name] = true
		if f.Size < 0 || f.Size > maxBytes || f.Head < 0 || f.Head > f.Size || len(f.Digest) != sha256.Size {
			return bad("%s of %d bytes, %d of them its head", f.Name, f.Size, f.Head)
		}
		if sum += f.Size; sum > maxBytes {
			return bad("more than %d bytes", int64(maxBytes))
		}
	}
	if r.List != listHash(r) {
		return bad("its hash is %.80q", r.List)
	}
	return nil
}

// Fetched returns the number of bytes received from other processes and from the hub.
func (m *Cache) Fetched() int64 { return m.fetched.Load() }

func (m *Cache) Fetch(ctx context.Context, name string, spans []checkpoint.Span) error {
	m.mu.Lock()
	f := m.files[name]
	m.mu.Unlock()
	if f == nil {
		return fmt.Errorf("weights: %q is not in the list", name)
	}
	if err := m.fetchHashes(ctx, f); err != nil {
		return err
	}
	missing, err := f.missing(spans)
	if err != nil || len(missing) == 0 {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for at := 0; at < len(missing); at += chunksPerReply {
		part := missing[at:min(at+chunksPerReply, len(missing))]
		select {
		case m.flights <- struct{}{}:
		case <-ctx.Done():
			wg.Wait()
			return context.Cause(ctx)
		}
		wg.Go(func() {
			defer func() { <-m.flights }()
			if err := m.fetchChunks(ctx, f, part); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// fetchHashes fetches the hashes of a file's chunks.
func (m *Cache) fetchHashes(ctx context.Context, f *cachedFile) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := int(chunkCount(f.Size)) * sha256.Size
	if len(f.hashes) == want {
		return nil
	}
	return m.turns(func(turn int) error { return m.fetchHashesFrom(ctx, turn, f, want) })
}

func (m *Cache) fetchHashesFrom(ctx context.Context, turn int, f *cachedFile, want int) error {
	var all []byte
	from := ""
	for len(all) < want {
		r, at, err := m.request(ctx, turn, &proto.WeightsRequest{List: m.list.List, File: f.Name, HashesFrom: uint32(len(all) / sha256.Size)})
		if err != nil {
			return err
		}
		from = at
		if len(r.Hashes) == 0 || len(r.Hashes)%sha256.Size != 0 || len(all)+len(r.Hashes) > want {
			return fmt.Errorf("%w: %d bytes of hashes of %s, from %s", ErrDamaged, len(r.Hashes), f.Name, from)
		}
		all = append(all, r.Hashes...)
	}
	if h := sha256.Sum256(all); !bytes.Equal(h[:], f.Digest) {
		return fmt.Errorf("%w: the hashes of %s, from %s", ErrDamaged, f.Name, from)
	}
	f.hashes = all
	return nil
}

// sourceTurns is the number of sources to try if they send damaged data.
const sourceTurns = 3

// turns calls f with turn 0, 1, ... until its result is not damaged.
func (m *Cache) turns(f func(turn int) error) (err error) {
	for turn := range sourceTurns {
		if err = f(turn); !errors.Is(err, ErrDamaged) {
			return err
		}
		m.log.Warn("fetched weights are damaged", "error", err, "tries", turn+1, "of", sourceTurns)
	}
	return err
}

// try sends a request until use accepts the reply.
func (m *Cache) try(ctx context.Context, q *proto.WeightsRequest, use func(*proto.WeightsReply) error) error {
	return m.turns(func(turn int) error {
		r, from, err := m.request(ctx, turn, q)
		if err != nil {
			return err
		}
		if err := use(r); err != nil {
			return fmt.Errorf("%w, from %s", err, from)
		}
		return nil
	})
}

// missing returns the chunks of the spans that are absent from this disk or damaged.
func (f *cachedFile) missing(spans []checkpoint.Span) (out []uint32, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	buf, requested := make([]byte, chunkBytes), map[int64]bool{}
	for _, s := range spans {
		if s.From < 0 || s.To > f.Size || s.From > s.To {
			return nil, fmt.Errorf("weights: bytes [%d, %d) of %s, which has %d", s.From, s.To, f.Name, f.Size)
		}
		if s.From == s.To {
			continue
		}
		for c := s.From / chunkBytes; c <= (s.To-1)/chunkBytes; c++ {
			if f.good[c] || requested[c] {
				continue
			}
			requested[c] = true
			b := buf[:chunkLen(f.Size, c)]
			if _, err := f.file.ReadAt(b, c*chunkBytes); err == nil && f.fits(c, b) {
				f.good[c] = true
				continue
			}
			out = append(out, uint32(c))
		}
	}
	return out, nil
}

func (f *cachedFile) fits(c int64, b []byte) bool {
	h := sha256.Sum256(b)
	return bytes.Equal(h[:], f.hashes[c*sha256.Size:(c+1)*sha256.Size])
}

// fetchChunks fetches chunks, verifies each, and writes them to their place.
func (m *Cache) fetchChunks(ctx context.Context, f *cachedFile, chunks []uint32) error {
	data, err := m.nearer.fetch(ctx, len(chunks) == chunksPerReply, func(ctx context.Context) (data []byte, err error) {
		err = m.try(ctx, &proto.WeightsRequest{List: m.list.List, File: f.Name, Chunks: chunks}, func(r *proto.WeightsReply) error {
			data = r.Data
			return f.check(chunks, data)
		})
		return data, err
	}, func(ctx context.Context) ([]byte, error) {
		data, err := f.fromHub(ctx, m.nearer.hub, m.nearer.origin, chunks)
		if err == nil {
			err = f.check(chunks, data)
		}
		return data, err
	})
	if err != nil {
		return err
	}
	return m.store(f, chunks, data)
}

// check compares received chunks with their hashes.
func (f *cachedFile) check(chunks []uint32, data []byte) error {
	for _, c := range chunks {
		n := chunkLen(f.Size, int64(c))
		if int64(len(data)) < n || !f.fits(int64(c), data[:n]) {
			return fmt.Errorf("%w: chunk %d of %s", ErrDamaged, c, f.Name)
		}
		data = data[n:]
	}
	return nil
}

// store writes verified chunks to their place.
func (m *Cache) store(f *cachedFile, chunks []uint32, data []byte) error {
	for _, c := range chunks {
		n := chunkLen(f.Size, int64(c))
		if _, err := f.file.WriteAt(data[:n], int64(c)*chunkBytes); err != nil {
			return fmt.Errorf("weights: %w", err)
		}
		f.mu.Lock()
		f.good[int64(c)] = true
		f.mu.Unlock()
		m.fetched.Add(n)
		data = data[n:]
	}
	return nil
}

// Close closes the files and releases the folder.
func (m *Cache) Close() error {
	var err error
	for _, f := range m.files {
		err = errors.Join(err, f.file.Close())
	}
	if m.lock != nil {
		err = errors.Join(err, m.lock.Close())
	}
	return err
}
