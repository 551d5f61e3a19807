package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/actors/socket/shard"
	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// savedTalk is a session of token ids under a policy.
type savedTalk struct {
	policy, session string
	prompt          []int32
	turns           int
	anew            bool // each turn reads all tokens
}

const savedFirst = 120

func newSavedTalk(i int, policy, session string) *savedTalk {
	return &savedTalk{policy: policy, session: session, prompt: text(i, savedFirst)}
}

// turn runs the next turn and returns its answer.
func (x *savedTalk) turn(t *testing.T, e engine.Engine) replied {
	t.Helper()
	a := complete(t, e, &engine.Request{ID: fmt.Sprint(x.session, " ", x.policy, " ", x.turns), Prompt: x.prompt, Policy: x.policy,
		Context: savedFirst, Session: x.session, SessionTTL: time.Hour, NoCache: x.anew})
	for line := range strings.Lines(a.bits) {
		var token int32
		if _, err := fmt.Sscan(line, &token); err != nil {
			t.Fatal(err)
		}
		x.prompt = append(x.prompt, token)
	}
	x.turns++
	x.prompt = append(x.prompt, text(50+x.turns, 17)...)
	return a
}

// savedState returns the counters of the caches in files.
func savedState(t *testing.T, e *Local) wire.SavedCachesState {
	t.Helper()
	s := e.Cluster().SavedCaches
	if s == nil {
		t.Fatal("the cluster does not count caches in files")
	}
	return *s
}

// TestSavedCachesOutliveTheCluster: each turn of a session runs in a new cluster, and begins with the cache in
// the file that the last cluster wrote. The answers have the same bits as turns that compute all tokens, under
// every policy that evicts or selects, on any number of sockets, also after damage to the file.
func TestSavedCachesOutliveTheCluster(t *testing.T) {
	policies := prefixPolicies[1:]
	if testing.Short() {
		policies = []string{"snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "h2o:recent=40,topk=40,step=1",
			"tova:size=80", "quest:page=16,budget=96", "shadowkv:chunk=4,budget=16,outliers=4,local=2,keys=lowrank,rank=16",
			"squeezed:clusters=0.2,levels=2,sparsity=0.6,tail=12,obs=16", "resnap:topk=20,every=9,obs=8,pool=5"}
	}
	const turns = 4
	serve := ServeConfig{Model: goldenDir, Chunk: 30}
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	want := make([][]string, len(policies))
	for i, policy := range policies {
		x := newSavedTalk(i, policy, "anew")
		for x.anew = true; x.turns < turns; {
			want[i] = append(want[i], x.turn(t, alone).bits)
		}
	}
	for _, sockets := range []int{1, 3} {
		dir := filepath.Join(t.TempDir(), "kv")
		talks := make([]*savedTalk, len(policies))
		for i, policy := range policies {
			talks[i] = newSavedTalk(i, policy, fmt.Sprint("s", i))
		}
		for n := range turns {
			t.Run(fmt.Sprint(sockets, " sockets, turn ", n), func(t *testing.T) {
				e := startLocal(t, LocalConfig{Threads: 1, Sockets: sockets, Serve: serve, KVDisk: dir, KVDiskSize: 1 << 30})
				damaged := n == turns-1
				if damaged {
					damageFiles(t, dir)
				}
				for i, x := range talks {
					before := len(x.prompt) - 18
					a := x.turn(t, e)
					if a.bits != want[i][n] {
						t.Errorf("%s: another answer", x.policy)
					}
					if n > 0 && !damaged && a.cached != before {
						t.Errorf("%s: %d of %d tokens were in the cache", x.policy, a.cached, before)
					}
					if damaged && a.cached > 0 {
						t.Errorf("%s: %d tokens were in a damaged file", x.policy, a.cached)
					}
				}
				testutil.Eventually(t, patience, "all caches are in files", func() (bool, string) {
					s := savedState(t, e)
					return s.Written >= uint64(len(talks)), fmt.Sprintf("%+v", s)
				})
				s := savedState(t, e)
				if reads := uint64(len(talks)); n > 0 && !damaged && s.Read != reads || damaged && s.Failed != reads {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// damageFiles changes the last byte of each file.
func damageFiles(t *testing.T, dir string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "sessions", "*", "[0-9a-f]*-*"))
	if err != nil || len(list) == 0 {
		t.Fatalf("%v: %v", list, err)
	}
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-1] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSavedCachesShareMemory: memory has room for one of two caches. Each turn computes only its new tokens,
// with the answers of a cluster that has room for both. The end of a session removes its file.
func TestSavedCachesShareMemory(t *testing.T) {
	const policy, turns = "streaming:sink=4,recent=200,positions=cache", 10
	serve := ServeConfig{Model: goldenDir, KV: "bf16", Chunk: 30, PrefixCache: PrefixOff}
	ck, err := checkpoint.Open(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	p, err := kvpolicy.Parse(policy)
	if err != nil {
		t.Fatal(err)
	}
	g := shard.GeometryOf(&ck.Config, tensor.BF16)
	alone := startLocal(t, LocalConfig{Threads: 1, Serve: serve})
	dir := filepath.Join(t.TempDir(), "kv")
	e := startLocal(t, LocalConfig{Threads: 1, Serve: serve, KVDisk: dir, KVDiskSize: 1 << 30,
		KVBudget: kvcache.ResidentBytes(g, savedFirst, 1000, p) * 3 / 2})
	same := []*savedTalk{newSavedTalk(1, policy, "a"), newSavedTalk(2, policy, "b")}
	talks := []*savedTalk{newSavedTalk(1, policy, "a"), newSavedTalk(2, policy, "b")}
	for n := range turns {
		for i, x := range talks {
			before := len(x.prompt) - 18
			a := x.turn(t, e)
			if want := same[i].turn(t, alone); a.bits != want.bits {
				t.Errorf("session %s, turn %d: another answer", x.session, n)
			}
			if n > 0 && a.cached != before {
				t.Errorf("session %s, turn %d: %d of %d tokens were in the cache", x.session, n, a.cached, before)
			}
		}
	}
	if s := savedState(t, e); s.Read < turns || s.Failed > 0 {
		t.Errorf("%+v", s)
	}
	for _, x := range talks {
		e.core.EndSession("", x.session)
	}
	testutil.Eventually(t, patience, "the files are removed", func() (bool, string) {
		list, err := filepath.Glob(filepath.Join(dir, "sessions", "*", "[0-9a-f]*-*"))
		return err == nil && len(list) == 0, fmt.Sprint(list, err)
	})
}
