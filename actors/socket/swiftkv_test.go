package socket

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// TestSameBitsSwiftKV checks that rows that skip the later layers change no result: with any
// policy, type of weights, number of sockets and chunk size, in both mappings. The reference reads
// each prompt whole on one socket, and all of its rows go through every layer.
func TestSameBitsSwiftKV(t *testing.T) {
	rows := []struct{ model, policy, weights string }{
		{"swiftkv", "full", "F32"}, {"swiftkv_across", "full", "q8_0"},
		{"swiftkv_across", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "F32"},
		{"swiftkv", "h2o:recent=40,topk=40,step=1", "q8_0"}, {"swiftkv_bias", "snapkv:topk=56,obs=40,pool=5", "q8_0"},
	}
	if !testing.Short() && !raceEnabled {
		rows = append(rows, struct{ model, policy, weights string }{"swiftkv_bias", "full", "q4_0"})
		for i, policy := range everyPolicy {
			rows = append(rows, struct{ model, policy, weights string }{[]string{"swiftkv", "swiftkv_across", "swiftkv_bias"}[i%3],
				policy, []string{"F32", "q8_0"}[i%2]})
		}
	}
	cuts := []rigConfig{
		{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 5, 2}},
		{sockets: 4, mapping: topology.Gather},
		{sockets: 16, mapping: topology.Reduce},
		{sockets: 16, mapping: topology.Gather, shares: []float64{9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3}},
		{sockets: 1, mapping: topology.Gather},
	}
	for i, row := range rows {
		t.Run(strings.Join([]string{row.model, row.policy, row.weights}, "/"), func(t *testing.T) {
			t.Parallel()
			base := rigConfig{dir: filepath.Join(modelData, row.model), sockets: 1, mapping: topology.Gather, kv: tensor.BF16, weights: row.weights}
			alone := newRig(t, base)
			alone.score = true // with scores no row skips a layer
			want := mixed(row.policy)[:6]
			for _, q := range want {
				q.arrives = 0
				alone.generate(512, q)
			}
			for j, c := range cuts {
				if testing.Short() && j != i%3 || !testlevel.Long() && (i+2*j)%5 > 1 { // two configurations per policy; each runs with several policies
					continue
				}
				c.dir, c.kv, c.weights = base.dir, base.kv, base.weights
				got := mixed(row.policy)[:6]
				newRig(t, c).generate([]int{31, 100, 64, 333, 64}[j], got...)
				if !bytes.Equal(bits(t, got), bits(t, want)) {
					t.Errorf("%d sockets, %s: results differ from those of whole prompts on one", c.sockets, c.mapping)
				}
			}
		})
	}
}

// TestSameBitsAdapters does the same with the bundled adapters for the bundled model.
func TestSameBitsAdapters(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("of trained weights")
	}
	for _, name := range []string{"fry-swiftkv", "fry-swiftkv-across"} {
		sameAsAlone(t, rigConfig{dir: "../../models/fry", swiftKV: "../../models/" + name},
			"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", 41,
			rigConfig{sockets: 3, mapping: topology.Gather, shares: []float64{1, 4, 2}}, rigConfig{sockets: 4, mapping: topology.Reduce})
	}
}

// TestSharedCacheIsCountedOnce checks that the ledger books exactly the bytes of the stores of layers
// with shared caches. That is half of the bytes of separate caches.
func TestSharedCacheIsCountedOnce(t *testing.T) {
	r := newRig(t, rigConfig{dir: filepath.Join(modelData, "swiftkv_across"), sockets: 1, mapping: topology.Gather, kv: tensor.BF16})
	q := &request{prompt: somePrompt(200, 1), max: 2, params: greedy(0), policy: "full"}
	g := shard.GeometryOf(&r.ck.Config, tensor.BF16)
	if g.Layers != 4 {
		t.Fatalf("%d caches of 6 layers, of which the last four share two", g.Layers)
	}
	r.generate(64, q)
	status := make(chan *proto.SocketStatus, 1)
	r.sys.Root.Send(r.pids[0], &Status{Reply: func(s *proto.SocketStatus) { status <- s }})
	if got, want := (<-status).KvUsedBytes, kvcache.ResidentBytes(g, 200, 201, kvcache.Full()); got != want {
		t.Errorf("the cache takes %d bytes, %d were booked", got, want)
	}
}
