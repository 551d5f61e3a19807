package cluster

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/tier"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// disk simulates the disk of scratch files, with faults.
type disk struct {
	mu     sync.Mutex
	rate   int64        // bytes per second; 0: unlimited
	reads  atomic.Int64 // number of reads until they fail, if failing is set
	writes atomic.Int64
	flips  bool // reads return modified bytes
}

var errDisk = errors.New("test: the disk fails")

// takes waits for the time that n bytes take; transfers are sequential.
func (d *disk) takes(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rate > 0 {
		time.Sleep(time.Duration(int64(n) * int64(time.Second) / d.rate))
	}
}

// onDisk is one file.
type onDisk struct {
	d     *disk
	mu    sync.Mutex
	bytes []byte
}

func (f *onDisk) ReadAt(b []byte, at int64) (int, error) {
	if f.d.reads.Add(-1) < 0 {
		return 0, errDisk
	}
	f.d.takes(len(b))
	f.mu.Lock()
	defer f.mu.Unlock()
	if at+int64(len(b)) > int64(len(f.bytes)) {
		return 0, io.ErrUnexpectedEOF
	}
	copy(b, f.bytes[at:])
	if f.d.flips {
		b[0] ^= 1
	}
	return len(b), nil
}

func (f *onDisk) WriteAt(b []byte, at int64) (int, error) {
	if f.d.writes.Add(-1) < 0 {
		return 0, errDisk
	}
	f.d.takes(len(b))
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes = append(f.bytes, make([]byte, max(0, int(at)+len(b)-len(f.bytes)))...)
	copy(f.bytes[at:], b)
	return len(b), nil
}

func (f *onDisk) Close() error { return nil }

// TestKVDisk: sequences that do not fit in memory continue with their rows in files and produce the
// same bits. A slow, full, corrupting or failing disk only costs time.
func TestKVDisk(t *testing.T) {
	for _, policy := range []string{
		"shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=1", "squeezed:clusters=0.05,sparsity=0.9,tail=8,obs=12",
	} {
		t.Run(policy, func(t *testing.T) { testKVDisk(t, policy) })
	}
}

func testKVDisk(t *testing.T, policy string) {
	const length, sequences = 700, 5
	serve := ServeConfig{Model: goldenDir, KV: "bf16", PrefixCache: PrefixOff}
	ask := func(i int) *engine.Request {
		return &engine.Request{ID: fmt.Sprint("kv disk ", i), Prompt: text(i, length), Policy: policy, MaxTokens: 150}
	}
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	want := make([]replied, sequences)
	for i := range want {
		want[i] = complete(t, alone, ask(i))
	}
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	p, err := kvpolicy.Parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	g := shard.GeometryOf(&ck.Config, tensor.BF16)
	resident := kvcache.ResidentBytes(g, length+150, length+150, p)
	budget := kvcache.HandoverBytes(g, g.KVHeads, length+150, p) + 17*resident/16 // enough for two complete sequences
	third := budget                                                               // budget of each of three sockets
	if p.Reorders {
		third = kvcache.HandoverBytes(g, (g.KVHeads+2)/3, length+150, p) + 3*resident/5 // enough for one
	}
	const all = 1 << 40
	for _, c := range []struct {
		name    string
		sockets int
		disk    *disk
		reads   int64
		writes  int64
		limit   int64
		spills  bool // some sequences move rows to files
		loses   bool
	}{
		{"files", 1, nil, all, all, 1 << 30, true, false},
		{"files, three sockets", 3, nil, all, all, 1 << 30, true, false},
		{"200 MB/s", 1, &disk{rate: 200e6}, all, all, 1 << 30, true, false},
		{"fails when read", 1, &disk{}, 100, all, 1 << 30, true, true},
		{"wrong bytes", 1, &disk{flips: true}, all, all, 1 << 30, true, true},
		{"fails when written", 1, &disk{}, all, 0, 1 << 30, false, false},
		{"room for one", 1, &disk{}, all, all, kvcache.FileBytes(g, 13, p), true, false},
		{"room for none", 1, &disk{}, all, all, 1000, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.disk != nil && c.disk.rate > 0 && p.Reorders { // each run of slots reads the disk
				testlevel.NeedLong(t)
			}
			cfg := LocalConfig{Threads: 1, Sockets: c.sockets, Serve: serve, KVBudget: budget}
			if c.sockets == 3 {
				cfg.KVBudget = third
			}
			if c.disk == nil {
				cfg.KVDisk, cfg.KVDiskSize = filepath.Join(t.TempDir(), "kv"), c.limit
			} else {
				c.disk.reads.Store(c.reads)
				c.disk.writes.Store(c.writes)
				cfg.scratch = tier.NewScratch(func() (tier.Medium, error) { return &onDisk{d: c.disk}, nil }, c.limit, slog.New(slog.DiscardHandler))
			}
			e := startLocal(t, cfg)
			together, got := 0, make([]replied, sequences)
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() { got[i] = complete(t, e, ask(i)) })
			}
			over := make(chan struct{})
			go func() { wg.Wait(); close(over) }()
			for running := true; running; {
				select {
				case <-over:
					running = false
				case <-time.After(time.Millisecond):
					s, err := e.batcher.Snapshot(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					together = max(together, len(s.Running))
					for _, k := range s.Sockets {
						if k.Files > c.limit || k.Used > k.Budget {
							t.Errorf("%+v", k)
						}
					}
				}
			}
			if !slices.Equal(got, want) {
				t.Error("other answers than in memory")
			}
			s, err := e.batcher.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if (s.Totals.Spilled > 0) != c.spills || (s.Totals.Lost > 0) != c.loses {
				t.Errorf("%d went to files, %d of them were lost", s.Totals.Spilled, s.Totals.Lost)
			}
			if c.sockets == 1 && !c.loses && (together > 2) != c.spills {
				t.Errorf("%d ran together", together)
			}
		})
	}
}
