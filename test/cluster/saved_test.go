package cluster_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestSessionsOnDisk: two nodes have memory for two of the caches of three sessions. The other caches are in
// files, so each turn computes only its new tokens, also after all processes were killed and restarted, and
// after one node was. After the loss of all files, turns read their text. Every token and log-probability
// equals that of one node with memory for all caches.
func TestSessionsOnDisk(t *testing.T) {
	const sessions, turns, restart, killed, lost = 3, 9, 5, 6, 7
	parallel(t)
	turn := func(s, n int) map[string]any {
		added := 40
		if n == 0 {
			added = 200
		}
		return map[string]any{"session": fmt.Sprint("s", s), "session_turns": n,
			"kv_policy": []string{"streaming:sink=4,recent=300,positions=cache", "tova:size=304,positions=cache"}[s%2],
			"prompt":    ids(rand.New(rand.NewPCG(uint64(s), uint64(n))), added), "add_special_tokens": false,
			"max_tokens": 12, "ignore_eos": true, "logprobs": 2, "return_tokens_as_token_ids": true,
			"skip_special_tokens": false, "temperature": 0.8, "seed": n}
	}
	one := up(t, 1, "--data-dir", filepath.Join(t.TempDir(), "one"))
	want := map[string]string{}
	for n := range turns {
		for s := range sessions {
			want[fmt.Sprint(s, " ", n)] = said(t, one.want(200, "POST", "/v1/completions", turn(s, n)))
		}
	}
	disk := filepath.Join(t.TempDir(), "kv")
	p := newProcessCluster(t, t.TempDir(), 2)
	p.headArgs = []string{"--prefix-cache", "off", "--replicas", "0"}
	p.nodeArgs = []string{"--kv-memory", "4MiB", "--kv-disk", disk}
	p.start()
	saved := func() (x wire.SavedCachesState) {
		if s := p.look().SavedCaches; s != nil {
			x = *s
		}
		return x
	}
	// all waits until the cache of each session after a number of turns is in a file.
	all := func(turns int) {
		t.Helper()
		tokens := uint32(200 + 40*(turns-1) + 12*turns - 1) // the last one is not in the cache
		testutil.Eventually(t, patience, "caches in files", func() (bool, string) {
			files, err := filepath.Glob(filepath.Join(disk, "sessions", "*", "[0-9a-f]*-*"))
			found, have := 0, []uint32{}
			for _, f := range files {
				if b, err := os.ReadFile(f); err == nil && len(b) > 120 {
					have = append(have, binary.LittleEndian.Uint32(b[116:]))
					if have[len(have)-1] == tokens {
						found++
					}
				}
			}
			return err == nil && found == sessions, fmt.Sprintf("files have %d tokens, want %d; %v", have, tokens, err)
		})
	}
	for n := range turns {
		switch n {
		case restart:
			all(n)
			for i := range p.nodes {
				p.nodes[i].kill(t)
			}
			_ = p.coordinator.cmd.Process.Signal(syscall.SIGTERM)
			p.coordinator.end(t, patience)
			p.startCoordinator()
			for i := range p.nodes {
				p.startNode(i)
			}
			p.ready(recoverLimit)
			p.serving(len(p.nodes)) // a node that is away has files that no turn finds
		case killed, lost:
			all(n)
			victim := n % 2
			p.nodes[victim].kill(t)
			if n == lost {
				files, err := filepath.Glob(filepath.Join(disk, "sessions", "*", "[0-9a-f]*-*"))
				if err != nil || len(files) == 0 {
					t.Fatalf("%v: %v", files, err)
				}
				for _, f := range files {
					if err := os.Remove(f); err != nil {
						t.Fatal(err)
					}
				}
				p.nodes[1-victim].kill(t)
				p.startNode(1 - victim)
			}
			p.startNode(victim)
			p.ready(recoverLimit)
			p.serving(len(p.nodes)) // a node that is away has files that no turn finds
		}
		for s := range sessions {
			a := p.want(200, "POST", "/v1/completions", turn(s, n))
			if got := said(t, a); got != want[fmt.Sprint(s, " ", n)] {
				t.Fatalf("session %d, turn %d:\n%s, want\n%s", s, n, got, want[fmt.Sprint(s, " ", n)])
			}
			var r struct {
				Usage struct {
					Prompt  int `json:"prompt_tokens"`
					Details struct {
						Cached int `json:"cached_tokens"`
					} `json:"prompt_tokens_details"`
				} `json:"usage"`
			}
			if err := json.Unmarshal(a.body, &r); err != nil {
				t.Fatal(err)
			}
			cached := r.Usage.Prompt - 41 // the last token of an answer was not in the cache
			if n == 0 || n == lost {
				cached = 0
			}
			if r.Usage.Details.Cached != cached {
				t.Errorf("session %d, turn %d: %d of %d tokens were in a cache, want %d", s, n, r.Usage.Details.Cached, r.Usage.Prompt, cached)
			}
		}
		if n == restart-1 || n == restart || n == turns-1 {
			t.Logf("after turn %d: %+v", n, saved())
		}
		if x := saved(); n == restart && x.Read < sessions || n == restart-1 && x.Read == 0 {
			t.Errorf("after turn %d: %+v", n, x)
		}
	}
	for s := range sessions {
		p.want(200, "DELETE", fmt.Sprint("/v1/sessions/s", s), nil)
	}
	testutil.Eventually(t, patience, "the files are removed", func() (bool, string) {
		files, err := filepath.Glob(filepath.Join(disk, "sessions", "*", "[0-9a-f]*-*"))
		return err == nil && len(files) == 0, fmt.Sprint(files, err)
	})
}
