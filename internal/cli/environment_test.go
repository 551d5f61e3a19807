package cli

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
	"github.com/shoal-llm/shoal/internal/security"
)

// TestEachVariableHasOneMeaning checks that flags with the same variable have the same help, except for the
// variables in tagged.
func TestEachVariableHasOneMeaning(t *testing.T) {
	tagged := map[string]bool{"SHOAL_API_KEY": true, "SHOAL_CLUSTER": true, "SHOAL_DATA_DIR": true,
		"SHOAL_QUANT": true, "SHOAL_BIND": true, "SHOAL_PORTS": true}
	var c commands
	k, err := parser(&c, ui.Quiet(context.Background()))
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
		{"SHOAL_NODES", "run", "set SHOAL_START_NODES"},
		{"SHOAL_BIND", "up", ""},
		{"SHOAL_PORTS", "up", ""},
		{"SHOAL_THREADS", "lab decode", "SHOAL_THREADS sets --threads of other commands, not of lab decode: set SHOAL_LAB_DECODE_THREADS"},
		{"SHOAL_SHARE", "node", "set SHOAL_NODE_SHARE"},
	} {
		t.Run(x.variable+" "+x.command, func(t *testing.T) {
			t.Setenv(x.variable, "1")
			c, err := parsed(t, strings.Fields(x.command)...)
			if x.want != "" {
				if err == nil || !strings.Contains(err.Error(), x.want) {
					t.Errorf("%v, want %q", err, x.want)
				}
				return
			}
			set := map[string]bool{
				"SHOAL_UP_NODES up": c.Up.Nodes == 1, "SHOAL_BIND up": c.Up.Bind == "1", "SHOAL_PORTS up": c.Up.Ports == 1,
				"SHOAL_NODES status": true, "SHOAL_THREADS up": c.Up.Threads == 1,
				"SHOAL_THREADS node": c.Node.Threads == 1, "SHOAL_UP_THREADS up": c.Up.Threads == 1, "SHOAL_JOIN node": len(c.Node.Join) == 1,
				"SHOAL_DISCOVER node": c.Node.Discover, "SHOAL_NODE_DISCOVER node": c.Node.Discover,
			}
			if err != nil || !set[x.variable+" "+x.command] {
				t.Errorf("the flag is not set (%v)", err)
			}
		})
	}
	t.Setenv("SHOAL_THREADS", "3")
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

// TestNoOptionIsIgnored goes through every flag of every command. A variable with the name of a flag
// sets it, or the command refuses it by name. A flag with a condition is refused if it is not met.
func TestNoOptionIsIgnored(t *testing.T) {
	var c commands
	k, err := parser(&c, ui.Quiet(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	check := func(f *kong.Flag, args []string) {
		name := variable("", f.Name)
		if name == security.EnvKey || f.Hidden || f.Name == "help" || f.Name == "version" || f.Name == "config" {
			return
		}
		value := valueOf(f)
		t.Setenv(name, value)
		_, err := k.Parse(args)
		switch {
		case err != nil && strings.Contains(err.Error(), name):
			count["refused"]++
		case err != nil:
			t.Errorf("%v with %s=%s: %v, want the name of the variable", args, name, value, err)
		case !slices.Contains(f.Tag.Envs, name):
			t.Errorf("%v ignores %s", args, name)
		default:
			count["set"]++
		}
		os.Unsetenv(name)
		other, with, conditional := options.Condition(f.Help)
		if !conditional {
			return
		}
		args = append(args, "--"+f.Name+"="+value)
		if !with {
			args = append(args, "--"+other+"=x")
		}
		ctx, err := k.Parse(args)
		if err == nil {
			err = checkFlags(ctx)
		}
		if err == nil || !strings.Contains(err.Error(), "no effect with") {
			t.Errorf("%v: %v, want an error about --%s", args, err, other)
		}
		count["conditional"]++
	}
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, c := range n.Children {
			visit(c)
		}
		if n.Type != kong.CommandNode || len(n.Children) > 0 {
			return
		}
		args := strings.Fields(pathOf(n))
		for _, p := range n.Positional {
			if p.Required {
				args = append(args, file)
			}
		}
		for _, f := range n.Flags {
			if f.Required {
				args = append(args, "--"+f.Name+"="+file)
			}
		}
		for _, f := range n.Flags {
			if !f.Required {
				check(f, slices.Clone(args))
			}
		}
	}
	visit(k.Model.Node)
	if count["set"] < 200 || count["refused"] < 60 || count["conditional"] < 15 {
		t.Errorf("too few flags were found: %v", count)
	}
}

// valueOf returns a text that a flag accepts.
func valueOf(f *kong.Flag) string {
	switch {
	case f.Enum != "":
		return strings.Split(f.Enum, ",")[0]
	case f.HasDefault && f.Default != "":
		return f.Default
	case f.IsBool():
		return "true"
	case f.IsMap():
		return "a=1"
	case f.Target.Type() == reflect.TypeFor[time.Duration]():
		return "1m"
	}
	return "1"
}
