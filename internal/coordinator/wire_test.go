package coordinator

import (
	"fmt"
	"testing"
	"time"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/actors/batcher"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/plan"
	"github.com/shoal-llm/shoal/internal/engine/sampler"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the encoding of a plan, because a field whose meaning changes looks the same in
// the message's definition.
func TestWire(t *testing.T) {
	params := sampler.Default()
	params.Seed = 5
	p := &plan.Plan{Epoch: 1, Step: 2, Release: []uint64{3}, DropReplica: []uint64{4},
		Keep: []plan.Keep{{Seq: 3, From: 1, Blocks: []uint64{9}}}, Evict: []uint64{5}, DropExtras: []uint64{6},
		Open: []plan.Open{{Seq: 7, Owner: 1, Policy: kvcache.Full(), Sampling: &params, Read: 70, Sampled: 2, Tail: 3,
			Reserve: 71, Resume: []int32{8, 9}, Replica: 2, Fork: 11, Shared: []uint64{12}, Prefix: []int32{13}}},
		Copy: []plan.Copy{{Seq: 7, Replica: 2}}, Spill: []plan.Spill{{Seq: 7, Blocks: 3}},
		Decode: []plan.Run{{Seq: 7, Start: 70, Accepted: 1, Tokens: []int32{14, 15}, Draft: 4, Sample: true}},
		Chunks: []plan.Run{{Seq: 8, Start: 64, Tokens: []int32{16}, Prefill: true, Last: true, Sample: true,
			Next: 17, SaveFrom: 1, Save: []uint64{18}, Sums: true, Snapshot: true, PromptLogprobs: 2}},
		Index: []plan.Index{{Seq: 9, From: 1, Pieces: 2}}, Passes: 3, ThreadShift: 1}
	b, err := pb.MarshalOptions{Deterministic: true}.Marshal(plan.Encode(p, time.Second))
	if err != nil {
		t.Fatal(err)
	}
	disk, err := pb.MarshalOptions{Deterministic: true}.Marshal(PrefixRequest(1,
		batcher.Disk{From: 1, Blocks: []uint64{2}, Step: 3, Millis: 4, Seq: 5, Owner: 1}))
	if err != nil {
		t.Fatal(err)
	}
	wiretest.Check(t, wiretest.Form{Name: "actor", Text: node.SocketName}, wiretest.Form{Name: "plan", Text: fmt.Sprintf("%x", b)},
		wiretest.Form{Name: "question to disks", Text: fmt.Sprintf("%x", disk)})
}
