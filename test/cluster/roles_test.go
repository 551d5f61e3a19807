package cluster_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// longPrompts returns n streams whose prompts the prefill nodes read.
func longPrompts(n, tokens int) []request {
	r := rand.New(rand.NewPCG(5, 6))
	reqs := streaming(n, tokens)
	for i := range reqs {
		reqs[i].body["prompt"] = ids(r, 300+90*i)
	}
	return reqs
}

// awaitSequence waits until a sequence of the cluster is in a state, on a node if one is named.
func awaitSequence(t *testing.T, c *system, state, node string) {
	t.Helper()
	testutil.Eventually(t, patience, "a sequence in state "+state, func() (bool, string) {
		s := c.state()
		return slices.ContainsFunc(s.Sequences, func(q wire.SequenceState) bool {
			return q.State == state && (node == "" || q.Node == node)
		}), fmt.Sprintf("%+v", s.Sequences)
	})
}

// TestRolesOutliveNodes kills nodes of each role while 8 prompts are read, while caches move and while
// streams decode. Each stream has the tokens and logprobs of one node without roles. At the end all nodes
// of one role are lost, and the nodes of the other role do its work.
func TestRolesOutliveNodes(t *testing.T) {
	reqs := longPrompts(8, 24)
	want, _ := up(t, 1, "--kv-memory", "512MiB").undisturbed(t, reqs)
	for _, x := range []struct {
		name, state, victim string // the state in which a sequence is when the victim is killed
		last                string // the other node of the victim's role, killed after that
	}{
		{"prefill node, prompts are read", "prefill", "node-3", "node-2"},
		{"decode node, prompts are read", "prefill", "node-1", "node-0"},
		{"prefill node, caches move", "transfer", "node-2", "node-3"},
		{"decode node, caches move", "transfer", "node-0", "node-1"},
		{"prefill node, streams decode", "decoding", "node-3", "node-2"},
		{"decode node, streams decode", "decoding", "node-0", "node-1"},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := up(t, 4, "--prefill-nodes", "2", "--prefill-over", "64", "--kv-memory", "256MiB", "--prefix-cache", "off")
			for i, victim := range []string{x.victim, x.last} {
				if i > 0 && testing.Short() {
					break
				}
				f := c.open(reqs)
				awaitSequence(t, c, x.state, "")
				c.signal(victim, syscall.SIGKILL)
				got, stall := f.wait(t)
				t.Logf("kill -9 %s: longest silence %.2f s", victim, stall.Seconds())
				same(t, x.name+", kill -9 "+victim, reqs, want, got)
				c.waitNodes(3-i, recoverLimit)
				c.waitIdle(patience)
			}
			got, _ := c.open(reqs).wait(t)
			same(t, x.name+", afterwards", reqs, want, got)
			s := c.state()
			roles := map[string]int{}
			for _, n := range s.Nodes {
				roles[n.Role]++
			}
			if testing.Short() {
				if s.Transfers == nil || roles["prefill"] == 0 || roles["decode"] == 0 {
					t.Errorf("transfers %+v, nodes %+v", s.Transfers, s.Nodes)
				}
			} else if s.Transfers != nil || roles["prefill"]+roles["both"] != 2 && roles["decode"]+roles["both"] != 2 {
				t.Errorf("after the loss of a role: transfers %+v, nodes by role %v", s.Transfers, roles)
			}
		})
	}
}

// TestRolesOutliveCoordinator kills the coordinator while prefill nodes read the prompts of jobs, and
// starts it again. Every job has the text of one node without roles.
func TestRolesOutliveCoordinator(t *testing.T) {
	data, reqs := t.TempDir(), longPrompts(8, 24)
	for i := range reqs {
		delete(reqs[i].body, "stream")
		delete(reqs[i].body, "stream_options")
	}
	want := up(t, 1, "--kv-memory", "512MiB").send(t, reqs, 8)
	roles := []string{"--prefill-nodes", "1", "--prefill-over", "64", "--data-dir", data}
	c := up(t, 3, roles...)
	var jobs []string
	for i := range reqs {
		var accepted struct{ ID string }
		a, err := c.try(t.Context(), "POST", "/v1/jobs", map[string]any{"endpoint": "/v1/completions", "body": reqs[i].body})
		if err != nil || a.status != 202 || json.Unmarshal(a.body, &accepted) != nil {
			t.Fatalf("%s: %d %s: %v", reqs[i].name, a.status, a.body, err)
		}
		jobs = append(jobs, accepted.ID)
	}
	awaitSequence(t, c, "prefill", "")
	c.head.kill(t)
	c = up(t, 3, roles...)
	for i, id := range jobs {
		var text struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal([]byte(want[i]), &text); err != nil {
			t.Fatalf("%s: %v", want[i], err)
		}
		quoted, err := json.Marshal(text.Choices[0].Text)
		if err != nil {
			t.Fatal(err)
		}
		body := ""
		testutil.Eventually(t, patience, "a job completes", func() (bool, string) {
			a, err := c.try(t.Context(), "GET", "/v1/jobs/"+id, nil)
			if err != nil {
				return false, err.Error()
			}
			body = string(a.body)
			return strings.Contains(body, `"state":"completed"`), body
		})
		if !strings.Contains(body, string(quoted)) {
			t.Errorf("the job of %s has the result %.300s, want %s", reqs[i].name, body, quoted)
		}
	}
	if s := c.state(); s.Transfers == nil || s.Transfers.Caches == 0 {
		t.Errorf("the restarted coordinator took no caches: %+v", s.Transfers)
	}
}
