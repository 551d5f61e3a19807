package cli

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// output is the text that a command prints.
func output(t *testing.T, args ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	if status := run(ui.Env{Ctx: context.Background(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr}, args); status != 0 {
		t.Fatalf("shoal %v: status %d: %s", args, status, &stderr)
	}
	return out.String()
}

// docs/reference.md has the texts of --help.
func TestReference(t *testing.T) {
	want := output(t, "man", "--markdown")
	got, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/reference.md differs from the help of the commands; write it again: go run ./cmd/shoal man --markdown > docs/reference.md")
	}
	for _, line := range []string{"## `shoal store add <name>`", "| `--kv-memory=SIZE` | Memory of the caches", "[`SHOAL_KV_MEMORY`]"} {
		if !strings.Contains(want, line) {
			t.Errorf("the reference lacks %q", line)
		}
	}
}

// The manual page names every command and flag, and mandoc, where there is one, finds
// nothing wrong with it.
func TestManualPage(t *testing.T) {
	page := output(t, "man")
	for _, want := range []string{".TH SHOAL 1", `.SS shoal lab decode`, `\-\-kv\-memory`, "SHOAL_KV_MEMORY"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for i, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(line, "'") {
			t.Errorf("line %d is taken for a request: %s", i+1, line)
		}
	}
	if mandoc, err := exec.LookPath("mandoc"); err == nil {
		c := exec.Command(mandoc, "-T", "lint", "-W", "error")
		c.Stdin = strings.NewReader(page)
		if text, err := c.CombinedOutput(); err != nil {
			t.Errorf("mandoc: %v\n%s", err, text)
		}
	}
}

// TestManualFormats: groff, where there is one, sets the page without a warning.
func TestManualFormats(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("there is no groff here")
	}
	page := output(t, "man")
	for _, width := range []string{"60n", "78n", "120n"} {
		c := exec.Command(groff, "-man", "-ww", "-Tutf8", "-rLL="+width)
		var stderr strings.Builder
		c.Stdin, c.Stderr = strings.NewReader(page), &stderr
		if err := c.Run(); err != nil || stderr.Len() > 0 {
			t.Errorf("width %s: %v\n%s", width, err, stderr.String())
		}
	}
}

// Bash completes commands, flags and their values.
func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	script := output(t, "completion", "bash")
	for _, c := range []struct{ line, want, not string }{
		{"shoal ", "coordinator", "decode"},
		{"shoal sta", "status", "up"},
		{"shoal lab ", "decode", "coordinator"},
		{"shoal up --kv-", "--kv-memory", "--join"},
		{"shoal node --", "--join", "--nodes"},
		{"shoal up --nodes 3 --log-level ", "debug", "--nodes"},
		{"shoal completion ", "fish", "up"},
	} {
		cmd := exec.Command(bash, "-c", script+`
words=($1); [ "${1% }" = "$1" ] || words+=("")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]}-1)) COMP_LINE=$1
_shoal; printf '%s\n' "${COMPREPLY[@]}"`, "bash", c.line)
		out, err := cmd.CombinedOutput()
		got := strings.Fields(string(out))
		if err != nil || !strings.Contains(" "+strings.Join(got, " ")+" ", " "+c.want+" ") ||
			strings.Contains(" "+strings.Join(got, " ")+" ", " "+c.not+" ") {
			t.Errorf("%q completes to %v (%v), want %s and not %s", c.line, got, err, c.want, c.not)
		}
	}
	for _, shell := range []string{"zsh", "fish"} {
		if text := output(t, "completion", shell); !strings.Contains(text, "kv-memory") {
			t.Errorf("%s: %s", shell, text[:min(len(text), 300)])
		}
	}
}
