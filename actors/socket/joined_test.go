package socket

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/actors/socket/step"
	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// exchangeCount counts the messages of each exchange.
type exchangeCount struct {
	mu  sync.Mutex
	all map[collective.OpID]int
}

type countingTransport struct {
	collective.Transport
	to *exchangeCount
}

func (c countingTransport) Send(to int, msg []byte) error {
	c.to.count(msg)
	return c.Transport.Send(to, msg)
}

func (c countingTransport) Broadcast(msg []byte) error {
	c.to.count(msg)
	return c.Transport.Broadcast(msg)
}

func (e *exchangeCount) count(msg []byte) {
	if h, _, bad := collective.ParseMessage(msg); bad == collective.DropNone {
		e.mu.Lock()
		e.all[h.Op]++
		e.mu.Unlock()
	}
}

// take returns the exchanges and messages since the last call.
func (e *exchangeCount) take() (exchanges, messages int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range maps.Values(e.all) {
		messages += n
	}
	exchanges = len(e.all)
	clear(e.all)
	return exchanges, messages
}

// TestJoinedHandOver: all layers of a short prompt go to its owner in one message from every other rank, and so
// does the copy of its cache to a replica. The prompt's last step has these and the logits more than another one.
func TestJoinedHandOver(t *testing.T) {
	const ranks, prompt = 3, 40
	for _, m := range topology.Mappings {
		seen := &exchangeCount{all: map[collective.OpID]int{}}
		r := newRig(t, rigConfig{dir: goldenDir, sockets: ranks, mapping: m, kv: tensor.BF16,
			wrap: func(_ int, inner collective.Transport) collective.Transport {
				return countingTransport{inner, seen}
			}})
		tokens := make([]uint32, prompt)
		params := greedy(1)
		open := &proto.Open{Seq: 1, Policy: "full", Sampling: plan.EncodeSampling(&params), PromptTokens: 2 * prompt}
		seen.take() // the barrier
		r.run(&proto.StepRequest{Open: []*proto.Open{open}, Chunks: []*proto.Chunk{{Seq: 1, Tokens: tokens, Prefill: true}}})
		first, messages := seen.take()
		r.run(&proto.StepRequest{Chunks: []*proto.Chunk{{Seq: 1, Start: prompt, Tokens: tokens, Prefill: true, Last: true, Sample: true}}})
		if last, more := seen.take(); last != first+2 || more != messages+2*(ranks-1) {
			t.Errorf("%s: %d exchanges of %d messages without a hand-over, %d of %d with one", m, first, messages, last, more)
		}
		decode := &proto.Chunk{Seq: 1, Start: 2 * prompt, Tokens: []uint32{5}, Sample: true}
		r.run(&proto.StepRequest{Chunks: []*proto.Chunk{decode}})
		first, messages = seen.take()
		decode.Start++
		r.run(&proto.StepRequest{Copy: []*proto.Copy{{Seq: 1, Replica: 2}}, Chunks: []*proto.Chunk{decode}})
		if last, more := seen.take(); last != first+2 || more != messages+2 {
			t.Errorf("%s: %d exchanges of %d messages without a replica, %d of %d that make one", m, first, messages, last, more)
		}
	}
}

// TestJoinedLayers: short caches move together, long ones layer by layer.
func TestJoinedLayers(t *testing.T) {
	var got []int
	for _, bytes := range []int{0, 1, 64 << 10, 1 << 20, 3 << 20, 4 << 20, 1 << 30} {
		got = append(got, step.JoinedLayers(bytes))
	}
	if want := []int{4 << 20, 4 << 20, 64, 4, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
