package socket

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/topology"
)

// TestCachesOutliveTheirEpoch checks that sequences continue with equal tokens and scores in a later
// epoch with fewer sockets. They use the owner's cache, or the replica if the owner is lost, with and
// without a delivered result of the last step.
func TestCachesOutliveTheirEpoch(t *testing.T) {
	policies := []string{"full", "streaming:sink=4,recent=28", "snapstream:sink=4,recent=20,topk=24,obs=8",
		"sage:sink=4,recent=20,topk=24", "snapkv:topk=40,obs=8",
		"streaming:sink=4,recent=28,positions=cache", "streaming:sink=4,recent=28,positions=cache,half=1",
		"quest:page=16,budget=32", "shadowkv:chunk=8,budget=16,outliers=1,local=1",
		"shadowkv:chunk=4,budget=12,outliers=2,local=2,int8=1", "shadowkv:keys=lowrank,rank=16,chunk=4,budget=12,outliers=2,local=2",
		"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64",
		"pyramidkv:topk=30,obs=8,pool=5,beta=4", "lagkv:sink=4,lag=16,topk=30", "loki:budget=40,dims=0.5,calib=32",
		"infinigen:alpha=2,most=0.3,calib=32", "adakv:topk=70,obs=8,pool=5", "snapkv:topk=30,obs=8,ring=12",
		"snapstream:sink=4,recent=1,topk=12,obs=8,recall=16",
		"squeezed:clusters=0.25,levels=2,sparsity=0.5,tail=4,obs=6,segment=64,ring=12",
		"shadowkv:chunk=8,budget=16,outliers=1,local=1,ring=12", "quest:page=16,budget=32,skip=1,ring=9",
		"shadowkv:keys=lowrank,rank=16,chunk=4,budget=12,outliers=2,local=2,ring=10",
		"loki:budget=40,dims=0.5,calib=32,ring=12", "infinigen:alpha=2,most=0.3,calib=32,ring=7"}
	if testing.Short() {
		policies = append(policies[:3], policies[8], policies[10])
	}
	if raceEnabled {
		policies = policies[2:3]
	}
	for i, policy := range policies {
		for j, kv := range []tensor.DType{tensor.BF16, tensor.Int8} {
			for k, known := range []bool{true, false} {
				if !testlevel.Long() && (i+j+k)%2 > 0 { // each policy with both cache types, and both ways
					continue
				}
				t.Run(fmt.Sprintf("%s/%v/known=%v", policy, kv, known), func(t *testing.T) {
					outlive(t, goldenDir, policy, kv, known)
				})
			}
		}
	}
}

// TestCachesOfFamiliesOutliveTheirEpoch does the same for every other architecture with a reference
// model: ring caches of windows, two rotations, experts.
func TestCachesOfFamiliesOutliveTheirEpoch(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(modelData, "*", "config.json"))
	if err != nil || len(dirs) < 9 {
		t.Fatalf("%d reference models, %v", len(dirs), err)
	}
	if !raceEnabled && !testing.Short() {
		dirs = append(dirs, "../../models/dace/config.json") // the bundled model, which no test above has
	}
	for i, file := range dirs {
		dir := filepath.Dir(file)
		if dir == filepath.Clean(goldenDir) || raceEnabled && i%3 > 0 {
			continue
		}
		policies := []string{"full", "snapstream:sink=4,recent=20,topk=24,obs=8"}
		if !testlevel.Long() { // one of them for each architecture
			policies = policies[i/2%2:][:1]
		}
		for j, policy := range policies {
			t.Run(filepath.Base(dir)+"/"+policy, func(t *testing.T) { outlive(t, dir, policy, tensor.BF16, (i+j)%2 == 0) })
		}
	}
}

// outlive compares a run that moves to other sockets halfway with an uninterrupted one.
func outlive(t *testing.T, dir, policy string, kv tensor.DType, known bool) {
	t.Helper()
	c := rigConfig{dir: dir, sockets: 4, mapping: topology.Reduce, kv: kv}
	const before, after = 30, 30
	requests := func() []*request {
		var list []*request
		for i := range 4 {
			p := greedy(5)
			p.Temperature, p.Seed, p.RepetitionPenalty = 0.8, uint64(i), 1.1
			list = append(list, &request{prompt: somePrompt(40+17*i, i), max: before + after, params: p, owner: i, policy: policy})
		}
		return list
	}
	want := requests()
	newRig(t, c).generate(64, want...)
	got := requests()
	moveAndFinish(t, newRig(t, c), got, before, known)
	for i := range want {
		if !slices.Equal(got[i].tokens, want[i].tokens) {
			t.Errorf("sequence %d: %v, uninterrupted %v", i, got[i].tokens, want[i].tokens)
		}
		for j := range want[i].scores {
			if j < len(got[i].scores) && got[i].scores[j].Drawn[0].Logprob != want[i].scores[j].Drawn[0].Logprob {
				t.Errorf("sequence %d, token %d: log-probability %v, uninterrupted %v", i,
					j, got[i].scores[j].Drawn[0].Logprob, want[i].scores[j].Drawn[0].Logprob)
				break
			}
		}
	}
}

// somePrompt has n tokens below 151; the smallest vocabulary of the reference models is 160.
func somePrompt(n, salt int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(1 + (i*i*7+i*13+salt*29)%150)
	}
	return p
}

// moveAndFinish decodes `before` tokens of each sequence on four sockets, with replicas on the next
// socket. Then the first socket is lost and the others continue in another order.
func moveAndFinish(t *testing.T, r *rig, reqs []*request, before int, known bool) {
	t.Helper()
	decode := func(s *proto.StepRequest, keep bool, passes int) {
		s.Passes = uint32(passes)
		for _, q := range reqs {
			s.Chunks = append(s.Chunks,
				&proto.Chunk{Seq: q.id, Start: uint32(q.at), Tokens: []uint32{uint32(q.tokens[len(q.tokens)-1])}, Sample: true})
		}
		got := r.run(s)
		for _, q := range reqs {
			if keep {
				q.at += passes
				q.take(t, got[q.id], passes)
			}
		}
	}
	first := &proto.StepRequest{}
	for i, q := range reqs {
		q.id = uint64(i + 1)
		first.Open = append(first.Open, &proto.Open{Seq: q.id, Owner: uint32(q.owner), Policy: q.policy,
			Sampling: plan.EncodeSampling(&q.params), PromptTokens: uint32(len(q.prompt))})
		c := &proto.Chunk{Seq: q.id, Prefill: true, Last: true, Sample: true}
		for _, p := range q.prompt {
			c.Tokens = append(c.Tokens, uint32(p))
		}
		first.Chunks = append(first.Chunks, c)
		q.at = len(q.prompt)
	}
	got := r.run(first)
	for _, q := range reqs {
		q.tokens, q.scores = append(q.tokens, int32(got[q.id].Drawn[0].Token)), append(q.scores, got[q.id])
	}
	passes := 1
	for n := 1; n < before; n += passes {
		s := &proto.StepRequest{}
		if n > 8 { // replicas exist
			passes = min(1+n%5, before-n)
		}
		if n == 5 || n == 7 { // two replicas at once, two later
			for _, q := range reqs[(n-5)&2:][:2] {
				s.Copy = append(s.Copy, &proto.Copy{Seq: q.id, Replica: uint32((q.owner + 1) % 4)})
			}
		}
		decode(s, known || n+passes < before, passes)
	}
	lost := r.pids[0]
	t.Cleanup(func() { r.sys.Root.StopFuture(lost).Wait() })
	r.pids = []*actor.PID{r.pids[2], r.pids[3], r.pids[1]}
	holders := map[uint64][2]int{} // owner, replica
	for _, q := range reqs {
		holders[q.id] = [2]int{-1, -1}
	}
	for rank, list := range r.place(2) {
		for _, h := range list {
			at := holders[h.Seq]
			if h.Replica {
				at[1] = rank
			} else {
				at[0] = rank
			}
			holders[h.Seq] = at
		}
	}
	s := &proto.StepRequest{}
	for _, q := range reqs {
		at := holders[q.id]
		if at[0] < 0 {
			at[0], at[1] = at[1], -1
		}
		if at[0] < 0 {
			t.Fatalf("no socket has sequence %d", q.id)
		}
		o := &proto.Open{Seq: q.id, Owner: uint32(at[0]), Replica: uint32(at[1] + 1), Policy: q.policy,
			Sampling: plan.EncodeSampling(&q.params), PromptTokens: uint32(len(q.prompt))}
		for i := range q.at {
			if i < len(q.prompt) {
				o.Resume = append(o.Resume, uint32(q.prompt[i]))
			} else {
				o.Resume = append(o.Resume, uint32(q.tokens[i-len(q.prompt)]))
			}
		}
		s.Open = append(s.Open, o)
		if at[1] < 0 && q.owner != 3 { // a new replica for a sequence that was continued from one
			s.Copy = append(s.Copy, &proto.Copy{Seq: q.id, Replica: uint32((at[0] + 1) % 3)})
		}
	}
	for passes = 1; len(reqs[0].tokens) < reqs[0].max; passes = min(1+len(reqs[0].tokens)%4, reqs[0].max-len(reqs[0].tokens)) {
		decode(s, true, passes)
		s = &proto.StepRequest{}
	}
	var all []uint64
	for _, q := range reqs {
		all = append(all, q.id)
	}
	released := make(chan error, 3)
	for _, p := range r.pids {
		r.sys.Root.Send(p, &Release{Request: &proto.ReleaseRequest{Epoch: 2, Seqs: all}, Reply: func(l *proto.ReleaseReply, err error) {
			if err == nil && l.KvUsedBytes != 0 {
				err = fmt.Errorf("%d cache bytes after the last sequence", l.KvUsedBytes)
			}
			released <- err
		}})
	}
	r.all(released)
}
