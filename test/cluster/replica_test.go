package cluster_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestStoreReplicaLost: one of the three processes that keep the store is killed during jobs, and
// its copy is damaged before it returns. The jobs equal the undisturbed run, and three copies are
// in sync again.
func TestStoreReplicaLost(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("forms a replicated store, some ten seconds")
	}
	parallel(t)
	k := newKept(t, "n0,n1", 2)
	p, at, dirs, nodes, begin := k.pair, k.at[0], k.dataDirs, k.nodes, k.begin
	p.copies(0)
	r := rand.New(rand.NewPCG(8, 8))
	var reqs []request
	for i := range 3 {
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions",
			map[string]any{"prompt": ids(r, 20+30*i), "max_tokens": 200, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i}})
	}
	want := at.send(t, reqs, len(reqs))
	jobs := p.jobs(0, "kept", reqs)
	p.begun(0, jobs)
	nodes[1].kill(t)
	p.check(0, "kept", reqs, want, jobs)
	later := p.jobs(0, "meanwhile", reqs) // accepted by the remaining two
	if n := damage(t, dirs[1]); n == 0 {
		t.Fatal("no file of the copy was found to be damaged")
	}
	begin(1, 1)
	p.copies(0)
	p.check(0, "meanwhile", reqs, want, later)
	p.check(0, "kept", reqs, want, jobs)
}

// storeCluster is a coordinator and nodes that can keep copies of its store.
type storeCluster struct {
	*pair
	dataDirs []string
	nodes    []*process
}

// newKept starts a storeCluster. Node i has its data directory on disks[i], if that exists.
func newKept(t *testing.T, members string, nodes int, disks ...string) *storeCluster {
	k := &storeCluster{pair: &pair{t: t, members: members, dirs: [2]string{t.TempDir()}, gossip: [2]string{freePort(t)}},
		nodes: make([]*process, nodes)}
	at := &processCluster{t: t, httpClient: newHTTPClient(t, "http://"+freePort(t), "")}
	k.at = [2]*processCluster{at, at}
	k.start(0, false)
	k.runs[0].line(t, k.runs[0].err, listens, startLimit)
	for i := range nodes {
		dir := t.TempDir()
		if i < len(disks) {
			dir = disks[i]
		}
		k.dataDirs = append(k.dataDirs, dir)
		k.begin(i, 0)
	}
	k.serves(0, startLimit)
	return k
}

func (k *storeCluster) begin(i, run int) {
	k.nodes[i] = spawn(k.t, built.shoal(k.t, ""), fmt.Sprintf("n%d-%d", i, run), nil, "node",
		"--join", k.gossip[0], "--id", fmt.Sprintf("n%d", i), "--threads", "1", "--data-dir", k.dataDirs[i])
}

// store runs `shoal store` with the cluster key.
func (k *storeCluster) store(args ...string) (out string, code int) {
	k.t.Helper()
	stdout, stderr, code := command(k.t, patience, []string{security.EnvKey + "=" + clusterKey.Text()},
		append(append([]string{"store"}, args...), "--server", k.at[0].base)...)
	return stdout + stderr, code
}

// TestStoreMembersAreNamed: nodes that offer to keep copies are not used until the operator names
// them, which requires the cluster key.
func TestStoreMembersAreNamed(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("waits to verify that no process becomes a member")
	}
	parallel(t)
	k := newKept(t, "", 3)
	early := k.jobs(0, "early",
		[]request{{"a job of the first store", "", map[string]any{"prompt": []int{100, 200}, "max_tokens": 5, "ignore_eos": true}}})
	time.Sleep(8 * time.Second) // long enough for a process to become a member
	if s, _ := k.state(0); s.Store.Durability != "single" || len(s.Store.Members) > 0 {
		t.Errorf("no process was named, but the store is %+v", *s.Store)
	}
	for _, method := range []string{"POST", "DELETE"} {
		k.at[0].want(403, method, "/v1/store/members/n0", "{}")
	}
	if out, code := k.store("add", "n7"); code != 1 || !strings.Contains(out, "is not connected, or has no --data-dir") {
		t.Errorf("status %d: %s", code, out)
	}
	for _, name := range []string{"n2", "n0"} {
		if out, code := k.store("add", name); code != 0 {
			t.Fatalf("shoal store add %s: %s", name, out)
		}
	}
	k.copies(0)
	if s, _ := k.state(0); len(s.Store.Members) != 3 || s.Store.Members[1].ID != "n0" || s.Store.Members[2].ID != "n2" {
		t.Errorf("n0 and n2 were named, the members are %+v", s.Store.Members)
	}
	if out, code := k.store("add", "n1"); code != 1 || !strings.Contains(out, "remove one first") {
		t.Errorf("a fourth one: status %d: %s", code, out)
	}
	if out, code := k.store("remove", "c0"); code != 1 || !strings.Contains(out, "c0 coordinates") {
		t.Errorf("itself: status %d: %s", code, out)
	}
	var j jobState
	if k.at[0].getJSON("/v1/jobs/"+early[0], &j); j.State != "completed" {
		t.Errorf("a job from before is %s", j.State)
	}
}

// TestStoreMemberIsReplaced: a member and its disk are lost. The operator removes it and names
// another one, which receives all data and counts for the majority: the store then survives the loss of
// the other original member. If the lost member returns, it reports that it was removed.
func TestStoreMemberIsReplaced(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("forms a replicated store, some ten seconds")
	}
	parallel(t)
	k := newKept(t, "n0,n1", 3)
	k.copies(0)
	work := []request{{"a job", "/v1/completions",
		map[string]any{"prompt": []int{100, 200}, "max_tokens": 20, "ignore_eos": true, "temperature": 0}}}
	want := k.at[0].send(t, work, 1)
	before := k.jobs(0, "before", work)
	k.check(0, "before", work, want, before)
	k.nodes[0].kill(t)
	testutil.Eventually(t, patience, "the loss of n0 is reported", func() (bool, string) {
		out, _ := k.store("list")
		return strings.Contains(out, "a replica of the store is unreachable: n0"), out
	})
	if out, code := k.store("remove", "n1"); code != 1 || !strings.Contains(out, "n0 is down too") {
		t.Errorf("the last but one: status %d: %s", code, out)
	}
	for _, args := range [][]string{{"remove", "n0"}, {"add", "n2"}} {
		if out, code := k.store(args...); code != 0 {
			t.Fatalf("shoal store %v: %s", args, out)
		}
	}
	k.copies(0)
	k.check(0, "before", work, want, before)
	k.nodes[1].kill(t) // c0 and n2 remain
	after := k.jobs(0, "after", work)
	k.check(0, "after", work, want, after)

	k.begin(0, 1)
	k.nodes[0].line(t, k.nodes[0].err, regexp.MustCompile("was removed from the store and keeps no copy any more"), patience)
	k.runs[0].kill(t)
	k.begin(1, 1)
	k.start(0, false)
	k.copies(0)
	if s, _ := k.state(0); len(s.Store.Members) != 3 || s.Store.Members[1].ID != "n1" || s.Store.Members[2].ID != "n2" {
		t.Errorf("the members are %+v", s.Store.Members)
	}
	k.check(0, "after", work, want, after)
}

// TestStoreReplicasGone: both other replicas are gone. The coordinator continues its running work and
// names the missing replicas. After a restart it reports the same within seconds.
func TestStoreReplicasGone(t *testing.T) {
	testlevel.NeedLong(t)
	if testing.Short() {
		t.Skip("forms a replicated store, some ten seconds")
	}
	parallel(t)
	const lacks = "the job store needs 2 of its 3 replicas; here: c0; away: n0, n1"
	k := newKept(t, "n0,n1", 3)
	k.copies(0)
	k.nodes[0].kill(t)
	k.nodes[1].kill(t)
	testutil.Eventually(t, patience, "/health names the missing replicas", func() (bool, string) {
		a := k.at[0].call("GET", "/health", nil)
		return strings.Contains(string(a.body), lacks), fmt.Sprint(a.status, string(a.body))
	})
	out, _, _ := command(t, patience, nil, "status", "--server", k.at[0].base)
	if !strings.Contains(out, "most replicas of the store are unreachable: n0, n1") {
		t.Errorf("shoal status does not name the missing process:\n%s", out)
	}
	k.runs[0].kill(t)
	k.start(0, false)
	testutil.Eventually(t, patience, "an answer of a coordinator without its store", func() (bool, string) {
		a, err := k.at[0].try(t.Context(), "GET", "/health", nil)
		return err == nil && a.status == 503 && strings.Contains(string(a.body), lacks), fmt.Sprint(err, a.status, string(a.body))
	})
	if _, stderr, code := command(t, patience, nil, "status", "--server", k.at[0].base); code != 3 || !strings.Contains(stderr, lacks) {
		t.Errorf("shoal status: status %d: %s", code, stderr)
	}
	k.begin(0, 1)
	k.serves(0, startLimit)
}

// TestStatusDoesNotWait: shoal status exits if the server does not answer.
func TestStatusDoesNotWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, stderr, code := command(t, patience, nil, "status", "--timeout", "300ms", "--server", l.Addr().String()); code != 1 ||
		!strings.Contains(stderr, "does not answer (--timeout 300ms)") {
		t.Errorf("status %d: %s", code, stderr)
	}
}

// damage overwrites the middle of every message file of a copy of the store, and returns their
// number.
func damage(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".blk") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) < 64 {
			return err
		}
		for i := len(b) / 3; i < 2*len(b)/3; i++ {
			b[i] ^= 0x5a
		}
		n++
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
