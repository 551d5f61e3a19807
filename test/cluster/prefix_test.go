package cluster_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// alike returns requests under every policy whose prompts share a prefix. They diverge at the end
// of a block of 64 tokens, inside one, or not at all. Each has two choices.
func alike(tokens int) (reqs []request) {
	text := ids(rand.New(rand.NewPCG(19, 6)), 1000)
	for i, policy := range append([]string{"full", "tova:size=48", "full", "knorm:sink=4,recent=20,topk=24"}, policies...) {
		n := 150 + 31*i
		prompt := append([]int(nil), text[:n]...)
		for j := []int{64, 192, 100, n}[i%4]; j < n; j++ {
			prompt[j] = 16 + (prompt[j]+1000*i)%2000
		}
		b := map[string]any{"prompt": prompt, "max_tokens": tokens, "stream": true, "logprobs": 5,
			"return_tokens_as_token_ids": true, "ignore_eos": true,
			"skip_special_tokens": false, "kv_policy": policy, "temperature": 0.8, "seed": 7 + i,
			"stream_options": map[string]any{"include_usage": true}}
		for k := range 2 { // the two sequences of "n": 2, each with its own stream
			b = maps.Clone(b)
			b["seed"] = 7 + i + k
			reqs = append(reqs, request{fmt.Sprintf("%d of %s", k, policy), "/v1/completions", b})
		}
	}
	return reqs
}

// TestWarmPrefixes: prompts with a known prefix are not read again, and every token and
// log-probability equals that of a cluster without the prefix cache: for concurrent requests, for
// later ones, after a kill -9 of a node during decode, and with little memory.
func TestWarmPrefixes(t *testing.T) {
	testlevel.NeedLong(t)
	parallel(t)
	tokens := 24
	reqs := alike(tokens)
	cold := up(t, 1, "--prefix-cache", "off")
	want, _ := cold.undisturbed(t, reqs)
	if s := cold.state(); s.PrefixCache != nil {
		t.Errorf("it is off, and has %+v", *s.PrefixCache)
	}
	shapes := [][]string{{"3", "gather", "100"}, {"4", "reduce", "64"}, {"1", "gather", "256"}}
	if testing.Short() {
		shapes = shapes[:1]
	}
	for _, s := range shapes {
		t.Run(strings.Join(s, " "), func(t *testing.T) {
			nodes, _ := strconv.Atoi(s[0])
			c := up(t, nodes, "--mapping", s[1], "--chunk", s[2], "--step-tokens", "256", "--shares", "node-0=1,node-1=3,node-2=2,node-3=2")
			hits := func(what string, more bool) {
				t.Helper()
				p := c.state().PrefixCache
				if p == nil || more && p.Hits == 0 || p.Hits > p.Queries {
					t.Fatalf("%s: %+v", what, p)
				}
				t.Logf("%s: %d of %d tokens were there", what, p.Hits, p.Queries)
			}
			for _, what := range []string{"together", "again"} {
				got, _ := c.open(reqs).wait(t)
				same(t, what, reqs, want, got)
				hits(what, true)
			}
			c.waitIdle(patience)
			if bytes := prefixBytes(c.state()); bytes == 0 {
				t.Error("no bytes of the prefix cache are reported")
			}
			if nodes > 1 {
				surviveFault(t, c, "kill -9 node-1", reqs, want, func() { c.signal("node-1", syscall.SIGKILL) })
				c.waitNodes(nodes-1, recoverLimit)
				got, _ := c.open(reqs).wait(t)
				same(t, "after the kill", reqs, want, got)
				hits("after the kill", true)
			}
			c.want(200, "POST", "/reset_prefix_cache", nil)
			c.waitIdle(patience)
			testutil.Eventually(t, patience, "the prefix cache is empty", func() (bool, string) {
				s := c.state()
				return prefixBytes(s) == 0 && s.PrefixCache.Tokens == 0, fmt.Sprintf("%d bytes, %+v", prefixBytes(s), *s.PrefixCache)
			})
		})
	}
	disk := []string{"--prefix-disk", filepath.Join(t.TempDir(), "disk"), "--chunk", "64"}
	fromDisk := func(t *testing.T, c *system, what string) {
		t.Helper()
		got, _ := c.open(reqs).wait(t)
		same(t, what, reqs, want, got)
		p := c.state().PrefixCache
		if p == nil || p.Disk == nil || p.Disk.Restored == 0 || p.Disk.Damaged+p.Disk.Failed > 0 {
			t.Errorf("%s: %+v", what, p)
			return
		}
		t.Logf("%s: %+v", what, *p.Disk)
	}
	t.Run("little memory", func(t *testing.T) {
		c := up(t, 3, append(disk, "--kv-memory", "12MiB")...)
		for range 2 {
			got, _ := c.open(reqs).wait(t)
			same(t, "in 12 MiB", reqs, want, got)
		}
		c.waitIdle(patience)
		c.signal("node-1", syscall.SIGKILL)
		c.waitNodes(2, recoverLimit)
		fromDisk(t, c, "with the files of a node that is gone")
		c.waitIdle(patience)
		for _, n := range c.state().Nodes {
			if n.KVUsedBytes+n.KVPrefix > n.KVBudgetBytes {
				t.Errorf("%s: %d and %d bytes of %d", n.ID, n.KVUsedBytes, n.KVPrefix, n.KVBudgetBytes)
			}
		}
		if p := c.state().PrefixCache; p.Evicted == 0 {
			t.Errorf("nothing was evicted: %+v", *p)
		}
		pids := c.children()
		c.head.kill(t)
		testutil.Eventually(t, patience, "all have ended", func() (bool, string) { return len(alive(pids)) == 0, fmt.Sprint(alive(pids)) })
	})
	t.Run("after kill -9 of all", func(t *testing.T) {
		fromDisk(t, up(t, 2, disk...), "on two nodes")
	})
}

// TestRecoveryFindsPrefixes: sequences of a dead node are read again. A shared prefix is read once,
// or not at all if it is in files.
func TestRecoveryFindsPrefixes(t *testing.T) {
	testlevel.NeedFull(t)
	text := ids(rand.New(rand.NewPCG(19, 7)), 480)
	var reqs []request
	for i := range 9 {
		reqs = append(reqs, request{fmt.Sprint(i), "/v1/completions",
			map[string]any{"prompt": append(text[:len(text):len(text)], 20+i), "max_tokens": 60, "speculate": "off", "stream": true, "logprobs": 2,
				"return_tokens_as_token_ids": true, "ignore_eos": true, "skip_special_tokens": false, "temperature": 0.8, "seed": i}})
	}
	var want []string
	recomputed := map[string]uint64{}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"without the prefix cache", []string{"--prefix-cache", "off"}},
		{"in memory", nil},
		{"in files", []string{"--prefix-disk", filepath.Join(t.TempDir(), "disk")}},
	} {
		s := up(t, 3, c.args...)
		if want == nil {
			want, _ = s.open(reqs).wait(t)
		} else { // the earlier blocks have been written by now
			got, _ := s.open(reqs).wait(t)
			same(t, c.what, reqs, want, got)
		}
		before := s.state().Recovery.RecomputedTokens
		surviveFault(t, s, "kill -9 node-1, "+c.what, reqs, want, func() { s.signal("node-1", syscall.SIGKILL) })
		recomputed[c.what] = s.state().Recovery.RecomputedTokens - before
		t.Logf("%s: %d tokens were read again", c.what, recomputed[c.what])
	}
	cold, memory, files := recomputed["without the prefix cache"], recomputed["in memory"], recomputed["in files"]
	if cold < 900 || 2*memory > cold+500 || files >= memory {
		t.Errorf("%d tokens were read again without the prefix cache, %d with it, %d with files", cold, memory, files)
	}
}

func prefixBytes(s wire.ClusterState) (bytes int64) {
	for _, n := range s.Nodes {
		bytes += n.KVPrefix
	}
	return bytes
}
