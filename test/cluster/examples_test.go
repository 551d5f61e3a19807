package cluster_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestExamples builds the programs of examples/ and runs each: alone, or with a server.
func TestExamples(t *testing.T) {
	parallel(t)
	bin := t.TempDir()
	sources := filepath.Join("..", "..")
	build := exec.Command("go", "build", "-o", bin+string(filepath.Separator), "./examples/...")
	build.Dir = sources
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := func(t *testing.T, name string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
		c.Dir, c.Env = sources, cleanEnv()
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	t.Run("embedding", func(t *testing.T) {
		one := run(t, "embedding", "-sockets", "1", "func add(a, b int) int {")
		if three := run(t, "embedding", "-sockets", "3", "func add(a, b int) int {"); one != three || !strings.Contains(one, "return a + b") {
			t.Errorf("with one socket %q, with three %q", one, three)
		}
	})
	t.Run("policies", func(t *testing.T) {
		out := run(t, "policies")
		bytes := map[string]int{}
		for _, m := range regexp.MustCompile(`(?m)^(\w+)\S* +(\d+) bytes of cache: ".+"$`).FindAllStringSubmatch(out, -1) {
			n, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			bytes[m[1]] = n
		}
		if s, w := bytes["streaming"], bytes["snapstream"]; len(bytes) != 3 || s == 0 || s >= w || w >= bytes["full"] {
			t.Errorf("want fewer bytes under streaming than under snapstream than under full:\n%s", out)
		}
	})
	t.Run("jobs", func(t *testing.T) {
		s := start(t, config{nodes: 1, args: []string{"--data-dir", t.TempDir()}})
		args := []string{"-server", s.base, "-key", "report-1", "-tokens", "16", "Once upon a time"}
		first, second := run(t, "jobs", args...), run(t, "jobs", args...)
		id := func(out string) string { name, _, _ := strings.Cut(out, " "); return name }
		if id(first) != id(second) || !strings.Contains(first, "\nresult: ") {
			t.Errorf("one key gives two jobs, or no result:\n%s\n%s", first, second)
		}
	})
}
