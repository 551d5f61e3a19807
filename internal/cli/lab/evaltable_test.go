package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/eval"
)

// TestTableRefusesFirst: wrong flags fail before a model is loaded or a folder created, and the error names the folder.
func TestTableRefusesFirst(t *testing.T) {
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "longbench"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "gsm8k"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(data, "missing")
	for _, c := range []struct {
		set  func(c *evalTableCmd)
		want []string
	}{
		{func(c *evalTableCmd) { c.Table = "nothing" }, []string{"known are snapstream"}},
		// ShadowKV's first part is generated, its second one is read from files.
		{func(c *evalTableCmd) { c.Table, c.Data = "shadowkv", missing }, []string{"--data", filepath.Join(missing, "longbench")}},
		{func(c *evalTableCmd) { c.Table, c.Data = "shadowkv", data }, []string{filepath.Join(data, "longbench"), "narrativeqa.jsonl"}},
		{func(c *evalTableCmd) { c.Table, c.Data = "swiftkv", data }, []string{"gsm8k is not a folder"}},
		{func(c *evalTableCmd) { c.Table, c.Length = "snapstream", 10 }, []string{"10 tokens; want 512"}},
		{func(c *evalTableCmd) { c.Table, c.Data = "equip", data }, []string{"remove --data and --server"}},
		{func(c *evalTableCmd) { c.Table, c.Server = "equip", "x" }, []string{"remove --data and --server"}},
		{func(c *evalTableCmd) { c.Table, c.Text = "equip", missing }, []string{missing}},
		{func(c *evalTableCmd) { c.Table, c.Text = "squeezed", missing }, []string{"remove --text"}},
		{func(c *evalTableCmd) { c.Table, c.Server = "swiftkv", "x" }, []string{"remove --server"}},
		{func(c *evalTableCmd) { c.Table = "swiftkv" }, []string{"cannot take a SwiftKV adapter"}}, // the model is dace
	} {
		out := filepath.Join(t.TempDir(), "out")
		cmd := evalTableCmd{Length: 2048, Limit: 1, Out: out}
		cmd.Model = filepath.Join("..", "..", "..", "models", "dace")
		c.set(&cmd)
		err := cmd.Run(&ui.Env{Ctx: t.Context(), Stdout: t.Output(), Stderr: t.Output()})
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want %q", cmd.Table, err, want)
			}
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the folder exists: %v", cmd.Table, err)
		}
	}
}

// TestSuiteNamesFolder: the error of lab suite for a wrong --data names the folder.
func TestSuiteNamesFolder(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		cmd := evalSuiteCmd{Suite: "gsm8k", Data: dir}
		if _, _, err := cmd.load(); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v; want %s", err, dir)
		}
	}
}

// TestUnknownPolicy: without --server an unknown policy fails before a model is loaded.
func TestUnknownPolicy(t *testing.T) {
	target := evalTarget{}
	target.Model = filepath.Join(t.TempDir(), "missing")
	policies := []string{"full fulll"}
	e := &ui.Env{Ctx: t.Context(), Stdout: t.Output(), Stderr: t.Output()}
	for name, cmd := range map[string]interface{ Run(e *ui.Env) error }{
		"ruler": &evalRulerCmd{evalTarget: target, Policy: policies},
		"suite": &evalSuiteCmd{evalTarget: target, Suite: "gsm8k", Policy: policies},
		"jsonl": &evalJSONLCmd{evalTarget: target, File: "missing", Policy: policies},
		"ppl":   &evalPPLCmd{evalTarget: target, Text: "evaltable_test.go", Policy: policies},
	} {
		if err := cmd.Run(e); err == nil || !strings.Contains(err.Error(), `"fulll" is unknown`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	target.Server = "x"
	if _, err := target.parsePolicies(policies); err != nil {
		t.Errorf("a policy that a server may know: %v", err)
	}
}

// TestInterruptedTable: an interrupted run prints how to continue, and no other error does.
func TestInterruptedTable(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range []struct {
		cancel    func()
		out, want string
	}{{func() {}, "DIR", ""}, {cancel, "DIR", "in DIR. The same command continues"}, {cancel, "", "--out DIR"}} {
		c.cancel()
		var text bytes.Buffer
		err := resumeHint(&ui.Env{Ctx: ctx, Stderr: &text}, c.out, eval.ErrTable)
		if !errors.Is(err, eval.ErrTable) || !strings.Contains(text.String(), c.want) || c.want == "" && text.Len() > 0 {
			t.Errorf("%v, %q; want %q", err, text.String(), c.want)
		}
	}
}
