package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestFixedContexts: many requests begin with a text that was read once. Every token and
// log-probability equals that of a single node on three and four nodes, also when the owner of the text
// is killed during the answers. Then all processes are killed and others start with the store and the
// prefix disk. The text is still available without being created again, and is read from disk. So it is
// after the kill of the coordinator and the takeover by the standby.
func TestFixedContexts(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	const length, policy = 700, "squeezed:clusters=0.1,levels=2,sparsity=0.7,tail=16,obs=32,segment=256"
	text, tokens := ids(rand.New(rand.NewPCG(4, 1)), length), 160
	var reqs []request
	for i := range 6 {
		question := ids(rand.New(rand.NewPCG(5, uint64(i))), 12+9*i)
		reqs = append(reqs, request{fmt.Sprint("question ", i), "/v1/completions",
			map[string]any{"prompt": question, "context": "book", "max_tokens": tokens, "stream": true, "logprobs": 3,
				"return_tokens_as_token_ids": true, "ignore_eos": true, "speculate": "off", "skip_special_tokens": false,
				"temperature": 0.7, "seed": i, "stream_options": map[string]any{"include_usage": true}}})
	}
	read := func(c *system) {
		t.Helper()
		c.want(200, "POST", "/v1/contexts", map[string]any{"name": "book", "prompt": text, "kv_policy": policy})
	}
	ready := func(c *system, what string) {
		t.Helper()
		testutil.Eventually(t, patience, what+": the context is read", func() (bool, string) {
			a, err := c.try(context.Background(), "GET", "/v1/contexts/book", nil)
			return err == nil && a.status == 200 && strings.Contains(string(a.body), `"status":"ready"`), fmt.Sprint(string(a.body), err)
		})
	}
	// shared checks that a question about the text finds all of it in memory.
	shared := func(c *system, what string) {
		t.Helper()
		a := c.want(200, "POST", "/v1/completions", map[string]any{"prompt": reqs[0].body["prompt"], "context": "book", "max_tokens": 1})
		var r struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(a.body, &r); err != nil || r.Usage.Details.Cached != length {
			t.Errorf("%s: %d tokens of %d were there: %s", what, r.Usage.Details.Cached, length, a.body)
		}
	}
	dir := t.TempDir()
	one := up(t, 1, "--prefix-cache", "off", "--data-dir", filepath.Join(dir, "one"))
	read(one)
	want, _ := one.open(reqs).wait(t)
	kept := []string{"--data-dir", filepath.Join(dir, "data"), "--prefix-disk", filepath.Join(dir, "disk"), "--chunk", "64", "--standby"}
	first := up(t, 4, append(kept, "--mapping", "reduce")...)
	read(first)
	shared(first, "four nodes")
	got, _ := first.open(reqs).wait(t)
	same(t, "four nodes", reqs, want, got)
	state := first.state()
	clusterings := state.PrefixCache.Disk.IndexesComputed
	if clusterings == 0 || state.PrefixCache.Disk.IndexesRead != 0 {
		t.Errorf("the text was read once: %+v", state.PrefixCache.Disk)
	}
	for _, n := range state.Nodes {
		if n.ID != ownerOf(t, state) {
			first.signal(n.ID, syscall.SIGKILL)
			break
		}
	}
	first.waitNodes(3, recoverLimit)
	got, _ = first.open(reqs).wait(t)
	same(t, "a node is lost while nobody asks", reqs, want, got)
	if d := first.state().PrefixCache.Disk; d.IndexesComputed > clusterings || d.IndexesRead != 0 && d.IndexesRead != clusterings {
		t.Errorf("after the loss of a node results were computed again: %d before, now %+v", clusterings, d)
	}
	surviveFault(t, first, "kill -9 of the owner", reqs, want, func() { first.signal(ownerOf(t, first.state()), syscall.SIGKILL) })
	first.waitNodes(2, recoverLimit)
	ready(first, "after the kill")
	got, _ = first.open(reqs).wait(t)
	same(t, "after the kill", reqs, want, got)
	shared(first, "after the kill")
	pids := first.children()
	first.head.kill(t)
	testutil.Eventually(t, patience, "all have ended", func() (bool, string) { return len(alive(pids)) == 0, fmt.Sprint(alive(pids)) })

	second := up(t, 3, append(kept, "--mapping", "gather")...)
	ready(second, "after kill -9 of all")
	shared(second, "after kill -9 of all")
	got, _ = second.open(reqs).wait(t)
	same(t, "after kill -9 of all", reqs, want, got)
	if p := second.state().PrefixCache; p == nil || p.Disk == nil || p.Disk.Restored == 0 {
		t.Errorf("the text was not read from the disk: %+v", p)
	} else if p.Disk.IndexesComputed != 0 || p.Disk.IndexesRead != clusterings {
		t.Errorf("of %d results of the index, %d were read from the disk and %d computed", clusterings,
			p.Disk.IndexesRead, p.Disk.IndexesComputed)
	}

	at := &processCluster{t: t, httpClient: second.httpClient}
	pair := &pair{t: t, at: [2]*processCluster{at, at}} // both share one address
	pair.copies(0)
	before := second.state().Store
	active := second.coordinators("coordinator", "standby")[before.Coordinator]
	if active == 0 {
		t.Fatalf("no process of the coordinator of %+v", *before)
	}
	if err := syscall.Kill(active, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pair.serves(0, recoverLimit)
	ready(second, "after a takeover")
	got, _ = second.open(reqs).wait(t)
	same(t, "after a takeover", reqs, want, got)
	shared(second, "after a takeover")
	after := second.state()
	if after.Store.Term <= before.Term {
		t.Errorf("no takeover: %+v, before %+v", *after.Store, *before)
	}
	if d := after.PrefixCache.Disk; d.IndexesComputed != 0 || d.IndexesRead < clusterings {
		t.Errorf("after a takeover results of the index were computed again, or lost: %+v", d)
	}
	second.want(200, "DELETE", "/v1/contexts/book", nil)
	second.want(404, "POST", "/v1/completions", map[string]any{"prompt": text[:5], "context": "book", "max_tokens": 1})
}

// ownerOf returns the node that has all sequences.
func ownerOf(t *testing.T, s wire.ClusterState) (id string) {
	most := 0
	for _, n := range s.Nodes {
		if n.Sequences > most {
			id, most = n.ID, n.Sequences
		}
	}
	if id == "" {
		t.Fatalf("no node owns a sequence: %+v", s.Nodes)
	}
	return id
}
