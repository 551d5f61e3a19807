package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// TestUsageErrors checks the messages for wrong command lines.
func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"bogus":                           `no command "bogus"` + "\n",
		"statsu":                          `no command "statsu"; did you mean "status"?`,
		"stat":                            `no command "stat"; did you mean "status"?`,
		"Chat":                            `no command "Chat"; did you mean "chat"?`,
		"pss":                             `no command "pss"; did you mean "ps"?`,
		"store ad":                        `no command "ad" of shoal store; did you mean "add"?`,
		"lab nothing":                     `no command "nothing" of shoal lab` + "\n",
		"status now":                      `shoal status takes no argument "now" here`,
		"up --nodes two":                  `--nodes: want a whole number, not "two"`,
		"up --nodes 1.5":                  `--nodes: want a whole number, not "1.5"`,
		"up --nodes 99999999999999999999": `--nodes: 99999999999999999999 is out of range`,
		"run --temperature hot x":         `--temperature: want a number, not "hot"`,
		"run --seed 1e9 x":                `--seed: want a whole number, not "1e9"`,
		"up --share 1,b":                  `--share: want a number, not "b"`,
		"up --shares a=x":                 `--shares: `,
		"up --step-deadline 5":            `--step-deadline: want a duration, such as 500ms, 30s or 5m, not "5"`,
		"up --kv-memory lots":             `--kv-memory: "lots" is not a size`,
		"up --nothing":                    "unknown flag --nothing",
		"up --log-level loud":             `--log-level must be one of debug, info, warn, error, not "loud"`,
		"completion":                      "missing argument: <shell>",
		"completion sh":                   `<shell> must be one of bash, zsh, fish, not "sh"`,
		"lab ppl":                         "missing flag: --text=FILE",
		"--log-json":                      "unknown flag --log-json",
		"store":                           "missing command: one of list, add, remove",
	} {
		var out, stderr bytes.Buffer
		status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &stderr}, strings.Fields(args))
		if text := stderr.String(); status != 2 || !strings.Contains(text, want) || strings.Contains(text, "bit int") ||
			!strings.Contains(text, "shoal --help") || out.Len() > 0 {
			t.Errorf("shoal %s: status %d: %s%s", args, status, &out, &stderr)
		}
	}
}

// TestHelpHasGroups checks that the help lists each command in exactly one group.
func TestHelpHasGroups(t *testing.T) {
	var out bytes.Buffer
	if status := run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &out}, nil); status != 0 {
		t.Fatalf("status %d: %s", status, &out)
	}
	for _, g := range groups {
		if strings.Count(out.String(), g.Title) != 1 {
			t.Errorf("no group %q in\n%s", g.Title, &out)
		}
	}
	if strings.Contains(out.String(), "\nCommands:") {
		t.Errorf("a command has no group:\n%s", &out)
	}
	out.Reset()
	if run(ui.Env{Ctx: context.Background(), Stdout: &out, Stderr: &out},
		[]string{"chat", "--help"}); strings.Contains(out.String(), "snapkv") {
		t.Errorf("chat lists the cache policies:\n%s", &out)
	}
}
