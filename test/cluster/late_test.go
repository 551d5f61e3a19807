package cluster_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	pb "google.golang.org/protobuf/proto"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/rpc"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// late acts as a coordinator that was frozen during the end of its epoch: its messages reach nodes that
// serve a newer epoch. It returns the violations.
func late(t *testing.T, c *system, old uint32, rounds int) (wrong []string) {
	t.Helper()
	server, client, err := clusterKey.TLS(security.Identity{Role: security.RoleCoordinator, ID: "late"})
	if err != nil {
		t.Fatal(err)
	}
	sys, err := rpc.Start(rpc.Config{ID: "late", Role: "coordinator", Incarnation: 1, Bind: "127.0.0.1:0",
		ServerTLS: server, ClientTLS: client})
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close()
	before := c.state()
	var seqs []uint64
	for i := range uint64(500) {
		seqs = append(seqs, i)
	}
	step := &proto.StepRequest{Epoch: old, Step: 1 << 40, Release: seqs, Chunks: []*proto.Chunk{{Seq: 1, Tokens: []uint32{1}}}}
	messages := []struct {
		what    string
		kind    proto.Kind
		in, out pb.Message
		refused bool // the call returns an error; otherwise it has no effect
	}{
		{"step", proto.Kind_KIND_STEP, step, new(proto.StepReply), true},
		{"release", proto.Kind_KIND_RELEASE, &proto.ReleaseRequest{Epoch: old, Seqs: seqs}, new(proto.ReleaseReply), true},
		{"join", proto.Kind_KIND_JOIN, &proto.JoinRequest{Epoch: old, Group: "late", DeadlineMillis: 1000, Incarnations: []uint32{1}},
			new(proto.JoinReply), true},
		{"retire", proto.Kind_KIND_RETIRE, &proto.RetireRequest{Epoch: old}, new(proto.Empty), false},
	}
	for range rounds {
		for _, m := range messages {
			for _, n := range before.Nodes {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				err := sys.Call(ctx, sys.PID(n.Address, "socket"), uint32(m.kind), m.in, m.out)
				cancel()
				if m.refused == (err == nil) {
					wrong = append(wrong, fmt.Sprintf("I4: %s of epoch %d at %s, which is at %d: %v", m.what, old, n.ID, before.Epoch, err))
				}
			}
		}
	}
	return wrong
}

// lateRun kills one node of three, which ends an epoch, and lets a late coordinator send messages
// to the others while streams decode.
func lateRun(t *testing.T, tags string, rounds int) *audit {
	t.Helper()
	a := newAudit()
	c := start(t, config{nodes: 3, tags: tags, env: []string{security.EnvKey + "=" + clusterKey.Text()}})
	reqs := streaming(8, 60)
	want, _ := c.undisturbed(t, reqs)
	c.signal("node-2", syscall.SIGKILL)
	c.waitNodes(2, recoverLimit)
	f := c.open(reqs)
	f.reach(t, 40)
	before := c.state()
	a.look("I4", 4*rounds, late(t, c, 1, rounds)...)
	f.wg.Wait() // a node that accepted one fails at its next step
	if after := c.state(); failed(after) != failed(before) || full() && after.Epoch != before.Epoch {
		a.look("I4", 0, fmt.Sprintf("I4: messages of epoch 1 moved the cluster from epoch %d to %d", before.Epoch, after.Epoch))
	}
	for i, s := range f.got {
		if f.errs[i] != nil || s.text() != want[i] {
			a.look("I3", 0, fmt.Sprintf("I3: %s differs from the undisturbed run: %v", reqs[i].name, f.errs[i]))
		}
	}
	a.look("I3", len(reqs))
	return a
}

// TestChaosLate: messages of an ended epoch change nothing.
func TestChaosLate(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("long")
	}
	parallel(t)
	lateRun(t, "", 5).report(t, "I3", "I4")
}

// TestFencingMutationIsCaught: the same run with nodes that do not compare epochs (-tags unfenced,
// actors/socket/machine/fence_mutation.go) violates I4.
func TestFencingMutationIsCaught(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("builds another binary")
	}
	parallel(t)
	a := lateRun(t, "unfenced", 1)
	if len(a.broken["I4"]) == 0 {
		t.Fatalf("nodes without a fence were not noticed: %v", a.broken)
	}
	t.Logf("%d findings, such as %.200s", len(a.broken["I4"]), a.broken["I4"][0])
}
