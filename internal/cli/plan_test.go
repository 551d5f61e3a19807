package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/bench"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestPlanOfEveryModel checks that plan works without further flags for each model that it lists, and
// for a folder.
func TestPlanOfEveryModel(t *testing.T) {
	for _, name := range append(bench.PlanShapes(), "../../models/fry", "../../models/dace") {
		for _, nodes := range []string{"1", "16"} {
			var out, stderr bytes.Buffer
			status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &stderr}, []string{"plan", "-m", name, "--nodes", nodes})
			misfit := status == 1 && strings.Contains(stderr.String(), "the weights do not fit") &&
				nodes == "1" && !strings.Contains(out.String(), "context")
			if status != 0 && !misfit || strings.Contains(out.String(), "1 nodes") || strings.Contains(out.String()+stderr.String(), "socket") ||
				strings.Contains(stderr.String(), "bench:") || strings.Contains(out.String(), "0 (0)") {
				t.Errorf("%s on %s: status %d\n%s%s", name, nodes, status, &out, &stderr)
			}
		}
	}
}

// TestPlanThatDoesNotFit: the exit status is 1 with --json as well, after the plan.
func TestPlanThatDoesNotFit(t *testing.T) {
	for _, format := range [][]string{nil, {"--json"}} {
		var out, stderr bytes.Buffer
		status := run(ui.Env{Ctx: t.Context(), Stdout: &out, Stderr: &stderr},
			append([]string{"plan", "--nodes", "1", "--memory", "1GB"}, format...))
		if status != 1 || !strings.Contains(stderr.String(), "the weights do not fit") {
			t.Errorf("%v: status %d, %s", format, status, &stderr)
		}
		if format != nil && !json.Valid(out.Bytes()) {
			t.Errorf("%.200s is not JSON", &out)
		}
	}
}

// TestNamedModels checks that plan, run and chat find a model in a repository folder of the Hugging
// Face cache, and that plan uses the base of an adapter.
func TestNamedModels(t *testing.T) {
	hub := filepath.Join(t.TempDir(), "models--x--fry")
	snapshot := filepath.Join(hub, "snapshots", "abc")
	if err := os.CopyFS(snapshot, os.DirFS("../../models/fry")); err != nil {
		t.Fatal(err)
	}
	if got := localCheckpoint(hub); got != snapshot {
		t.Errorf("%s names %q, want %s", hub, got, snapshot)
	}
	for _, path := range []string{hub, snapshot, "../../models/fry-tools"} {
		var out, stderr bytes.Buffer
		if status := run(ui.Env{Ctx: t.Context(), Stdout: &out, Stderr: &stderr}, []string{"plan", "-m", path, "--nodes", "1"}); status != 0 {
			t.Errorf("plan of %s: status %d\n%s%s", path, status, &out, &stderr)
		}
	}
	if err := os.CopyFS(filepath.Join(hub, "snapshots", "other"), os.DirFS("../../models/fry")); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	status := run(ui.Env{Ctx: t.Context(), Stdout: &stderr, Stderr: &stderr}, []string{"plan", "-m", hub})
	if status == 0 || !strings.Contains(stderr.String(), "holds abc, other and there is no refs/main") {
		t.Errorf("plan of two snapshots: status %d, %s", status, &stderr)
	}
}
