package socket

import (
	"math/rand/v2"
	"path/filepath"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// everyPolicy has a policy for each way to evict, read or score.
var everyPolicy = []string{"full", "streaming:sink=4,recent=28", "snapkv:topk=40,obs=8",
	"snapstream:sink=4,recent=20,topk=24,obs=8", "sage:sink=4,recent=20,topk=24",
	"h2o:recent=20,topk=20", "h2o:recent=20,topk=20,step=1", "tova:size=40",
	"streaming:sink=4,recent=28,positions=cache", "streaming:sink=4,recent=28,positions=cache,half=1",
	"h2o:recent=20,topk=20,step=1,positions=cache,half=1", "knorm:sink=4,recent=20,topk=20", "quest:page=16,budget=48",
	"shadowkv:chunk=8,budget=16,outliers=1,local=1", "shadowkv:keys=lowrank,rank=8,chunk=4,budget=8,outliers=1,local=1",
	"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
	"pyramidkv:topk=30,obs=8,pool=5,beta=4", "lagkv:sink=4,lag=16,topk=20", "loki:budget=40,dims=0.5,calib=32",
	"infinigen:alpha=2,most=0.3,calib=32", "resnap:topk=20,every=9,obs=8,pool=5", "adakv:topk=70,obs=8,pool=5",
	"snapstream:sink=4,recent=1,topk=12,obs=8,recall=16"}

// TestStepsOfSeveralTokens checks that steps with 1 to 9 tokens of a sequence, of which a later
// plan accepts some, give the bits of one token at a time. Policies that allow replicas run with
// them.
func TestStepsOfSeveralTokens(t *testing.T) {
	policies := everyPolicy
	if raceEnabled {
		policies = policies[3:6]
	}
	for k, arch := range []string{"llama", "deepseek_v3", "gemma3", "gemma4_e2b", "gemma4_31b", "swiftkv", "swiftkv_across"} {
		for i, policy := range policies {
			if testing.Short() && (arch != "llama" || i%2 > 0) || !testlevel.Long() && k > 0 && (i+k)%2 > 0 { // every second policy, in turn
				continue
			}
			if p, err := kvpolicy.Parse(policy); err != nil || p.Scored() && (arch == "swiftkv_across" || arch == "gemma4_e2b") {
				continue // refused by the policy
			}
			t.Run(arch+"/"+policy, func(t *testing.T) {
				t.Parallel()
				c := rigConfig{dir: filepath.Join(modelData, arch), sockets: 3, mapping: topology.Mappings[(i/2+k)%2], kv: tensor.BF16}
				want := someRequests(policy, 40)
				newRig(t, c).generate(64, want...)
				r := newRig(t, c)
				rowsOfSeveral(t, r, want, someRequests(policy, 40))
			})
		}
	}
}

// someRequests differ in length and sampling.
func someRequests(policy string, tokens int) (list []*request) {
	for i := range 3 {
		p := greedy(3)
		if i > 0 {
			p.Temperature, p.Seed, p.RepetitionPenalty, p.FrequencyPenalty = 0.8, uint64(i), 1.1, 0.3
		}
		list = append(list, &request{prompt: somePrompt(30+21*i, i), max: tokens, params: p, owner: i, policy: policy})
	}
	return list
}

// rowsOfSeveral decodes sequences whose results are in want. Each row has a known token and some
// drafts, which are right or wrong at random.
func rowsOfSeveral(t *testing.T, r *rig, want, reqs []*request) {
	t.Helper()
	random := rand.New(rand.NewPCG(5, 6))
	for _, q := range reqs {
		q.max = 1
	}
	r.generate(72, reqs...)
	accepted := make([]int, len(reqs))
	for n := 0; ; n++ {
		s := &proto.StepRequest{}
		var rows []int // rows per request
		for i, q := range reqs {
			left := len(want[i].tokens) - len(q.tokens)
			if left == 0 {
				continue
			}
			if p, err := kvpolicy.Parse(q.policy); n == 2 && len(r.pids) == 3 && err == nil && !p.Scored() {
				s.Copy = append(s.Copy, &proto.Copy{Seq: q.id, Replica: uint32((q.owner + 1) % 3)})
			}
			c := &proto.Chunk{Seq: q.id, Start: uint32(q.at), Sample: true, Accepted: uint32(accepted[i])}
			size := 1 + random.IntN(9)
			right := 1 + random.IntN(min(size, left)) // rows whose token matches the uninterrupted run
			for j := range size {
				token := want[i].tokens[min(len(q.tokens)-1+j, len(want[i].tokens)-1)]
				if j >= right {
					token = (token + 1 + int32(random.IntN(50))) % 400
				}
				c.Tokens = append(c.Tokens, uint32(token))
			}
			accepted[i] = right
			s.Chunks, rows = append(s.Chunks, c), append(rows, i)
		}
		if len(rows) == 0 {
			return
		}
		got := r.run(s)
		for at, i := range rows {
			q, drawn := reqs[i], got[reqs[i].id].GetDrawn()
			if len(drawn) != accepted[i] { // results end at the first wrong draft
				t.Fatalf("step %d, sequence %d: %d results of %d rows, %d are right", n, i, len(drawn), len(s.Chunks[at].Tokens), accepted[i])
			}
			for _, d := range drawn {
				if expected := want[i].scores[len(q.tokens)].Drawn[0]; !pb.Equal(d, expected) {
					t.Fatalf("step %d, sequence %d, token %d: %v, one at a time %v", n, i, len(q.tokens), d, expected)
				}
				q.tokens = append(q.tokens, int32(d.Token))
			}
			q.at += accepted[i]
		}
	}
}
