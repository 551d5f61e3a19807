package socket

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/engine/lora/loratest"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// openAdapters makes the store of the rig's sockets.
func (r *rig) openAdapters(folders []string) {
	r.t.Helper()
	var err error
	if r.adapters, err = lora.OpenStore(r.t.TempDir(), 0); err != nil {
		r.t.Fatal(err)
	}
	for _, dir := range folders {
		a, err := lora.Open(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		r.loaded = append(r.loaded, a.ID)
		if err := a.Close(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// loadAdapters loads the rig's adapters on all sockets, whose store lacks them at first.
func (r *rig) loadAdapters() {
	r.t.Helper()
	var keep [][]byte
	for i, id := range r.loaded {
		keep = append(keep, id.Bytes())
		for _, reply := range r.ask(&proto.AdapterRequest{Epoch: r.epoch, Id: id.Bytes(), Load: true, Keep: keep}) {
			if reply.Missing != (r.epoch == 1) {
				r.t.Fatalf("adapter %d in epoch %d: missing %v", i, r.epoch, reply.Missing)
			}
		}
		if r.epoch > 1 {
			continue
		}
		for _, name := range lora.Files() {
			data, err := os.ReadFile(filepath.Join(r.c.adapters[i], name))
			if err != nil {
				r.t.Fatal(err)
			}
			at := int64(0)
			for part := range slices.Chunk(data, 1000) {
				one := &rig{t: r.t, sys: r.sys, pids: r.pids[:1]} // the sockets share a store
				one.ask(&proto.AdapterRequest{Id: id.Bytes(), File: name, Offset: at, Data: part})
				at += int64(len(part))
			}
		}
		for _, reply := range r.ask(&proto.AdapterRequest{Epoch: r.epoch, Id: id.Bytes(), Load: true, Keep: keep}) {
			if reply.Missing || reply.Bytes == 0 {
				r.t.Fatalf("adapter %d: %v", i, reply)
			}
		}
	}
}

// ask sends a request for adapters to every socket, one after another.
func (r *rig) ask(m *proto.AdapterRequest) (replies []*proto.AdapterReply) {
	r.t.Helper()
	for _, p := range r.pids {
		done := make(chan error, 1)
		r.sys.Root.Send(p, &Adapter{Request: m, Reply: func(reply *proto.AdapterReply, err error) {
			replies = append(replies, reply)
			done <- err
		}})
		one := *r
		one.pids = r.pids[:1]
		one.all(done)
	}
	return replies
}

const loraData = "testdata/lora"

// TestLoRAGoldens: logits and greedy tokens with an adapter equal those of PEFT's computation in torch
// (train/goldens_lora.py): all modules, ranks and scales by pattern, rank-stabilised scales, fused
// modules, and rows in another order, on any number of sockets with both mappings.
func TestLoRAGoldens(t *testing.T) {
	for _, c := range []struct{ name, base string }{{"llama_r8", "llama"}, {"qwen3_r16", "qwen3"},
		{"phi3_rslora", "phi3"}, {"glm4_r8", "glm4"}} {
		g, plain := readGoldens(t, filepath.Join(loraData, c.name)), readGoldens(t, filepath.Join(modelData, c.base))
		for _, n := range []int{1, 3, 4} {
			for _, m := range topology.Mappings {
				if raceEnabled && n != 3 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", c.name, m, n), func(t *testing.T) {
					r := newRig(t, rigConfig{dir: filepath.Join(modelData, c.base), sockets: n, mapping: m,
						kv: tensor.F32, adapters: []string{filepath.Join(loraData, c.name)}})
					var reqs []*request
					for i, it := range g.Items {
						reqs = append(reqs, &request{prompt: it.Prompt, max: len(it.Greedy), owner: i, adapter: r.loaded[0], params: greedy(len(it.Logits))})
					}
					for i, it := range plain.Items { // between them, rows without an adapter
						reqs = append(reqs, &request{prompt: it.Prompt, max: len(it.Greedy), owner: i, params: greedy(len(it.Logits))})
					}
					r.generate(64, reqs...)
					for i, it := range append(g.Items, plain.Items...) {
						if !slices.Equal(reqs[i].tokens, it.Greedy) {
							t.Errorf("prompt %d: got %v, want %v", i, reqs[i].tokens, it.Greedy)
						}
						compareLogits(t, reqs[i].scores[0].Drawn[0].Top, it.Logits, 1e-3)
					}
				})
			}
		}
	}
}

// eightAdapters writes adapters of several ranks for a model.
func eightAdapters(t *testing.T, c *model.Config) (dirs []string) {
	t.Helper()
	for i, rank := range []int{8, 16, 64, 1, 32, 16, 200, 3} {
		dir := filepath.Join(t.TempDir(), fmt.Sprint("adapter", i))
		tensors := loratest.Random(c, rank, uint64(i))
		if i == 5 { // attention only
			for name := range tensors {
				if strings.Contains(name, ".mlp.") {
					delete(tensors, name)
				}
			}
		}
		if err := loratest.Write(dir, loratest.Config(rank, nil), tensors); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, dir)
	}
	return dirs
}

// TestLoRASameBits: the bits of a request with an adapter, and of one without, are the same alone and in a
// mix of eight adapters, on any number of sockets, with both mappings, and with quantized weights.
func TestLoRASameBits(t *testing.T) {
	for _, m := range []struct{ dir, weights string }{{goldenDir, "F32"}, {goldenDir, "bf16"},
		{goldenDir, "q8_0"}, {goldenDir, "q4_0"}, {filepath.Join(modelData, "phi3"), "bf16"},
		{filepath.Join(modelData, "gemma4_31b"), "q8_0"}, {filepath.Join(modelData, "cohere2"), "bf16"}} {
		ck, err := checkpoint.Open(m.dir)
		if err != nil {
			t.Fatal(err)
		}
		dirs := eightAdapters(t, &ck.Config)
		if err := ck.Close(); err != nil {
			t.Fatal(err)
		}
		cuts := []rigConfig{
			{sockets: 1, mapping: topology.Gather, passes: 5},
			{sockets: 3, mapping: topology.Reduce, shares: []float64{1, 4, 2}},
			{sockets: 4, mapping: topology.Gather, shares: []float64{3, 1, 1, 2}, passes: 3},
			{sockets: 3, mapping: topology.Gather},
			{sockets: 4, mapping: topology.Reduce},
		}
		if raceEnabled {
			cuts = cuts[1:3]
		}
		requests := func(ids []lora.ID) (reqs []*request) {
			for i := range 10 {
				q := mixed("snapstream:sink=4,recent=40,topk=40,obs=8,pool=7")[i%5]
				q.owner, q.arrives, q.max = i, 2*i, 12
				for j := range q.prompt {
					q.prompt[j] = (q.prompt[j] + int32(i)) % 500
				}
				if i < 8 {
					q.adapter = ids[i]
				}
				reqs = append(reqs, q)
			}
			return reqs
		}
		c := rigConfig{dir: m.dir, weights: m.weights, kv: tensor.BF16, adapters: dirs}
		alone := c
		alone.sockets, alone.mapping = 1, topology.Reduce
		r := newRig(t, alone)
		want := requests(r.loaded)
		for _, q := range want {
			q.arrives = 0
			r.generate(512, q)
		}
		without := requests(make([]lora.ID, 8))
		r.generate(512, without[1])
		if bytes.Equal(bits(t, without[1:2]), bits(t, want[1:2])) {
			t.Errorf("%s, %s: an adapter changes nothing", m.dir, m.weights)
		}
		for _, cut := range cuts {
			cut.dir, cut.weights, cut.kv, cut.adapters = c.dir, c.weights, c.kv, c.adapters
			r := newRig(t, cut)
			got := requests(r.loaded)
			r.generate(37, got...)
			for i := range got {
				if !bytes.Equal(bits(t, got[i:i+1]), bits(t, want[i:i+1])) {
					t.Errorf("%s, %s, %d sockets, %s: request %d differs from the same request alone", m.dir, m.weights, cut.sockets, cut.mapping, i)
				}
			}
		}
	}
}

// TestLoRAResidence: a plan with an adapter that is not in memory is refused; adapters leave the memory,
// and the memory has its bound. Each epoch loads them again.
func TestLoRAResidence(t *testing.T) {
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	dirs := eightAdapters(t, &ck.Config)[:2]
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, rigConfig{dir: goldenDir, sockets: 2, mapping: topology.Gather, adapters: dirs})
	status := func() *proto.SocketStatus {
		c := make(chan *proto.SocketStatus, 1)
		r.sys.Root.Send(r.pids[0], &Status{Reply: func(s *proto.SocketStatus) { c <- s }})
		return <-c
	}
	before := status()
	if before.Adapters != 2 || before.AdapterBytes == 0 {
		t.Errorf("%d adapters of %d bytes in memory, want 2", before.Adapters, before.AdapterBytes)
	}
	r.ask(&proto.AdapterRequest{Epoch: r.epoch, Keep: [][]byte{r.loaded[1].Bytes()}})
	if after := status(); after.Adapters != 1 || after.AdapterBytes >= before.AdapterBytes {
		t.Errorf("%d adapters of %d bytes after one of 2 left", after.Adapters, after.AdapterBytes)
	}
	p := greedy(0)
	refused := make(chan error, 1)
	r.sys.Root.Send(r.pids[0], &Step{Request: &proto.StepRequest{Epoch: r.epoch, Step: 1,
		Open:   []*proto.Open{{Seq: 1, Policy: "full", Sampling: plan.EncodeSampling(&p), PromptTokens: 1, Adapter: r.loaded[0].Bytes()}},
		Chunks: []*proto.Chunk{{Seq: 1, Tokens: []uint32{5}, Prefill: true, Last: true, Sample: true}}},
		Reply: func(_ *proto.StepReply, err error) { refused <- err }})
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "is not loaded") {
		t.Errorf("a plan with an adapter that left the memory: %v", err)
	}
	r.place(2)
	r.step = 0
	if got := status(); got.Adapters != 2 {
		t.Errorf("%d adapters in the next epoch, want 2", got.Adapters)
	}
}

// TestLoRALeavesOpenSequence: after an adapter has left the memory, rows of a sequence that was opened with it are refused,
// also when the adapter has been loaded again. The sequence's cache can still be taken over.
func TestLoRALeavesOpenSequence(t *testing.T) {
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	dirs := eightAdapters(t, &ck.Config)[:1]
	if err := ck.Close(); err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		r := newRig(t, rigConfig{dir: goldenDir, sockets: 1, mapping: topology.Gather, adapters: dirs})
		p, prompt := greedy(0), []uint32{5, 6, 7}
		open := func(seq uint64) *proto.Open {
			return &proto.Open{Seq: seq, Policy: "full", Sampling: plan.EncodeSampling(&p), PromptTokens: 3, Adapter: r.loaded[0].Bytes()}
		}
		rows := func(seq uint64) []*proto.Chunk {
			return []*proto.Chunk{{Seq: seq, Start: 3, Tokens: []uint32{8}, Sample: true}}
		}
		r.run(&proto.StepRequest{Open: []*proto.Open{open(1), open(2)}, Chunks: []*proto.Chunk{
			{Seq: 1, Tokens: prompt, Prefill: true, Last: true, Sample: true}, {Seq: 2, Tokens: prompt, Prefill: true, Last: true, Sample: true}}})
		r.ask(&proto.AdapterRequest{Epoch: r.epoch})
		if again {
			r.ask(&proto.AdapterRequest{Epoch: r.epoch, Id: r.loaded[0].Bytes(), Keep: [][]byte{r.loaded[0].Bytes()}, Load: true})
			next := open(3)
			next.Fork, next.Take, next.Resume, next.TailTokens = 2, true, prompt, 1
			r.run(&proto.StepRequest{Open: []*proto.Open{next}, Chunks: rows(3)})
		}
		refused := make(chan error, 1)
		r.step++
		r.sys.Root.Send(r.pids[0], &Step{Request: &proto.StepRequest{Epoch: r.epoch, Step: r.step, Chunks: rows(1)},
			Reply: func(_ *proto.StepReply, err error) { refused <- err }})
		if err := <-refused; err == nil || !strings.Contains(err.Error(), "has left the memory") {
			t.Errorf("loaded again %v: rows with an adapter that left the memory: %v", again, err)
		}
	}
}
