package cluster

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

	"shoal/cluster/rpc"
	"shoal/model"
	"shoal/proto"
)

// The checkpoint travels in chunks; each has a hash, and the hashes have one. A
// reply holds as many chunks or hashes as an envelope can carry.
const (
	chunkBytes      = 64 << 10
	chunksPerReply  = 15
	hashesPerReply  = 24 << 10
	libraryName     = "library"
	libraryReaders  = 4          // requests that are read at once; further ones are told to wait
	maxLibraryFiles = 1<<12 + 64 // as many as a checkpoint may have, and its small ones
	maxSmallFile    = 256 << 20
	maxLibraryBytes = 1 << 45
)

// ErrNoLibrary: a process has no checkpoint that it could give.
var ErrNoLibrary = errors.New("cluster: no checkpoint to give")

// library gives a whole checkpoint to nodes that have none, piece by piece. The
// list with the hashes is made when somebody first asks: it takes reading it all.
type library struct {
	ck      *model.Checkpoint
	ctx     context.Context
	readers chan struct{}
	wg      sync.WaitGroup

	mu     sync.Mutex
	making bool
	err    error
	list   *proto.WeightsReply // nil until it is made
	files  map[string]*libraryFile
}

type libraryFile struct {
	path   string
	size   int64
	hashes []byte
}

// serveLibrary answers on sys until ctx ends; wait for the returned function then.
func serveLibrary(ctx context.Context, sys *rpc.System, ck *model.Checkpoint) (wait func(), err error) {
	l := &library{ck: ck, ctx: ctx, readers: make(chan struct{}, libraryReaders)}
	mux := rpc.NewMux(sys)
	rpc.Handle(mux, uint32(proto.Kind_KIND_WEIGHTS), func(c *rpc.Ctx, m *proto.WeightsRequest) {
		select {
		case l.readers <- struct{}{}:
		default:
			c.Fail(rpc.ErrBusy)
			return
		}
		l.wg.Add(1)
		go func() { // reads from disk
			defer l.wg.Done()
			defer func() { <-l.readers }()
			r, err := l.answer(m)
			respond(c, r, err)
		}()
	})
	_, err = sys.Spawn(libraryName, actor.PropsFromFunc(func(c actor.Context) { mux.Receive(c) }))
	return l.wg.Wait, err
}

func (l *library) answer(m *proto.WeightsRequest) (*proto.WeightsReply, error) {
	l.mu.Lock()
	if l.list == nil && l.err == nil {
		if !l.making && l.ctx.Err() == nil {
			l.making = true
			l.wg.Add(1)
			go l.make()
		}
		l.mu.Unlock()
		return &proto.WeightsReply{Pending: true}, nil
	}
	list, files, err := l.list, l.files, l.err
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if m.File == "" {
		return list, nil
	}
	f := files[m.File]
	if f == nil || m.List != list.List {
		return nil, fmt.Errorf("cluster: %q is not in the list %.12s", m.File, m.List)
	}
	if len(m.Chunks) == 0 {
		from := min(int(m.HashesFrom)*sha256.Size, len(f.hashes))
		return &proto.WeightsReply{List: list.List, Hashes: f.hashes[from:min(from+hashesPerReply*sha256.Size, len(f.hashes))]}, nil
	}
	if len(m.Chunks) > chunksPerReply {
		return nil, fmt.Errorf("cluster: %d chunks at once, want at most %d", len(m.Chunks), chunksPerReply)
	}
	data, err := f.read(m.Chunks)
	return &proto.WeightsReply{List: list.List, Data: data}, err
}

func (f *libraryFile) read(chunks []uint32) ([]byte, error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer file.Close()
	var out []byte
	for _, c := range chunks {
		n := chunkLen(f.size, int64(c))
		if n <= 0 {
			return nil, fmt.Errorf("cluster: %s has no chunk %d", filepath.Base(f.path), c)
		}
		at := len(out)
		out = append(out, make([]byte, n)...)
		if _, err := file.ReadAt(out[at:], int64(c)*chunkBytes); err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
	}
	return out, nil
}

// chunkLen is the length of a chunk of a file of size bytes; 0: there is none.
func chunkLen(size, chunk int64) int64 { return max(0, min(chunkBytes, size-chunk*chunkBytes)) }

func chunkCount(size int64) int64 { return (size + chunkBytes - 1) / chunkBytes }

// make reads the whole checkpoint once.
func (l *library) make() {
	defer l.wg.Done()
	list, files, err := l.hash()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list, l.files, l.making = list, files, false
	if l.ctx.Err() == nil {
		l.err = err
	}
}

func (l *library) hash() (*proto.WeightsReply, map[string]*libraryFile, error) {
	if l.ck.Random() {
		return nil, nil, fmt.Errorf("%w: random weights are not in files; give the node the same --model", ErrNoLibrary)
	}
	list, files := &proto.WeightsReply{ModelHash: l.ck.Hash()}, map[string]*libraryFile{}
	weights := l.ck.Files()
	paths := slices.Clone(weights)
	if st, err := os.Stat(l.ck.Dir); err == nil && st.IsDir() {
		small, err := smallFiles(l.ck.Dir)
		if err != nil {
			return nil, nil, err
		}
		paths = append(paths, small...)
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		f, digest, err := l.hashFile(path)
		if err != nil {
			return nil, nil, fmt.Errorf("cluster: %w", err)
		}
		name := filepath.Base(path)
		head := f.size
		if slices.Contains(weights, path) {
			head = l.ck.Head(path, f.size)
		}
		files[name] = f
		list.Files = append(list.Files, &proto.WeightsFile{Name: name, Size: f.size, Head: head, Digest: digest})
	}
	list.List = listHash(list)
	return list, files, nil
}

// smallFiles are what lies beside the weights: config, tokenizer, templates.
func smallFiles(dir string) (out []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
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

func (l *library) hashFile(path string) (*libraryFile, []byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	f := &libraryFile{path: path, size: st.Size()}
	buf := make([]byte, chunkBytes)
	for c := range chunkCount(f.size) {
		if err := l.ctx.Err(); err != nil {
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

// listHash names a list by its content.
func listHash(r *proto.WeightsReply) string {
	b, err := pb.MarshalOptions{Deterministic: true}.Marshal(&proto.WeightsReply{ModelHash: r.ModelHash, Files: r.Files})
	if err != nil {
		panic(err) // plain fields
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
