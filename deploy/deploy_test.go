// Package deploy_test checks what installs and runs Shoal, as far as possible without the target
// machines.
package deploy_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/testlevel"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// systemd accepts the units, and rates the exposure of their processes as low.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze here")
	}
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatalf("%v: %v", units, err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "shoal") // systemd checks that it is executable
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		text := read(t, u)
		if !strings.Contains(text, "ExecStart=/usr/bin/shoal ") {
			t.Errorf("%s does not start /usr/bin/shoal", u)
		}
		at := filepath.Join(dir, filepath.Base(u))
		text = strings.ReplaceAll(text, "/usr/bin/shoal ", program+" ")
		text = strings.ReplaceAll(text, "Documentation=man:shoal(1)\n", "") // the man page is not installed here
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"verify", "--man=no", at}, {"security", "--offline=true", "--threshold=30", "--no-pager", at}} {
			out, err := exec.Command(analyze, args...).CombinedOutput()
			if args[0] == "verify" && strings.Contains(string(out), at+":") {
				t.Errorf("systemd-analyze %v: %s", args, out)
			} else if err != nil {
				t.Errorf("systemd-analyze %v: %v\n%s", args, err, out)
			}
		}
	}
}

var metricName = regexp.MustCompile(`\b(?:shoal_|vllm:)[a-z0-9_:]+`)

// Dashboard and alerts use existing metrics.
func TestMetricsExist(t *testing.T) {
	known := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`"(?:shoal_|vllm:)[a-z0-9_:]+"`).FindAllString(string(text), -1) {
			known[strings.Trim(m, `"`)] = true
		}
		return err
	})
	if err != nil || len(known) < 30 {
		t.Fatalf("%d metrics found: %v", len(known), err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "monitoring/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	var ids []int
	asked := map[string]string{"alerts.yaml": read(t, "monitoring/alerts.yaml")}
	for _, p := range dashboard.Panels {
		ids = append(ids, p.ID)
		for _, target := range p.Targets {
			asked[p.Title] += " " + target.Expr
		}
	}
	if slices.Sort(ids); len(ids) < 10 || len(slices.Compact(ids)) != len(dashboard.Panels) {
		t.Errorf("panels %v: want each number once", ids)
	}
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	for where, text := range asked {
		names := metricName.FindAllString(text, -1)
		if len(names) == 0 {
			t.Errorf("%s asks for no metric", where)
		}
		for _, name := range names {
			if !known[name] && !known[suffix.ReplaceAllString(name, "")] {
				t.Errorf("%s asks for %s, which no server has", where, name)
			}
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		for _, args := range [][]string{{"check", "rules", "monitoring/alerts.yaml"}, {"test", "rules", "monitoring/alerts_test.yaml"}} {
			if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
				t.Errorf("promtool %v: %v\n%s", args, err, out)
			}
		}
	}
}

// The image and the package name existing files of this tree, and of the archive that they unpack.
func TestNamedFilesExist(t *testing.T) {
	for _, from := range []string{"deb/nfpm.yaml", "docker/Dockerfile", "docker/compose.yaml", "deb/build"} {
		for _, name := range regexp.MustCompile(`\bdeploy/[a-zA-Z0-9_./-]*[a-zA-Z0-9_]`).FindAllString(read(t, from), -1) {
			if _, err := os.Stat(filepath.Join("..", name)); err != nil {
				t.Errorf("%s names %s: %v", from, name, err)
			}
		}
	}
}

// The package unpacks to a program that answers with the bundled model, and contains its units, man
// page, completion and file of flags.
func TestDeb(t *testing.T) {
	testlevel.NeedFull(t)
	out, root := t.TempDir(), t.TempDir()
	if text, err := exec.Command("bash", "deb/build", runtime.GOARCH, out).CombinedOutput(); err != nil {
		t.Fatalf("deb/build: %v\n%s", err, text)
	}
	debs, err := filepath.Glob(filepath.Join(out, "shoal_*.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("%v: %v", debs, err)
	}
	if text, err := exec.Command("dpkg-deb", "--extract", debs[0], root).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, text)
	}
	for _, name := range []string{"usr/lib/systemd/system/shoal.service", "usr/lib/systemd/system/shoal-node.service",
		"usr/lib/systemd/system/shoal-coordinator.service",
		"usr/share/man/man1/shoal.1", "usr/share/bash-completion/completions/shoal", "etc/shoal/shoal.yaml", "usr/share/doc/shoal/copyright"} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	demo := exec.Command(filepath.Join(root, "usr/bin/shoal"), "demo", "--nodes", "2", "--tokens", "8", "--prompt", "What is a slice?")
	demo.Dir = t.TempDir()
	if text, err := demo.CombinedOutput(); err != nil || !strings.Contains(string(text), "tokens/s") {
		t.Errorf("its demo: %v\n%s", err, text)
	}
}
