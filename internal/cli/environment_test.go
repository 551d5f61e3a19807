package cli

import (
	"context"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestEachVariableHasOneMeaning checks that two flags with the same variable are the same row, or
// say with a tag that they share it.
func TestEachVariableHasOneMeaning(t *testing.T) {
	tagged := map[string]bool{"SHOAL_API_KEY": true, "SHOAL_CLUSTER": true, "SHOAL_DATA_DIR": true, "SHOAL_QUANT": true}
	var c commands
	k, err := parser(&c, ui.Quiet(context.Background()), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	meaning, count := map[string]string{}, 0
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, f := range n.Flags {
			for _, name := range f.Tag.Envs {
				count++
				if before, ok := meaning[name]; ok && before != f.Help && !tagged[name] {
					t.Errorf("%s has two meanings: %q and %q", name, before, f.Help)
				}
				meaning[name] = f.Help
			}
			if len(f.Envs) == 0 && !f.Hidden && f.Name != "help" && f.Name != "version" {
				t.Errorf("--%s of%s has no variable", f.Name, pathOf(n))
			}
		}
		for _, c := range n.Children {
			visit(c)
		}
	}
	visit(k.Model.Node)
	if count < 400 {
		t.Errorf("%d variables found, want at least 400", count)
	}
}

// TestVariables checks which variable sets which flag of which command.
func TestVariables(t *testing.T) {
	for _, x := range []struct {
		variable, command string
		want              string // the error; "": the flag is set
	}{
		{"SHOAL_UP_NODES", "up", ""},
		{"SHOAL_NODES", "up", "SHOAL_NODES has had several meanings: set SHOAL_UP_NODES"},
		{"SHOAL_NODES", "coordinator", "set SHOAL_COORDINATOR_NODES"},
		{"SHOAL_NODES", "status", ""},
		{"SHOAL_THREADS", "up", ""},
		{"SHOAL_THREADS", "node", ""},
		{"SHOAL_UP_THREADS", "up", ""},
		{"SHOAL_JOIN", "node", ""},
		{"SHOAL_DISCOVER", "node", ""}, // the name of earlier versions
		{"SHOAL_NODE_DISCOVER", "node", ""},
		{"SHOAL_SHARE", "node", "set SHOAL_NODE_SHARE"},
	} {
		t.Run(x.variable+" "+x.command, func(t *testing.T) {
			t.Setenv(x.variable, "1")
			c, err := parsed(t, x.command)
			if x.want != "" {
				if err == nil || !strings.Contains(err.Error(), x.want) {
					t.Errorf("%v, want %q", err, x.want)
				}
				return
			}
			set := map[string]bool{
				"SHOAL_UP_NODES up": c.Up.Nodes == 1, "SHOAL_NODES status": true, "SHOAL_THREADS up": c.Up.Threads == 1,
				"SHOAL_THREADS node": c.Node.Threads == 1, "SHOAL_UP_THREADS up": c.Up.Threads == 1, "SHOAL_JOIN node": len(c.Node.Join) == 1,
				"SHOAL_DISCOVER node": c.Node.Discover, "SHOAL_NODE_DISCOVER node": c.Node.Discover,
			}
			if err != nil || !set[x.variable+" "+x.command] {
				t.Errorf("the flag is not set (%v)", err)
			}
		})
	}
	t.Setenv("SHOAL_THREADS", "3")
	if c, err := parsed(t, "lab", "decode"); err != nil || c.Lab.Decode.Threads != 0 {
		t.Errorf("SHOAL_THREADS sets %d threads of lab decode (%v), want none", c.Lab.Decode.Threads, err)
	}
	t.Setenv("SHOAL_DEMO_THREADS", "4") // the command's own wins
	if c, err := parsed(t, "demo"); err != nil || c.Demo.Threads != 4 {
		t.Errorf("%d threads of demo (%v), want 4", c.Demo.Threads, err)
	}
	t.Setenv("SHOAL_NODES", "2")
	t.Setenv("SHOAL_UP_NODES", "1")
	if c, err := parsed(t, "up"); err != nil || c.Up.Nodes != 1 {
		t.Errorf("with both variables: %d nodes (%v), want 1", c.Up.Nodes, err)
	}
}
