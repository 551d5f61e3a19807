package launch

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/cluster"
)

// fill sets every field of a struct to a value that is neither zero nor a default.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f, x := v.Type().Field(i), v.Field(i)
		switch {
		case f.Tag.Get("kong") == "-":
		case f.Anonymous || f.Type == reflect.TypeFor[cluster.ServeConfig]():
			fill(t, x)
		case !f.IsExported():
		case f.Type == reflect.TypeFor[cluster.CardServes]():
			fill(t, x)
		case x.Type() == reflect.TypeFor[time.Duration]():
			x.SetInt(int64(time.Duration(i+1) * 1500 * time.Millisecond))
		case strings.Contains(f.Tag.Get("enum"), "debug"):
			x.SetString("debug")
		case f.Tag.Get("type") == "path":
			x.SetString("/a path, with a comma/" + f.Name)
		case x.Kind() == reflect.String:
			x.SetString(`text, "` + f.Name + `" \`)
		case x.Kind() == reflect.Bool:
			x.SetBool(true)
		case x.CanInt():
			x.SetInt(int64(100 + i))
		case x.CanFloat():
			x.SetFloat(0.1 + float64(i))
		case x.Kind() == reflect.Slice && x.Type().Elem().Kind() == reflect.String:
			x.Set(reflect.ValueOf([]string{"a name", "b,c", "-d"}).Convert(x.Type()))
		case x.Type() == reflect.TypeFor[[]float64]():
			x.Set(reflect.ValueOf([]float64{0.25, 3}))
		case x.Type() == reflect.TypeFor[map[string]string]():
			x.Set(reflect.ValueOf(map[string]string{"a": "/a folder", "org/b": "/c,d;e"}))
		case x.Type() == reflect.TypeFor[map[string]float64]():
			x.Set(reflect.ValueOf(map[string]float64{"a": 0.25, "b,c": 3}))
		default:
			t.Fatalf("%s has the type %v: add a value for it here", f.Name, x.Type())
		}
	}
}

// processCommands are the commands that start processes.
type processCommands struct {
	Up          Up             `cmd:""`
	Coordinator CoordinatorCmd `cmd:""`
	Node        NodeCmd        `cmd:""`
}

// parsedProcess returns the flags of a command line that starts processes.
func parsedProcess(t *testing.T, args ...string) *processCommands {
	t.Helper()
	var c processCommands
	p, err := kong.New(&c, Variables(), PlainValues())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse(args); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return &c
}

// reparsed formats a command as a command line and parses it again.
func reparsed(t *testing.T, name string, cmd any) *processCommands {
	t.Helper()
	args, err := commandLine(name, cmd)
	if err != nil {
		t.Fatal(err)
	}
	return parsedProcess(t, args...)
}

// flagsOf maps the names of a command's flags to their values.
func flagsOf(t *testing.T, cmd any) map[string]any {
	t.Helper()
	k, err := kong.New(cmd, Variables())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, f := range k.Model.Flags {
		out[f.Name] = f.Target.Interface()
	}
	return out
}

// TestCommandLine checks that another process gets the value of every flag.
func TestCommandLine(t *testing.T) {
	var node NodeCmd
	var coordinator CoordinatorCmd
	fill(t, reflect.ValueOf(&node).Elem())
	fill(t, reflect.ValueOf(&coordinator).Elem())
	if got := reparsed(t, "node", &node).Node; !reflect.DeepEqual(got, node) {
		t.Errorf("arrived: %+v\nsent:    %+v", got, node)
	}
	got := reparsed(t, "coordinator", &coordinator).Coordinator
	if len(got.APIKey) > 0 {
		t.Errorf("the command line has the keys %q", got.APIKey)
	}
	if coordinator.APIKey = nil; !reflect.DeepEqual(got, coordinator) {
		t.Errorf("arrived: %+v\nsent:    %+v", got, coordinator)
	}
}

// TestUpFlagsArrive checks that the processes of up and up --standby get every flag of up with its
// value. The exceptions are listed here with the reason.
func TestUpFlagsArrive(t *testing.T) {
	own := map[string]string{
		"help":             "starts no process",
		"advertise":        "used by up itself",
		"api-key":          "passed in the environment of the coordinators",
		"bind":             "each process gets a port of its own",
		"expect":           "passed in --nodes",
		"join-port":        "used by up itself",
		"ports":            "each process gets its own ports",
		"token-life":       "used by up itself",
		"cluster-key":      "passed by supervise",
		"data-dir":         "each process gets a folder of it",
		"log-dir":          "used by up itself",
		"model":            "passed as the path that up has found",
		"share":            "passed in --shares",
		"prefill-nodes":    "passed in --role",
		"shares":           "extended with --share",
		"standby":          "passed to one coordinator",
		"weights-cache":    "passed as the path that up has found",
		"prefix-disk-size": "divided by the nodes",
		"kv-disk-size":     "divided by the nodes",
	}
	var up Up
	fill(t, reflect.ValueOf(&up).Elem())
	up.Nodes, up.Expect, up.Share = 2, 0, []float64{0.25, 3}
	want := flagsOf(t, &up)
	for name := range own {
		if _, ok := want[name]; !ok {
			t.Errorf("up has no flag --%s: remove it from this list", name)
		}
	}
	settled := up
	settled.applyDefaults()
	k, n := settled.coordinator("/model"), settled.node(1, "/model", []string{"127.0.0.1:1"}, "")
	coordinator, node := reparsed(t, "coordinator", &k), reparsed(t, "node", &n)
	arrived := []map[string]any{flagsOf(t, &coordinator.Coordinator), flagsOf(t, &node.Node)}
	for name, value := range want {
		if own[name] != "" {
			continue
		}
		found := false
		for _, flags := range arrived {
			got, ok := flags[name]
			if found = found || ok; ok && !reflect.DeepEqual(got, value) {
				t.Errorf("--%s arrives as %v, not as %v", name, got, value)
			}
		}
		if !found {
			t.Errorf("no process gets --%s", name)
		}
	}
	if got := coordinator.Coordinator.Serve.Shares; got["node-0"] != 0.25 || got["node-1"] != 3 || got["a"] != 0.25 || node.Node.Share != 3 {
		t.Errorf("--share and --shares arrive as %v and %v", got, node.Node.Share)
	}
	if got := node.Node; got.PrefixDiskSize != up.PrefixDiskSize/2 || got.KVDiskSize != up.KVDiskSize/2 ||
		got.WeightsCache != up.WeightsCache || len(got.Model) != 1 || got.Model[0] != "/model" {
		t.Errorf("arrived: %+v", got)
	}
}

// TestDraftIsTheDefault checks that --draft changes the default of --speculate to model, with and
// without --standby.
func TestDraftIsTheDefault(t *testing.T) {
	for _, c := range []struct{ draft, speculate, want string }{{"mtp", "suffix", "model"}, {"mtp", "off", "off"}, {"", "suffix", "suffix"}} {
		up := Up{Nodes: 1, NodeFlags: NodeFlags{cluster.Resources{Draft: c.draft}},
			ServeFlags: ServeFlags{Serve: cluster.ServeConfig{Speculate: c.speculate}}}
		up.applyDefaults()
		k, n := up.coordinator("/model"), up.node(0, "/model", nil, "")
		if k.Serve.Speculate != c.want || n.Draft != c.draft {
			t.Errorf("%+v: the coordinator has --speculate %q, the node --draft %q", c, k.Serve.Speculate, n.Draft)
		}
	}
}

// TestKeysTravel checks that API keys with commas reach a coordinator through its environment.
func TestKeysTravel(t *testing.T) {
	keys := []string{"one", "two,three"}
	t.Setenv("SHOAL_API_KEY", apiKeysEnv(keys))
	k := CoordinatorCmd{listenFlags: listenFlags{APIKey: keys}, LogFlags: LogFlags{LogLevel: "info"}}
	if got := reparsed(t, "coordinator", &k).Coordinator.APIKey; !slices.Equal(got, keys) {
		t.Errorf("%q arrives as %q", keys, got)
	}
}

// TestEmptyPath: an empty path is an error, not the current folder.
func TestEmptyPath(t *testing.T) {
	for _, args := range [][]string{{"up", "--data-dir", ""}, {"up", "--data-dir="}} {
		var c processCommands
		p, err := kong.New(&c, Variables(), PlainValues())
		if err != nil {
			t.Fatal(err)
		}
		if _, err = p.Parse(args); err == nil || !strings.Contains(err.Error(), "--data-dir: the path is empty") {
			t.Errorf("%q: %v", args, err)
		}
	}
	if got := parsedProcess(t, "up", "--data-dir", "x").Up.DataDir; !filepath.IsAbs(got) || filepath.Base(got) != "x" {
		t.Errorf("--data-dir x is %q", got)
	}
}
