package weights

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/actors/layer"
	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// shelf returns a server without a network and a function that opens caches of it.
func shelf(t *testing.T, dir, adapter string) (*server,
	func(cache string, ask func(*proto.WeightsRequest) (*proto.WeightsReply, error)) (*checkpoint.Checkpoint, *Cache, error)) {
	t.Helper()
	ck, err := checkpoint.OpenSwiftKV(dir, adapter)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &server{ck: ck, ctx: ctx, readers: make(chan struct{}, serverReads)}
	l.wg.Add(1)
	l.make()
	t.Cleanup(func() {
		cancel()
		l.wg.Wait()
		ck.Close()
	})
	return l, func(cache string, ask func(*proto.WeightsRequest) (*proto.WeightsReply, error)) (*checkpoint.Checkpoint, *Cache, error) {
		list, err := ask(&proto.WeightsRequest{})
		if err == nil {
			err = checkList(list)
		}
		if err != nil {
			return nil, nil, err
		}
		m := &Cache{list: list, dir: filepath.Join(cache, list.List), log: slog.New(slog.DiscardHandler),
			flights: make(chan struct{}, requestsAtOnce), files: map[string]*cachedFile{},
			request: func(_ context.Context, _ int, r *proto.WeightsRequest) (*proto.WeightsReply, string, error) {
				reply, err := ask(r)
				return reply, "somebody", err
			}}
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		part, err := m.open(context.Background())
		t.Cleanup(func() {
			if part != nil {
				part.Close()
			}
			m.Close()
		})
		return part, m, err
	}
}

// TestCache loads the slices of every rank from a cache. They are identical to the checkpoint's,
// with a fraction of its bytes fetched. It then loads them again from disk, with one chunk damaged.
func TestCache(t *testing.T) {
	const dir = "../../models/fry"
	l, open := shelf(t, dir, "")
	pool := tensor.NewPool(1)
	defer pool.Close()
	var all int64
	for _, f := range l.list.Files {
		all += f.Size
	}
	members := make([]topology.Member, 4)
	for i := range members {
		members[i].ID = string(rune('a' + i))
	}
	place, err := topology.Place(1, topology.Gather, shard.ShapeOf(&l.ck.Config), members)
	if err != nil {
		t.Fatal(err)
	}
	slices := func(ck *checkpoint.Checkpoint, rank int) []byte {
		t.Helper()
		s, err := shard.Load(context.Background(), ck, place, rank, tensor.F32, shard.Options{Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h := sha256.New()
		for _, l := range s.Layers {
			w := l.(*layer.Weights)
			for _, m := range []*tensor.Weight{w.Q, w.K, w.V, w.O, w.Gate, w.Up, w.Down} {
				h.Write(rowsOf(m))
			}
		}
		h.Write(rowsOf(s.Ends.(*layer.Ends).Head))
		h.Write(s.Embedding.Data)
		return h.Sum(nil)
	}
	cache := t.TempDir()
	for rank := range members {
		ck, m, err := open(cache, l.answer)
		if err != nil {
			t.Fatal(err)
		}
		if ck.Hash() != l.ck.Hash() {
			t.Errorf("hash %s, want %s", ck.Hash(), l.ck.Hash())
		}
		if got, want := slices(ck, rank), slices(l.ck, rank); !bytes.Equal(got, want) {
			t.Errorf("rank %d has other weights", rank)
		}
		got := m.fetched.Load()
		t.Logf("rank %d fetched %d of %d bytes", rank, got, all)
		if rank == 0 && (got == 0 || got > all*6/10) {
			t.Errorf("one of four ranks fetched %d of %d bytes", got, all)
		}
	}
	ck, m, err := open(cache, l.answer)
	if err != nil {
		t.Fatal(err)
	}
	slices(ck, 1)
	if got := m.fetched.Load(); got != 0 {
		t.Errorf("%d bytes were fetched that are on disk", got)
	}
	ck.Close()
	m.Close()
	path := filepath.Join(cache, l.list.List, "model.safetensors")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-100] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if ck, m, err = open(cache, l.answer); err != nil {
		t.Fatal(err)
	}
	for rank := range members {
		if !bytes.Equal(slices(ck, rank), slices(l.ck, rank)) {
			t.Errorf("rank %d has other weights after a bit flipped on disk", rank)
		}
	}
	if got := m.fetched.Load(); got == 0 || got > chunkBytes {
		t.Errorf("%d bytes were fetched for one damaged chunk", got)
	}
}

func rowsOf(w *tensor.Weight) []byte {
	if w == nil {
		return nil
	}
	return w.Packed()
}

// TestCacheOfAdapter: a SwiftKV adapter is fetched with the checkpoint.
func TestCacheOfAdapter(t *testing.T) {
	l, open := shelf(t, "../../models/fry", "../../models/fry-swiftkv")
	ck, _, err := open(t.TempDir(), l.answer)
	if err != nil {
		t.Fatal(err)
	}
	if ck.Hash() != l.ck.Hash() || ck.Config.SwiftKV != l.ck.Config.SwiftKV {
		t.Errorf("model %s with %+v, want %s with %+v", ck.Hash(), ck.Config.SwiftKV, l.ck.Hash(), l.ck.Config.SwiftKV)
	}
	for _, name := range []string{model.NormSwiftKV, "model.layers.7.self_attn.k_proj_swiftkv.weight"} {
		want, err := l.ck.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := ck.Fetch(t.Context(), name, 0, want.Rows(), 0, want.Cols()); err != nil {
			t.Fatal(err)
		}
		if got, err := ck.Tensor(name); err != nil || !bytes.Equal(got.Data, want.Data) {
			t.Errorf("%s differs, %v", name, err)
		}
	}
}

// TestCacheRefuses: no content is used without verifying its hash, and no size before it is
// bounded.
func TestCacheRefuses(t *testing.T) {
	l, open := shelf(t, "../engine/model/testdata/llama", "")
	for _, x := range []struct {
		what   string
		change func(r *proto.WeightsReply, q *proto.WeightsRequest)
	}{
		{"a flipped bit", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Data) > 0 {
				r.Data[len(r.Data)/2] ^= 4
			}
		}},
		{"a short chunk", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Data) > 0 {
				r.Data = r.Data[:len(r.Data)-1]
			}
		}},
		{"another hash", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Hashes) > 0 {
				r.Hashes[0] ^= 1
			}
		}},
		{"hashes without end", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Hashes) > 0 {
				r.Hashes = bytes.Repeat(r.Hashes, 1000)
			}
		}},
		{"no hashes", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Hashes) > 0 {
				r.Hashes = nil
			}
		}},
		{"a path", func(r *proto.WeightsReply, q *proto.WeightsRequest) { named(r, "../../evil.json") }},
		{"an absolute path", func(r *proto.WeightsReply, q *proto.WeightsRequest) { named(r, "/tmp/evil.json") }},
		{"a hidden file", func(r *proto.WeightsReply, q *proto.WeightsRequest) { named(r, ".evil.json") }},
		{"a name twice", func(r *proto.WeightsReply, q *proto.WeightsRequest) { named(r, "config.json", "config.json") }},
		{"a size", func(r *proto.WeightsReply, q *proto.WeightsRequest) { sized(r, 1<<60, 0) }},
		{"a negative size", func(r *proto.WeightsReply, q *proto.WeightsRequest) { sized(r, -1, 0) }},
		{"a head beyond the file", func(r *proto.WeightsReply, q *proto.WeightsRequest) { sized(r, 10, 11) }},
		{"another list", func(r *proto.WeightsReply, q *proto.WeightsRequest) {
			if len(r.Files) > 0 {
				r.Files[0].Head = 1
			}
		}},
	} {
		_, _, err := open(t.TempDir(), func(q *proto.WeightsRequest) (*proto.WeightsReply, error) {
			r, err := l.answer(q)
			if err != nil {
				return nil, err
			}
			r = pb.Clone(r).(*proto.WeightsReply)
			x.change(r, q)
			return r, nil
		})
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", x.what, err)
		}
	}
	for _, q := range []*proto.WeightsRequest{{File: "../go.mod", List: l.list.List},
		{File: "config.json", List: "x"}, {File: "config.json", List: l.list.List, Chunks: []uint32{1 << 30}},
		{File: "config.json", List: l.list.List, Chunks: make([]uint32, 1000)}} {
		if r, err := l.answer(q); err == nil {
			t.Errorf("%v was answered with %d bytes", q, len(r.Data))
		}
	}
	if r, err := l.answer(&proto.WeightsRequest{File: "config.json", List: l.list.List, HashesFrom: 1 << 31}); err != nil ||
		len(r.Hashes) > 0 {
		t.Errorf("hashes beyond the end: %v, %v", r, err)
	}
	random, err := checkpoint.Open("random:fry")
	if err != nil {
		t.Fatal(err)
	}
	defer random.Close()
	if _, _, err := (&server{ck: random, ctx: context.Background()}).hash(); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "the same model") {
		t.Errorf("random weights: %v", err)
	}
}

func named(r *proto.WeightsReply, names ...string) {
	if len(r.Files) == 0 {
		return
	}
	for i, n := range names {
		r.Files[i].Name = n
	}
	r.List = listHash(r)
}

func sized(r *proto.WeightsReply, size, head int64) {
	if len(r.Files) == 0 {
		return
	}
	r.Files[0].Size, r.Files[0].Head = size, head
	r.List = listHash(r)
}

// A load that a newer epoch cancels releases its slots for concurrent requests; otherwise later
// loads could not fetch anything. A server sends no byte of a file that has changed, and resumes
// when the original content is back.
func TestServerOfChangedFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../models/fry")); err != nil {
		t.Fatal(err)
	}
	l, _ := shelf(t, dir, "")
	const name = "model.safetensors"
	path := filepath.Join(dir, name)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(r *proto.WeightsRequest) (*proto.WeightsReply, error) {
		for {
			reply, err := l.answer(r)
			if err != nil || !reply.Pending {
				return reply, err
			}
			l.wg.Wait() // wait for the list
		}
	}
	first, err := ask(&proto.WeightsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	chunk := &proto.WeightsRequest{List: first.List, File: name, Chunks: []uint32{9}}
	if r, err := ask(chunk); err != nil || !bytes.Equal(r.Data, whole[9*chunkBytes:10*chunkBytes]) {
		t.Fatal(err)
	}
	other := bytes.Clone(whole)
	other[len(other)-1] ^= 1
	put(other)
	for _, what := range []string{"a chunk", "the list", "the list again"} {
		r := &proto.WeightsRequest{}
		if what == "a chunk" {
			r = chunk
		}
		if _, err := ask(r); err == nil || !strings.Contains(err.Error(), path) ||
			!strings.Contains(err.Error(), "put the old file back, or restart") {
			t.Errorf("%s of a changed file: %v", what, err)
		}
	}
	put(whole)
	again, err := ask(&proto.WeightsRequest{})
	if err != nil || again.List != first.List {
		t.Fatalf("the bytes are back: %v, list %s, want %s", err, again.GetList(), first.List)
	}
	if r, err := ask(chunk); err != nil || !bytes.Equal(r.Data, whole[9*chunkBytes:10*chunkBytes]) {
		t.Error(err)
	}
	// Another file with the same name and bytes is not the mapped one.
	if err := os.WriteFile(path+".new", whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(chunk); err == nil {
		t.Error("a chunk of another file")
	}
	if _, err := ask(&proto.WeightsRequest{}); err == nil || !strings.Contains(err.Error(), "not the file that this process opened") {
		t.Errorf("the list of another file: %v", err)
	}
}

func TestCacheCancelled(t *testing.T) {
	l, open := shelf(t, "../../models/fry", "")
	_, m, err := open(t.TempDir(), l.answer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := range int64(64) { // requests under way may still arrive
		if err := m.Fetch(ctx, "model.safetensors", []checkpoint.Span{{From: 1<<20 + i*chunkBytes, To: 1<<20 + (i+1)*chunkBytes}}); err != nil &&
			!errors.Is(err, context.Canceled) {
			t.Fatalf("a cancelled fetch: %v", err)
		}
	}
	if n := len(m.flights); n != 0 {
		t.Errorf("%d places of requests that are over", n)
	}
}
