package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/bench"
)

// TestPlanOfEveryModel: plan works without further flags for each model that it lists, and
// for a folder.
func TestPlanOfEveryModel(t *testing.T) {
	for _, name := range append(bench.PlanShapes(), "../models/fry", "../models/dace") {
		for _, nodes := range []string{"1", "16"} {
			var out, said bytes.Buffer
			status := run(env{ctx: context.Background(), stdout: &out, stderr: &said}, []string{"plan", "-m", name, "--nodes", nodes})
			misfit := status == 1 && strings.Contains(said.String(), "the weights do not fit") && nodes == "1" && !strings.Contains(out.String(), "context")
			if status != 0 && !misfit || strings.Contains(out.String(), "1 nodes") || strings.Contains(out.String()+said.String(), "socket") || strings.Contains(said.String(), "bench:") || strings.Contains(out.String(), "0 (0)") {
				t.Errorf("%s on %s: status %d\n%s%s", name, nodes, status, &out, &said)
			}
		}
	}
}
