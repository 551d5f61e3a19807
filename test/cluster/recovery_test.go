package cluster_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

// TestRecoveryFigures kills a node during streams, with and without replicas, and checks the
// recovery costs in /v1/cluster and /metrics.
func TestRecoveryFigures(t *testing.T) {
	testlevel.NeedLong(t)
	testlevel.NeedLong(t)
	reqs := load()
	var want []string
	for _, replicas := range []string{"1", "0"} {
		c := up(t, 3, "--replicas", replicas)
		if want == nil {
			want, _ = c.undisturbed(t, reqs)
		}
		surviveFault(t, c, "kill -9 with --replicas "+replicas, reqs, want, func() { c.signal("node-1", syscall.SIGKILL) })
		c.waitNodes(2, recoverLimit)
		r := c.state().Recovery
		if r == nil {
			t.Fatal("/v1/cluster has no recovery")
		}
		t.Logf("--replicas %s: %+v", replicas, *r)
		if r.Placements["node_lost"]+r.Placements["step_failed"] == 0 || r.Stall.Count == 0 || r.Stall.Max <= 0 || r.Detection.Count == 0 {
			t.Errorf("a node died, but %+v", *r)
		}
		if r.RestoredCaches == 0 {
			t.Error("no cache of a survivor went on")
		}
		if with := replicas == "1"; with != (r.ReplicaBytes > 0) || with != (r.RestoredReplicas > 0) {
			t.Errorf("--replicas %s: %d bytes to replicas, of which %d were used", replicas, r.ReplicaBytes, r.RestoredReplicas)
		} else if !with && r.RecomputedTokens+r.ReplayedTokens == 0 {
			t.Error("nothing was computed again for the lost node's sequences")
		}
		text := string(c.want(200, "GET", "/metrics", nil).body)
		for _, name := range []string{`shoal_rebuilt_tokens_total{how="recomputed"}`, `shoal_rebuilt_tokens_total{how="replayed"}`, `shoal_restored_caches_total{from="owner"}`,
			`shoal_restored_caches_total{from="replica"}`, "shoal_replica_bytes_total", `shoal_placement_changes_total{reason="node_lost"}`, "shoal_detection_seconds_count", `shoal_stall_seconds_bucket{le="2"}`} {
			if !strings.Contains(text, "\n"+name+" ") {
				t.Errorf("/metrics lacks %s", name)
			}
		}
	}
}
