package socket

import (
	"bytes"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/topology"
)

// slowFirst delivers the messages of the first micro-batch late, so that the second one would overtake it if
// it did not wait.
func slowFirst(_ int, inner collective.Transport) collective.Transport { return slowTransport{inner} }

type slowTransport struct{ collective.Transport }

func (s slowTransport) Send(to int, msg []byte) error {
	return later(msg, func(msg []byte) error { return s.Transport.Send(to, msg) })
}

func (s slowTransport) Broadcast(msg []byte) error { return later(msg, s.Transport.Broadcast) }

// held counts the messages that were late.
var held atomic.Int64

func later(msg []byte, send func(msg []byte) error) error {
	h, _, bad := collective.ParseMessage(msg)
	if bad != collective.DropNone || h.Op.MicroBatch() != 1 {
		return send(msg)
	}
	held.Add(1)
	late := slices.Clone(msg)
	time.AfterFunc(time.Millisecond/2, func() { _ = send(late) }) // the memory transport fails when its group is closed
	return nil
}

// TestSameBitsMicroBatches: steps of two micro-batches give the bits of a single socket: for every kind of
// layer, with prompts that are cut between the micro-batches, and with every policy.
func TestSameBitsMicroBatches(t *testing.T) {
	const policy = "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7"
	for i, name := range []string{"llama", "qwen3_5", "swiftkv", "mixtral", "gemma4_e2b", "deepseek_v32", "qwen3_next",
		"granite_hybrid", "falcon_h1", "nemotron_h_moe", "gpt_oss", "gemma3", "cohere2", "llama4", "lfm2_moe",
		"swiftkv_across", "gemma4_31b", "glm_moe_dsa", "olmo2", "mistral_window", "phi3_longrope"} {
		if (raceEnabled || testing.Short()) && i > 3 {
			break
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := topology.Mappings[i%2]
			model := rigConfig{dir: filepath.Join(modelData, name), weights: []string{"F32", "q8_0"}[i/2%2]}
			clusters := []rigConfig{{sockets: 4, mapping: topology.Mappings[1-i%2], micro: 2}}
			slow := rigConfig{sockets: 3, mapping: of, shares: []float64{1, 4, 2}, micro: 2}
			if i < 5 {
				slow.wrap = slowFirst
			}
			sameAsAlone(t, model, policy, 71, append(clusters, slow)...)
		})
	}
	for i, policy := range everyPolicy {
		if raceEnabled || testing.Short() && i%4 > 0 {
			continue
		}
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			sameAsAlone(t, rigConfig{dir: goldenDir}, policy, 100, rigConfig{sockets: 3, mapping: topology.Mappings[i%2], micro: 2})
		})
	}
}

// TestMicroBatchesSweeps: prompts that are read layer by layer, two passes at a time.
func TestMicroBatchesSweeps(t *testing.T) {
	const policy = "snapkv:topk=56,obs=8,pool=5"
	before := held.Load()
	sameAsAlone(t, rigConfig{dir: goldenDir, weights: "q8_0"}, policy, 128,
		rigConfig{sockets: 3, mapping: topology.Gather, sweep: 31, micro: 2, wrap: slowFirst},
		rigConfig{sockets: 4, mapping: topology.Reduce, sweep: 64, micro: 2, group: 2})
	if held.Load() == before {
		t.Error("no step was divided")
	}
}

// TestMicroBatchesDrafts: rows with drafts, which stay whole.
func TestMicroBatchesDrafts(t *testing.T) {
	for i, arch := range []string{"llama", "deepseek_v3", "swiftkv"} {
		policy := everyPolicy[3*i]
		c := rigConfig{dir: filepath.Join(modelData, arch), sockets: 3, mapping: topology.Mappings[i%2], kv: tensor.BF16}
		want := someRequests(policy, 40)
		newRig(t, c).generate(64, want...)
		c.micro = 2
		rowsOfSeveral(t, newRig(t, c), want, someRequests(policy, 40))
	}
}

// TestMicroBatchesPool: texts that end with a vector. Those of a model without causal attention are not
// divided.
func TestMicroBatchesPool(t *testing.T) {
	for _, nonCausal := range []bool{false, true} {
		var want []*text
		for _, c := range []rigConfig{{sockets: 1}, {sockets: 3, micro: 2, wrap: slowFirst}, {sockets: 4, micro: 2}} {
			c.dir, c.kv, c.nonCausal, c.mapping = goldenDir, tensor.BF16, nonCausal, topology.Mappings[c.sockets%2]
			got := texts(pooling.Mean, pooling.Last, pooling.CLS)
			chunk := 40
			if nonCausal {
				chunk = fullStep
			}
			newRig(t, c).pool(chunk, got...)
			if want == nil {
				want = got
			}
			for i := range got {
				if !slices.Equal(got[i].vector, want[i].vector) {
					t.Errorf("not causal %v, %d sockets: the vector of text %d differs from that of a single socket", nonCausal, c.sockets, i)
				}
			}
		}
	}
}

// TestMicroBatchesFullStep: each micro-batch has memory for its part of a full step.
func TestMicroBatchesFullStep(t *testing.T) {
	var want []byte
	for _, micro := range []int{1, 2} {
		got := []*request{{prompt: somePrompt(fullStep, 1), max: 2, params: greedy(5)}}
		newRig(t, rigConfig{dir: goldenDir, sockets: 3, mapping: topology.Reduce, kv: tensor.BF16, micro: micro}).generate(fullStep, got...)
		if want == nil {
			want = bits(t, got)
		}
		if !bytes.Equal(bits(t, got), want) {
			t.Errorf("%d micro-batches give other results", micro)
		}
	}
}

// pairTransport holds every message of the first micro-batch until the second one has sent its message of the same
// exchange.
type pairTransport struct {
	collective.Transport
	mu    sync.Mutex
	sent  uint64 // newest sequence number of the second micro-batch
	held  []heldMessage
	pairs *atomic.Int64
}

type heldMessage struct {
	of   collective.OpID
	send func() error
}

func (p *pairTransport) Send(to int, msg []byte) error {
	return p.pass(msg, func(msg []byte) error { return p.Transport.Send(to, msg) })
}

func (p *pairTransport) Broadcast(msg []byte) error { return p.pass(msg, p.Transport.Broadcast) }

func (p *pairTransport) pass(msg []byte, send func(msg []byte) error) error {
	h, _, bad := collective.ParseMessage(msg)
	if bad != collective.DropNone || h.Op.MicroBatch() == 0 {
		return send(msg)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.Op.MicroBatch() == 1 {
		msg = slices.Clone(msg)
		p.held = append(p.held, heldMessage{h.Op, func() error { return send(msg) }})
	} else if err := send(msg); err != nil {
		return err
	} else {
		p.sent = h.Op.Sequence()
	}
	for i := 0; i < len(p.held); i++ {
		if x := p.held[i]; p.sent >= x.of.Sequence() {
			p.held = slices.Delete(p.held, i, i+1)
			p.pairs.Add(1)
			if err := x.send(); err != nil {
				return err
			}
			i--
		}
	}
	return nil
}

// TestMicroBatchesOverlap: the exchange of one micro-batch is under way while the other one computes and begins its
// own. Otherwise these steps would never end.
func TestMicroBatchesOverlap(t *testing.T) {
	for _, m := range topology.Mappings {
		var pairs atomic.Int64
		c := rigConfig{dir: goldenDir, sockets: 2, mapping: m, kv: tensor.BF16, micro: 2,
			wrap: func(_ int, inner collective.Transport) collective.Transport {
				return &pairTransport{Transport: inner, pairs: &pairs}
			}}
		var reqs []*request
		for i := range 4 {
			reqs = append(reqs, &request{prompt: somePrompt(20, i), max: 6, owner: i, params: greedy(0)})
		}
		newRig(t, c).generate(64, reqs...)
		if pairs.Load() == 0 {
			t.Errorf("%s: no exchange of two micro-batches", m)
		}
	}
}
