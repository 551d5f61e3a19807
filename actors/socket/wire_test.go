package socket

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/collective"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
	"github.com/shoal-llm/shoal/topology"
)

// recorder is a transport that records a line for each message that its rank sends.
type recorder struct {
	collective.Transport
	mu    *sync.Mutex
	lines *[]string
	rank  int
}

func (r *recorder) record(dst int, msg []byte) {
	body := sha256.Sum256(msg[collective.HeaderBytes:])
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.lines = append(*r.lines, fmt.Sprintf("%d to %d: %x %x", r.rank, dst, msg[:collective.HeaderBytes], body[:8]))
}

func (r *recorder) Broadcast(msg []byte) error {
	r.record(-1, msg)
	return r.Transport.Broadcast(msg)
}

func (r *recorder) Send(dst int, msg []byte) error {
	r.record(dst, msg)
	return r.Transport.Send(dst, msg)
}

// conversation returns the hash of all messages between the sockets of a cluster for two requests.
// Ranks derive the order of collectives from the plan. Two builds that derive it differently cannot
// work together, although no message between processes differs.
func conversation(t *testing.T, c rigConfig, policies ...string) string {
	t.Helper()
	var mu sync.Mutex
	var lines []string
	c.wrap = func(rank int, inner collective.Transport) collective.Transport {
		return &recorder{inner, &mu, &lines, rank}
	}
	r := newRig(t, c)
	vocab := int32(r.ck.Config.Vocab)
	for i, policy := range policies {
		short, long := &request{max: 3, owner: i, policy: policy, params: sampler.Default()},
			&request{max: 4, owner: i + 1, policy: policy, params: sampler.Default(), arrives: 1}
		short.params.Temperature, long.params.Seed = 0, 7
		for j := range int32(90) {
			if j < 9 {
				short.prompt = append(short.prompt, (j*j+3)%vocab)
			}
			long.prompt = append(long.prompt, (j*j+j/3+5)%vocab)
		}
		r.generate(50, short, long)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(lines) // ranks send concurrently; headers number the operations
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return fmt.Sprintf("%d messages %x", len(lines), sum[:8])
}

// TestWire records the messages of collectives, for every architecture and mapping, for unquantized and
// quantized weights, and for every policy.
func TestWire(t *testing.T) {
	if raceEnabled || testing.Short() {
		t.Skip("computes for long")
	}
	var families, policies strings.Builder
	for _, name := range []string{"llama", "qwen2", "qwen3", "mistral", "mistral_window", "gemma3",
		"phi3", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "swiftkv"} {
		for _, m := range []topology.Mapping{topology.Gather, topology.Reduce} {
			for _, weights := range []string{"F32", "q8_0"} {
				c := rigConfig{dir: filepath.Join(modelData, name), sockets: 3, mapping: m, weights: weights, kv: tensor.BF16}
				fmt.Fprintf(&families, "%s %s %s: %s\n", name, m, weights, conversation(t, c, "full"))
			}
		}
	}
	for _, policy := range []string{"streaming:sink=4,recent=30", "snapkv:topk=26,obs=8,pool=5",
		"snapstream:sink=4,recent=20,topk=20,obs=8,pool=7", "sage:sink=4,recent=30,topk=20",
		"h2o:recent=20,topk=20", "tova:size=40", "knorm:sink=4,recent=20,topk=20", "quest:page=16,budget=48",
		"shadowkv:chunk=8,budget=24,outliers=3,local=2",
		"shadowkv:keys=lowrank,rank=16,chunk=8,budget=24,outliers=3,local=2",
		"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
		"pyramidkv:topk=20,obs=8,pool=5,beta=4", "lagkv:sink=4,lag=8,topk=20", "loki:budget=40,dims=0.5,calib=32",
		"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5", "adakv:topk=64,obs=8,pool=5",
		"snapstream:sink=4,recent=1,topk=12,obs=8,recall=16"} {
		c := rigConfig{dir: goldenDir, sockets: 2, mapping: topology.Gather, kv: tensor.BF16}
		fmt.Fprintf(&policies, "%s: %s\n", policy, conversation(t, c, policy))
	}
	passes := conversation(t, rigConfig{dir: goldenDir, sockets: 3, mapping: topology.Gather, kv: tensor.BF16, passes: 3}, "full")
	wiretest.Check(t, wiretest.Form{Name: "families", Text: families.String()}, wiretest.Form{Name: "policies", Text: policies.String()},
		wiretest.Form{Name: "several passes", Text: passes})
}
