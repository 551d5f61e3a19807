package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// blocksOnDisk waits until every socket has written exactly this number of blocks.
func blocksOnDisk(t *testing.T, e *Local, blocks int) {
	t.Helper()
	testutil.Eventually(t, patience, fmt.Sprintf("%d blocks on every disk", blocks), func() (bool, string) {
		state := ""
		for i, s := range e.sockets {
			if st := s.disk.Stats(); st.Blocks != blocks {
				state = fmt.Sprintf("socket %d: %+v", i, st)
			}
		}
		return state == "", state
	})
}

// TestPrefixDisk: after a restart, a cluster uses the prefix blocks of the earlier cluster, on the same
// or another number of sockets, with any chunk size. The answer equals that of a cold start, bit for
// bit, under every policy.
func TestPrefixDisk(t *testing.T) {
	policies := prefixPolicies
	if testing.Short() {
		policies = []string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "quest:page=16,budget=96"}
	}
	prefixDisk(t, ServeConfig{Model: goldenDir, KV: "bf16"}, policies, [][2]LocalConfig{
		{{Sockets: 1}, {Sockets: 1}},
		{{Sockets: 3, Shares: []float64{1, 5, 2}}, {Sockets: 3, Shares: []float64{1, 5, 2}}},
		{{Sockets: 4}, {Sockets: 1}},
		{{Sockets: 1}, {Sockets: 3, Shares: []float64{2, 1, 1}}},
	})
	for _, name := range []string{"gemma3", "deepseek_v2"} { // models with windows and with latent attention
		t.Run(name, func(t *testing.T) {
			prefixDisk(t, ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name)},
				policies[:1], [][2]LocalConfig{{{Sockets: 1}, {Sockets: 4}}, {{Sockets: 4}, {Sockets: 2}}})
		})
	}
}

// TestPrefixDiskWithStates repeats that for recurrent states. Files then also hold the snapshot after the
// last block that another prompt can reuse.
func TestPrefixDiskWithStates(t *testing.T) {
	for _, name := range []string{"qwen3_5", "qwen3_5_uneven"} {
		t.Run(name, func(t *testing.T) {
			prefixDisk(t, ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name)},
				[]string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"},
				[][2]LocalConfig{{{Sockets: 1}, {Sockets: 1}}, {{Sockets: 2}, {Sockets: 1}}, {{Sockets: 1}, {Sockets: 3}}})
		})
	}
}

func prefixDisk(t *testing.T, serve ServeConfig, policies []string, cuts [][2]LocalConfig) {
	lengths := []int{64, 65, 129, 300}
	cold := serve
	cold.PrefixCache = PrefixOff
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: cold})
	want := map[string]replied{}
	for _, policy := range policies {
		for _, n := range lengths {
			want[fmt.Sprint(policy, n)] = complete(t, alone, &engine.Request{ID: fmt.Sprint(policy, n), Prompt: text(1, n), Policy: policy})
		}
	}
	for _, cut := range cuts {
		t.Run(fmt.Sprintf("%d then %d sockets", cut[0].Sockets, cut[1].Sockets), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "d")
			for i := range cut {
				cut[i].Threads, cut[i].Serve, cut[i].PrefixDisk, cut[i].PrefixDiskSize = 1, serve, dir, 1<<30
			}
			cut[1].Serve.Mapping, cut[1].Serve.Chunk = "reduce", 50
			t.Run("write", func(t *testing.T) {
				e := startLocal(t, cut[0])
				complete(t, e, &engine.Request{ID: "first", Prompt: text(1, 320)})
				files := 5
				if e.geometry.Recurrent.Layers > 0 {
					files++
				}
				blocksOnDisk(t, e, files)
			})
			e := startLocal(t, cut[1])
			tries := 3
			if e.geometry.Recurrent.Layers > 0 {
				tries = 10 // the first one writes the snapshot of a shorter prompt
			}
			for _, policy := range policies {
				p, err := kvpolicy.Parse(policy)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range lengths {
					id := fmt.Sprint(policy, n)
					least := p.ReusableTokens(n) / tensor.BlockSlots * tensor.BlockSlots
					if p.Needs.PromptAttention {
						least = 0 // sums of attention are kept in memory only
					}
					cached := -1
					for try := 0; try < tries && cached != least; try++ { // reading from disk is abandoned if computing the text would be faster
						got := complete(t, e, &engine.Request{ID: id, Prompt: text(1, n), Policy: policy})
						if cached = got.cached; got.bits != want[id].bits {
							t.Errorf("%s, %d tokens: another answer with %d from the disk", policy, n, cached)
						}
						e.batcher.ResetPrefixCache() // the disk keeps its blocks
					}
					if cached != least {
						t.Errorf("%s, %d tokens: %d from the disk, want %d", policy, n, cached, least)
					}
				}
			}
			waitIdle(t, e)
		})
	}
}

// TestPrefixDiskFails: damaged files and failed disks are cache misses. Neither they nor other
// tenants' texts affect an answer. Emptying the cache empties the disk.
func TestPrefixDiskFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	e := startLocal(t, LocalConfig{Sockets: 2, Threads: 1, Serve: ServeConfig{Model: goldenDir}, PrefixDisk: dir, PrefixDiskSize: 1 << 30})
	want := complete(t, e, &engine.Request{ID: "first", Prompt: text(1, 300)})
	blocksOnDisk(t, e, 4)
	// expect sends a request with an empty memory cache and waits until the disk has the given
	// number of blocks.
	expect := func(what, tenant string, cached, blocks int) {
		t.Helper()
		e.batcher.ResetPrefixCache()
		got := complete(t, e, &engine.Request{ID: what, Prompt: text(1, 300), Tenant: tenant})
		if got.bits != want.bits || got.cached != cached {
			t.Errorf("%s: the same answer %v, %d tokens from the disk, want %d", what, got.bits == want.bits, got.cached, cached)
		}
		if blocks > 0 {
			blocksOnDisk(t, e, blocks)
		}
	}
	expect("whole", "", 256, 4)
	expect("another's", "somebody", 0, 8)
	files, err := filepath.Glob(filepath.Join(dir, "0", "*-2-*"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect("with a bit of the third block changed", "", 128, 8) // the damaged block is written again
	expect("mended", "", 256, 8)
	e.ResetPrefixCache(t.Context())
	blocksOnDisk(t, e, 0)
	expect("emptied", "", 0, 4)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	expect("without its folder", "", 0, 0)
	waitIdle(t, e)
}
