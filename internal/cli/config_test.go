package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// parsed returns the flags of a command line.
func parsed(t *testing.T, args ...string) (*commands, error) {
	t.Helper()
	var c commands
	p, err := parser(&c, ui.Quiet(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Parse(args)
	return &c, err
}

func TestConfigFile(t *testing.T) {
	dir := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(dir, "shoal.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c, err := parsed(t, "up", "--chunk", "7", "--config", file(`# of all commands
kv-memory: 2GiB
chunk: 5
queue: 9
step-deadline: 3s
standby: true
allow-origin: [https://a.example, "https://b.example"]
shares: {a: 1.5, b: 2}
join: [h:1]       # up has no such flag, node has
up:
  kv-memory: 3GiB
  share: [1, 2.5]
node:
  kv-memory: 4GiB
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range [][2]any{
		{c.Up.KVMemory, int64(3 << 30)}, {c.Up.Serve.Chunk, 7}, {c.Up.Serve.Queue, 9},
		{c.Up.Serve.StepDeadline, 3 * time.Second}, {c.Up.Standby, true},
		{c.Up.AllowOrigin, []string{"https://a.example", "https://b.example"}}, {c.Up.Serve.Shares, map[string]float64{"a": 1.5, "b": 2}},
		{c.Up.Share, []float64{1, 2.5}}, {c.Up.Serve.StepTokens, 512},
	} {
		if !reflect.DeepEqual(x[0], x[1]) {
			t.Errorf("got %v, want %v", x[0], x[1])
		}
	}
	// The environment overrides the file, and can name it. The file can set a required flag.
	t.Setenv("SHOAL_QUEUE", "11")
	t.Setenv("SHOAL_CONFIG", file("queue: 9\nchunk: 5\njoin: [h:1, h:2]\n"))
	if c, err = parsed(t, "coordinator"); err != nil || c.Coordinator.Serve.Queue != 11 || c.Coordinator.Serve.Chunk != 5 {
		t.Errorf("queue %d, chunk %d (%v), want 11 of the environment and 5 of the file",
			c.Coordinator.Serve.Queue, c.Coordinator.Serve.Chunk, err)
	}
	if c, err = parsed(t, "node"); err != nil || len(c.Node.Join) != 2 {
		t.Errorf("node joins %v (%v)", c.Node.Join, err)
	}
	for text, want := range map[string]string{
		"queue: 9\nkv-memry: 1GiB\n":  "line 2: no command has a flag --kv-memry",
		"node:\n  chunk: 5\n":         "line 2: node has no flag --chunk",
		"queue: 9\n\nchunk: many\n":   "shoal.yaml:3:",
		"queue: 1\nqueue: 2\n":        "line 2: \"queue\" is repeated",
		"chunk: [1, 2]\n":             "shoal.yaml:1: takes one value",
		"chunk:\n":                    "shoal.yaml:1: has no value",
		"chunk: {a: 1}\n":             "shoal.yaml:1: takes a value",
		"- chunk\n":                   "line 1: want lines of the form",
		"chunk: 1\n---\nchunk: 2\n":   "several YAML documents",
		"config: other.yaml\n":        "no command has a flag --config",
		"chunk: \"unterminated\nx: y": "line",
	} {
		if _, err := parsed(t, "up", "--config", file(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := parsed(t, "up", "--config", file("")); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := parsed(t, "up", "--config", filepath.Join(dir, "none")); err == nil {
		t.Error("a missing file is accepted")
	}
}

func FuzzConfig(f *testing.F) {
	for _, seed := range []string{"chunk: 5\n", "node: {join: [a, b]}", "&a [*a]", "shares: &x {a: *x}",
		"? [a]: b", "<<: {chunk: 5}", "!!binary x: y"} {
		f.Add([]byte(seed))
	}
	var c commands
	p, err := parser(&c, ui.Quiet(context.Background()))
	if err != nil {
		f.Fatal(err)
	}
	up := p.Model.Children[1]
	flags := map[string]*kong.Flag{}
	for _, group := range up.AllFlags(false) {
		for _, flag := range group {
			flags[flag.Name] = flag
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<12 {
			return
		}
		values, err := parseConfig(text, p.Model, up)
		if err != nil {
			return
		}
		for name, v := range values {
			if flag := flags[name]; flag != nil {
				_, _ = flagText(v, flag)
			}
		}
		if bytes.Contains(text, []byte("no-such-flag: 1\n")) && bytes.HasPrefix(text, []byte("no-such")) {
			t.Error("an unknown key is accepted")
		}
	})
}

// TestOldCommandNames checks that the names of commands that became lab still work, on the command
// line and as sections of a file.
func TestOldCommandNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shoal.yaml")
	if err := os.WriteFile(path, []byte("bench:\n  tokens: 7\neval:\n  samples: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bench", "eval", "lab"} {
		c, err := parsed(t, name, "decode", "--config", path)
		if err != nil || c.Lab.Decode.Tokens != 7 {
			t.Errorf("%s decode: %d tokens (%v), want 7", name, c.Lab.Decode.Tokens, err)
		}
		if c, err = parsed(t, name, "ruler", "--config", path); err != nil || c.Lab.Ruler.Samples != 3 {
			t.Errorf("%s ruler: %d samples (%v), want 3", name, c.Lab.Ruler.Samples, err)
		}
	}
}
