package launch

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestParseModel: settings follow a model, and commas of a policy's parameters belong to the policy.
func TestParseModel(t *testing.T) {
	for _, c := range []struct {
		text, word string
		settings   []string
	}{
		{"fry", "fry", nil},
		{"org/name", "org/name", nil},
		{"/a,b/c=d", "/a,b/c=d", nil},
		{"fry,policy=full", "fry", []string{"policy=full"}},
		{"fry,policy=snapstream:sink=4,recent=12,topk=16,kv-type=int8", "fry",
			[]string{"policy=snapstream:sink=4,recent=12,topk=16", "kv-type=int8"}},
		{"fry,model-name=a,b,max-context=512", "fry", []string{"model-name=a,b", "max-context=512"}},
	} {
		got, err := parseModel(c.text)
		if err != nil || got.word != c.word || !slices.Equal(got.settings, c.settings) {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
		if got.text() != c.text {
			t.Errorf("%s is written as %s", c.text, got.text())
		}
	}
	if _, err := parseModel("fry,polcy=full"); err == nil || !strings.Contains(err.Error(), `no setting "polcy"; known are chat-template, chunk, decode-steps, draft,`) {
		t.Error(err)
	}
}

// TestModelSettings: a setting of one model replaces the common value for this model only.
func TestModelSettings(t *testing.T) {
	common := cluster.ServeConfig{Policy: "full", Names: []string{"common"}, StepTokens: 512}
	for _, c := range []struct {
		settings []string
		change   func(*modelSettings)
		want     string // of the error; "": none
	}{
		{nil, func(*modelSettings) {}, ""},
		{[]string{"policy=knorm", "quant=q8_0", "kv-type=int8", "kv-memory=2GiB", "step-tokens=64", "step-deadline=3s"}, func(m *modelSettings) {
			m.Policy, m.Weights, m.KV, m.KVMemory, m.StepTokens, m.StepDeadline = "knorm", "q8_0", "int8", 2<<30, 64, 3*time.Second
		}, ""},
		{[]string{"model-name=a,b", "model-name=c"}, func(m *modelSettings) { m.Names = []string{"a", "b", "c"} }, ""},
		{[]string{"lora=x=/folder", "draft=mtp", "swiftkv=/s", "chat-template=t.jinja"}, func(m *modelSettings) {
			m.LoRA, m.Draft, m.SwiftKV, m.Template = map[string]string{"x": "/folder"}, "mtp", "/s", "t.jinja"
		}, ""},
		{[]string{"policy=full", "policy=knorm"}, nil, `--model fry: "policy" is set twice`},
		{[]string{"max-context=many"}, nil, `--model fry: max-context=many: want a whole number or a size, not "many"`},
		{[]string{"lora=x"}, nil, `want NAME=VALUE, not "x"`},
		{[]string{"step-deadline=3"}, nil, `want a duration`},
	} {
		got := modelSettings{ServeConfig: common}
		spec := modelSpec{word: "fry", settings: c.settings}
		err := spec.apply(&got)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %q", c.settings, err, c.want)
			}
			continue
		}
		want := modelSettings{ServeConfig: common}
		c.change(&want)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v: %+v, want %+v: %v", c.settings, got, want, err)
		}
	}
	if !slices.Equal(common.Names, []string{"common"}) {
		t.Errorf("the common settings are %+v", common)
	}
}

// TestSeveralModelsOnTheCommandLine: the flag repeats, and flags of one model are refused with several.
func TestSeveralModelsOnTheCommandLine(t *testing.T) {
	fry := "../../../models/fry"
	two := parsedProcess(t, "up", "-m", fry+",model-name=a,policy=knorm", "--model", fry+",model-name=b", "--policy", "snapkv").Up
	all, specs, err := two.configs(ui.Quiet(t.Context()), "", map[string]bool{})
	if err != nil || len(all) != 2 || all[0].Policy != "knorm" || all[1].Policy != "snapkv" || all[1].Names[0] != "b" || specs[1].path == "" {
		t.Fatalf("%+v: %v", all, err)
	}
	for flag, value := range map[string]string{"--model-name": "x", "--draft": "mtp", "--swiftkv": "/s",
		"--score-tokens": "yes,no", "--lora": "x=/y", "--lora-dir": "/z"} {
		up := parsedProcess(t, "up", "-m", fry, "-m", "dace", flag, value).Up
		if _, _, err := up.configs(ui.Quiet(t.Context()), up.Draft, map[string]bool{}); err == nil ||
			!strings.Contains(err.Error(), flag+" belongs to one of the 2 models") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// TestModelsArrive: the processes of up get every model with the settings that they read.
func TestModelsArrive(t *testing.T) {
	up := Up{specs: []modelSpec{
		{word: "a", path: "/a", settings: []string{"policy=knorm", "quant=auto"}},
		{word: "b", path: "/b", settings: []string{"draft=small"}},
	},
		models: []modelSettings{{}, {Draft: "/small"}}, quants: []string{"q4_0", ""}, Nodes: 1, LogFlags: LogFlags{LogLevel: "info"}}
	k, n := up.coordinator("/a"), up.node(0, "/a", []string{"127.0.0.1:1"}, "")
	coordinator, node := reparsed(t, "coordinator", &k), reparsed(t, "node", &n)
	if got := coordinator.Coordinator.Model; !slices.Equal(got, []string{"/a,policy=knorm,quant=q4_0", "/b,draft=/small"}) {
		t.Errorf("the coordinator gets %q", got)
	}
	if got := node.Node.Model; !slices.Equal(got, []string{"/a", "/b,draft=/small"}) {
		t.Errorf("a node gets %q", got)
	}
}
