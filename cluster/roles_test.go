package cluster

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/server/engine"
	"github.com/shoal-llm/shoal/topology"
)

// roleCuts are divisions of sockets into groups: the first number decode, the others read.
var roleCuts = [][2]int{{1, 1}, {2, 1}, {1, 2}, {2, 2}}

func rolesOf(cut [2]int) (roles []topology.Role) {
	for range cut[0] {
		roles = append(roles, topology.RoleDecode)
	}
	for range cut[1] {
		roles = append(roles, topology.RolePrefill)
	}
	return roles
}

// withRoles checks that a cluster with roles gives the bits of one socket without, for prompts that each
// group reads, concurrently. Every long prompt must have come from the prefill group.
func withRoles(t *testing.T, cfg LocalConfig, cuts [][2]int, policies []string) {
	t.Helper()
	lengths := []int{20, 90, 200, 300}
	cold := cfg
	cold.Sockets, cold.Serve.PrefixCache = 1, PrefixOff
	alone := startLocal(t, cold)
	request := func(policy string, n int) *engine.Request {
		return &engine.Request{ID: fmt.Sprint(policy, n), Prompt: text(n, n), Policy: policy, MaxTokens: 24}
	}
	want := map[string]replied{}
	for _, policy := range policies {
		for _, n := range lengths {
			want[fmt.Sprint(policy, n)] = complete(t, alone, request(policy, n))
		}
	}
	for i, cut := range cuts {
		t.Run(fmt.Sprintf("%d+%d", cut[0], cut[1]), func(t *testing.T) {
			c := cfg
			c.Sockets, c.roles = cut[0]+cut[1], rolesOf(cut)
			c.Serve.Mapping, c.Serve.Chunk, c.Serve.StepTokens = []string{"gather", "reduce"}[i%2], []int{256, 50, 64, 100}[i], 300
			c.Serve.PrefillOver = 64
			e := startLocal(t, c)
			var wg sync.WaitGroup
			long := 0
			for _, policy := range policies {
				for _, n := range lengths {
					if n > 64 {
						long++
					}
					wg.Go(func() {
						if got := complete(t, e, request(policy, n)); got.bits != want[fmt.Sprint(policy, n)].bits {
							t.Errorf("%s, %d tokens: \n%s, without roles \n%s", policy, n, got.bits, want[fmt.Sprint(policy, n)].bits)
						}
					})
				}
			}
			wg.Wait()
			s := e.Cluster()
			if x := s.Transfers; x == nil || x.Caches != uint64(long) || x.Failed > 0 || x.Bytes == 0 {
				t.Errorf("%d long prompts, transfers %+v", long, x)
			}
			e.ResetPrefixCache(t.Context())
			waitIdle(t, e)
		})
	}
}

// TestRoles checks every policy on every division.
func TestRoles(t *testing.T) {
	cuts := roleCuts
	if testing.Short() {
		cuts = cuts[:1]
	}
	withRoles(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: goldenDir, KV: "bf16"}}, cuts, prefixPolicies)
}

// TestRolesFamilies repeats that for models with windows, latent attention and recurrent states.
func TestRolesFamilies(t *testing.T) {
	for _, name := range []string{"gemma3", "gemma4_e2b", "mistral_window", "deepseek_v2", "swiftkv", "qwen3_5", "lfm2", "falcon_h1"} {
		t.Run(name, func(t *testing.T) {
			withRoles(t, LocalConfig{Threads: 1, Serve: ServeConfig{Model: filepath.Join("../internal/engine/model/testdata", name)}},
				roleCuts[1:2], []string{"full", "snapstream:sink=4,recent=40,topk=40,obs=8,pool=7", "quest:page=16,budget=96"})
		})
	}
}
