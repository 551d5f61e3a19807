package weights

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/modelfile"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
)

// A checkpoint is sent in chunks. Each chunk has a hash, and the list of hashes has one. A reply must
// fit an envelope.
const (
	chunkBytes     = 64 << 10
	chunksPerReply = 15
	hashesPerReply = 24 << 10
	actorName      = "weights"
	serverReads    = 4          // concurrent disk reads; further requests get a busy reply
	maxFiles       = 1<<12 + 64 // the maximum of a checkpoint, plus its small files
	maxSmallFile   = 256 << 20
	maxBytes       = 1 << 45
)

// ErrNotFound: a process has no checkpoint to send.
var ErrNotFound = errors.New("weights: no checkpoint to give")

// errStale: a file has changed since its hashes were computed.
var errStale = errors.New("was changed while the model is in use: put the old file back, or restart all nodes to serve the new one")

// server sends a checkpoint to nodes that have none, in chunks. It computes the list of hashes at
// the first request, because that reads the whole checkpoint.
type server struct {
	ck      *checkpoint.Checkpoint
	models  []string // hashes of all models of the process, if there are several
	ctx     context.Context
	readers chan struct{}
	wg      sync.WaitGroup

	mu     sync.Mutex
	making bool
	err    error
	list   *proto.WeightsReply // nil until computed
	files  map[string]*servedFile
}

type servedFile struct {
	path   string
	stamp  modelfile.Stamp // at the time of hashing
	size   int64
	hashes []byte
}

// open opens the file and checks that it has not changed since it was hashed.
func (f *servedFile) open() (*os.File, error) {
	file, st, err := modelfile.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	if modelfile.StampOf(st) != f.stamp {
		return nil, errors.Join(fmt.Errorf("weights: %s: %w", f.path, errStale), file.Close())
	}
	return file, nil
}

// Serve answers requests on sys for the checkpoints of one or several models until ctx ends. Then call
// the returned function to wait for the requests under way.
func Serve(ctx context.Context, sys *rpc.System, models []*checkpoint.Checkpoint) (wait func(), err error) {
	var servers []*server
	var hashes []string
	for _, ck := range models {
		servers = append(servers, &server{ck: ck, ctx: ctx, readers: make(chan struct{}, serverReads)})
		hashes = append(hashes, ck.Hash())
	}
	wait = func() {
		for _, s := range servers {
			s.wg.Wait()
		}
	}
	for i, s := range servers {
		names := []string{actorOf(hashes[i])}
		if i == 0 {
			names = append(names, actorName)
		}
		if len(models) > 1 {
			s.models = hashes
		}
		for _, name := range names {
			if err := s.serve(sys, name); err != nil {
				return wait, err
			}
		}
	}
	return wait, nil
}

// actorOf returns the name of the actor that sends a model of several. Processes may have them in any
// order.
func actorOf(hash string) string { return actorName + "." + hash[:min(16, len(hash))] }

// serve answers requests under a name.
func (s *server) serve(sys *rpc.System, name string) error {
	mux := rpc.NewMux(sys)
	rpc.Handle(mux, uint32(proto.Kind_KIND_WEIGHTS), func(c *rpc.Ctx, m *proto.WeightsRequest) {
		select {
		case s.readers <- struct{}{}:
		default:
			c.Fail(rpc.ErrBusy)
			return
		}
		s.wg.Go(func() { // reads from disk
			defer func() { <-s.readers }()
			r, err := s.answer(m)
			if err != nil {
				c.Fail(err)
				return
			}
			_ = c.Reply(r)
		})
	})
	_, err := sys.Spawn(name, actor.PropsFromFunc(func(c actor.Context) { mux.Receive(c) }))
	return err
}

func (s *server) answer(m *proto.WeightsRequest) (*proto.WeightsReply, error) {
	s.mu.Lock()
	if s.list == nil && s.err == nil {
		if !s.making && s.ctx.Err() == nil {
			s.making = true
			s.wg.Add(1)
			go s.make()
		}
		s.mu.Unlock()
		return &proto.WeightsReply{Pending: true}, nil
	}
	list, files, err := s.list, s.files, s.err
	if !errors.Is(err, ErrNotFound) {
		s.err = nil // the next request retries
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if m.File == "" {
		return list, nil
	}
	f := files[m.File]
	if f == nil || m.List != list.List {
		return nil, fmt.Errorf("weights: %q is not in the list %.12s", m.File, m.List)
	}
	if len(m.Chunks) == 0 {
		from := min(int(m.HashesFrom)*sha256.Size, len(f.hashes))
		return &proto.WeightsReply{List: list.List, Hashes: f.hashes[from:min(from+hashesPerReply*sha256.Size, len(f.hashes))]}, nil
	}
	if len(m.Chunks) > chunksPerReply {
		return nil, fmt.Errorf("weights: %d chunks at once, want at most %d", len(m.Chunks), chunksPerReply)
	}
	data, err := f.read(m.Chunks)
	if errors.Is(err, errStale) {
		s.mu.Lock()
		if s.list == list {
			s.list = nil // recomputed at the next request: the bytes may be unchanged
		}
		s.mu.Unlock()
	}
	return &proto.WeightsReply{List: list.List, Data: data}, err
}

func (f *servedFile) read(chunks []uint32) ([]byte, error) {
	file, err := f.open()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []byte
	for _, c := range chunks {
		n := chunkLen(f.size, int64(c))
		if n <= 0 {
			return nil, fmt.Errorf("weights: %s has no chunk %d", filepath.Base(f.path), c)
		}
		at := len(out)
		out = append(out, make([]byte, n)...)
		if _, err := file.ReadAt(out[at:], int64(c)*chunkBytes); err != nil {
			return nil, fmt.Errorf("weights: %w", err)
		}
	}
	return out, nil
}

// chunkLen returns the length of a chunk of a file of size bytes; 0 if there is no such chunk.
func chunkLen(size, chunk int64) int64 { return max(0, min(chunkBytes, size-chunk*chunkBytes)) }

func chunkCount(size int64) int64 { return (size + chunkBytes - 1) / chunkBytes }

// make reads and hashes the whole checkpoint.
func (s *server) make() {
	defer s.wg.Done()
	list, files, err := s.hash()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.files, s.making = list, files, false
	if s.ctx.Err() == nil {
		s.err = err
	}
}

func (s *server) hash() (*proto.WeightsReply, map[string]*servedFile, error) {
	if s.ck.Random() {
		return nil, nil, fmt.Errorf("%w: random weights have no files; give the node the same "+options.Name("model"), ErrNotFound)
	}
	list, files := &proto.WeightsReply{ModelHash: s.ck.Hash(), Origin: layout.Origin(s.ck.Dir), Models: s.models}, map[string]*servedFile{}
	mark, err := s.ck.Recheck(s.ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("weights: %w", err)
	}
	weights := s.ck.Files()
	paths := slices.Clone(weights)
	if st, err := os.Stat(s.ck.Dir); err == nil && st.IsDir() {
		small, err := smallFiles(s.ck.Dir)
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, small...)
	}
	paths = append(paths, s.ck.SideFiles()...)
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		f, digest, err := s.hashFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("weights: %w", err)
		}
		name := filepath.Base(path)
		head := f.size
		if at := slices.Index(weights, path); at >= 0 {
			head = s.ck.Head(path, f.size)
			if f.stamp != mark[at] { // also detects another file with the same name
				return nil, nil, fmt.Errorf("weights: %s is not the file that this process opened: restart it to serve the new one", path)
			}
		}
		files[name] = f
		list.Files = append(list.Files, &proto.WeightsFile{Name: name, Size: f.size, Head: head, Digest: digest})
	}
	if err := s.ck.Since(mark); err != nil {
		return nil, nil, fmt.Errorf("weights: %w", err)
	}
	list.List = listHash(list)
	return list, files, nil
}

// smallFiles returns the files next to the weights: config, tokenizer, templates.
func smallFiles(dir string) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	for _, e := range entries {
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".json", ".jinja", ".model", ".txt":
			path := filepath.Join(dir, e.Name())
			if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Size() <= maxSmallFile {
				out = append(out, path)
			}
		}
	}
	return out, nil
}

func (s *server) hashFile(path string) (*servedFile, []byte, error) {
	file, st, err := modelfile.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	f := &servedFile{path: path, stamp: modelfile.StampOf(st), size: st.Size()}
	buf := make([]byte, chunkBytes)
	for c := range chunkCount(f.size) {
		if err := s.ctx.Err(); err != nil {
			return nil, nil, err
		}
		n := chunkLen(f.size, c)
		if _, err := io.ReadFull(file, buf[:n]); err != nil {
			return nil, nil, err
		}
		h := sha256.Sum256(buf[:n])
		f.hashes = append(f.hashes, h[:]...)
	}
	digest := sha256.Sum256(f.hashes)
	return f, digest[:], nil
}

// listHash identifies a list by its content.
func listHash(r *proto.WeightsReply) string {
	b, err := pb.MarshalOptions{Deterministic: true}.Marshal(&proto.WeightsReply{ModelHash: r.ModelHash, Files: r.Files})
	if err != nil {
		panic(err) // cannot fail for plain fields
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
