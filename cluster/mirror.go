package cluster

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
	"time"

	"shoal/cluster/gossip"
	"shoal/model"
	"shoal/proto"
	"shoal/security"
)

// mirror is a checkpoint that comes over the bus, as much of it as is wanted. Its
// files have their full size and lie in a folder named by the hash of their list;
// what was not fetched is a hole. A chunk is read and hashed before its first use
// in this process, whether it was fetched just now or by an earlier one: so a torn,
// damaged or missing chunk is one that is fetched again, and there is no other
// record of what is there.
type mirror struct {
	dir  string
	list *proto.WeightsReply
	lock *os.File // the claim on dir
	// ask asks somebody; others with each turn, for those who sent damage, and says whom.
	ask     func(ctx context.Context, turn int, r *proto.WeightsRequest) (reply *proto.WeightsReply, from string, err error)
	log     *slog.Logger
	fetched atomic.Int64 // bytes, from others
	flights chan struct{}

	mu    sync.Mutex
	files map[string]*mirrorFile
}

type mirrorFile struct {
	*proto.WeightsFile
	file   *os.File
	hashes []byte
	mu     sync.Mutex
	good   map[int64]bool // chunks that were verified
}

const (
	mirrorFlights = 3 // requests under way
	askLimit      = 10 * time.Second
	askPause      = 300 * time.Millisecond
	// mirrorLimit is how long nobody may be there to ask.
	mirrorLimit = 2 * time.Minute
)

// ErrDamaged: what a process sent is not what its hash says.
var ErrDamaged = errors.New("cluster: bytes do not have their hash")

// openMirror finds out what the cluster serves, and brings what is needed to open
// it: config, tokenizer, the headers of the weights.
func openMirror(ctx context.Context, b *bus, cache string, limit int64, log *slog.Logger) (*model.Checkpoint, *mirror, error) {
	if cache == "" {
		return nil, nil, errors.New("cluster: a node without a checkpoint needs a folder for what it fetches: --weights-cache DIR")
	}
	m := &mirror{log: log, ask: b.library, flights: make(chan struct{}, mirrorFlights), files: map[string]*mirrorFile{}}
	folder := filepath.Join(cache, "bus")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, nil, fmt.Errorf("cluster: %w", err)
	}
	err := m.try(ctx, &proto.WeightsRequest{}, func(r *proto.WeightsReply) error {
		m.list = r
		return checkList(r)
	})
	if err != nil {
		return nil, nil, err
	}
	list := m.list
	m.dir = filepath.Join(folder, list.List)
	if m.lock, err = claimMirror(m.dir); err != nil {
		return nil, nil, err
	}
	var size int64
	for _, f := range list.Files {
		size += f.Size
	}
	if err := makeMirrorRoom(folder, list.List, size, limit, log); err != nil {
		log.Warn("old weights from the bus were not removed", "error", err)
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cluster: %w", err), m.close())
	}
	ck, err := m.open(ctx)
	if err != nil {
		return nil, nil, errors.Join(err, m.close())
	}
	log.Info("checkpoint from the bus", "model", fmt.Sprintf("%.12s", list.ModelHash), "files", len(list.Files), "folder", m.dir, "fetched_bytes", m.fetched.Load())
	return ck, m, nil
}

func (m *mirror) open(ctx context.Context) (*model.Checkpoint, error) {
	gguf := ""
	for _, f := range m.list.Files {
		file, err := os.OpenFile(filepath.Join(m.dir, f.Name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		m.files[f.Name] = &mirrorFile{WeightsFile: f, file: file, good: map[int64]bool{}}
		if st, err := file.Stat(); err != nil || st.Size() != f.Size {
			if err := file.Truncate(f.Size); err != nil {
				return nil, fmt.Errorf("cluster: %w", err)
			}
		}
		if err := m.Fetch(ctx, f.Name, []model.Span{{From: 0, To: f.Head}}); err != nil {
			return nil, err
		}
		if strings.EqualFold(filepath.Ext(f.Name), ".gguf") && gguf == "" {
			gguf = f.Name
		}
	}
	return model.OpenPartial(ctx, filepath.Join(m.dir, gguf), m.list.ModelHash, m)
}

// checkList bounds everything that a list says before it is used.
func checkList(r *proto.WeightsReply) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: the list of files: %s", ErrDamaged, fmt.Sprintf(format, args...))
	}
	if h, err := hex.DecodeString(r.ModelHash); err != nil || len(h) != sha256.Size {
		return bad("the model's hash is %.80q", r.ModelHash)
	}
	if len(r.Files) == 0 || len(r.Files) > maxLibraryFiles {
		return bad("%d files", len(r.Files))
	}
	seen, sum := map[string]bool{}, int64(0)
	for _, f := range r.Files {
		if !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name || strings.ContainsAny(f.Name, "/\\\x00") || strings.HasPrefix(f.Name, ".") || len(f.Name) > 255 || seen[f.Name] {
			return bad("the name %.80q", f.Name)
		}
		seen[f.Name] = true
		if f.Size < 0 || f.Size > maxLibraryBytes || f.Head < 0 || f.Head > f.Size || len(f.Digest) != sha256.Size {
			return bad("%s of %d bytes, %d of them its head", f.Name, f.Size, f.Head)
		}
		if sum += f.Size; sum > maxLibraryBytes {
			return bad("more than %d bytes", int64(maxLibraryBytes))
		}
	}
	if r.List != listHash(r) {
		return bad("its hash is %.80q", r.List)
	}
	return nil
}

// Fetch implements model.Fetcher.
func (m *mirror) Fetch(ctx context.Context, name string, spans []model.Span) error {
	m.mu.Lock()
	f := m.files[name]
	m.mu.Unlock()
	if f == nil {
		return fmt.Errorf("cluster: %q is not in the list", name)
	}
	if err := m.learn(ctx, f); err != nil {
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
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { <-m.flights }()
			if err := m.bring(ctx, f, part); err != nil {
				cancel(err)
			}
		}()
	}
	wg.Wait()
	return context.Cause(ctx)
}

// learn asks for the hashes of a file's chunks.
func (m *mirror) learn(ctx context.Context, f *mirrorFile) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	want := int(chunkCount(f.Size)) * sha256.Size
	if len(f.hashes) == want {
		return nil
	}
	return m.turns(func(turn int) error { return m.learnFrom(ctx, turn, f, want) })
}

func (m *mirror) learnFrom(ctx context.Context, turn int, f *mirrorFile, want int) error {
	var all []byte
	from := ""
	for len(all) < want {
		r, at, err := m.ask(ctx, turn, &proto.WeightsRequest{List: m.list.List, File: f.Name, HashesFrom: uint32(len(all) / sha256.Size)})
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

// mirrorTurns is how many sources are tried when what they send is damaged.
const mirrorTurns = 3

// turns calls f with the turns of one question, until its answer is not damaged.
func (m *mirror) turns(f func(turn int) error) (err error) {
	for turn := range mirrorTurns {
		if err = f(turn); !errors.Is(err, ErrDamaged) {
			return err
		}
		m.log.Warn("what was fetched is damaged", "error", err, "tries", turn+1, "of", mirrorTurns)
	}
	return err
}

// try asks until use takes the answer.
func (m *mirror) try(ctx context.Context, q *proto.WeightsRequest, use func(*proto.WeightsReply) error) error {
	return m.turns(func(turn int) error {
		r, from, err := m.ask(ctx, turn, q)
		if err != nil {
			return err
		}
		if err := use(r); err != nil {
			return fmt.Errorf("%w, from %s", err, from)
		}
		return nil
	})
}

// missing are the chunks of the spans that are not on this disk, or not as they
// should be.
func (f *mirrorFile) missing(spans []model.Span) (out []uint32, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	buf, asked := make([]byte, chunkBytes), map[int64]bool{}
	for _, s := range spans {
		if s.From < 0 || s.To > f.Size || s.From > s.To {
			return nil, fmt.Errorf("cluster: bytes [%d, %d) of %s, which has %d", s.From, s.To, f.Name, f.Size)
		}
		if s.From == s.To {
			continue
		}
		for c := s.From / chunkBytes; c <= (s.To-1)/chunkBytes; c++ {
			if f.good[c] || asked[c] {
				continue
			}
			asked[c] = true
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

func (f *mirrorFile) fits(c int64, b []byte) bool {
	h := sha256.Sum256(b)
	return bytes.Equal(h[:], f.hashes[c*sha256.Size:(c+1)*sha256.Size])
}

// bring fetches chunks, checks each, and writes them to their place.
func (m *mirror) bring(ctx context.Context, f *mirrorFile, chunks []uint32) error {
	return m.try(ctx, &proto.WeightsRequest{List: m.list.List, File: f.Name, Chunks: chunks}, func(r *proto.WeightsReply) error {
		return m.take(f, chunks, r.Data)
	})
}

func (m *mirror) take(f *mirrorFile, chunks []uint32, data []byte) error {
	for _, c := range chunks {
		n := chunkLen(f.Size, int64(c))
		if int64(len(data)) < n || !f.fits(int64(c), data[:n]) {
			return fmt.Errorf("%w: chunk %d of %s", ErrDamaged, c, f.Name)
		}
		if _, err := f.file.WriteAt(data[:n], int64(c)*chunkBytes); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		f.mu.Lock()
		f.good[int64(c)] = true
		f.mu.Unlock()
		m.fetched.Add(n)
		data = data[n:]
	}
	return nil
}

func (m *mirror) close() error {
	var err error
	for _, f := range m.files {
		err = errors.Join(err, f.file.Close())
	}
	if m.lock != nil {
		err = errors.Join(err, m.lock.Close())
	}
	return err
}

// library asks whoever has the checkpoint: the coordinator, else a node. Those that
// are busy, or still make their list, are asked again. With each turn another one
// is asked first; from is who answered.
func (b *bus) library(ctx context.Context, turn int, r *proto.WeightsRequest) (_ *proto.WeightsReply, from string, _ error) {
	ctx, cancel := context.WithTimeoutCause(ctx, mirrorLimit, errors.New("cluster: nobody gave the checkpoint"))
	defer cancel()
	var last error
	for {
		all := b.librarians()
		for i := range all {
			at := all[(i+turn)%len(all)]
			reply := new(proto.WeightsReply)
			once, end := context.WithTimeout(ctx, askLimit)
			last = b.rpc.Call(once, b.rpc.PID(at, libraryName), uint32(proto.Kind_KIND_WEIGHTS), r, reply)
			end()
			if last == nil && !reply.Pending {
				return reply, at, nil
			}
			if errors.Is(last, ErrNoLibrary) {
				return nil, at, last
			}
			if last == nil {
				last = errors.New("cluster: the list of its files is being made")
				break
			}
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return nil, "", fmt.Errorf("%w (the last answer: %v)", context.Cause(ctx), last)
		}
	}
}

// librarians are the control addresses of the coordinator, then of nodes.
func (b *bus) librarians() (out []string) {
	for _, m := range b.gossip.Members() {
		if m.Meta.Role == string(security.RoleCoordinator) {
			out = append([]string{m.Meta.RPC}, out...)
		} else if m.Meta.State == gossip.Ready && m.Meta.RPC != b.rpc.Address() {
			out = append(out, m.Meta.RPC)
		}
	}
	return out
}
