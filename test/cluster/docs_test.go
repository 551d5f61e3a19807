package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// notRun lists the boxes of README.md and docs whose commands TestDocs does not run, by page and
// first words, with the reason.
var notRun = map[string]map[string]string{
	"docs/accuracy.md": {
		"shoal lab ruler        ":             "minutes to hours each; tests of eval run all of these on a few tasks",
		"shoal lab ruler --together -l 4096":  "an hour",
		"train/accuracy.sh shoal":             "an hour, and PyTorch",
		"shoal lab ruler -m models/dace":      "an hour, and PyTorch",
		"shoal lab table snapstream --server": "a server with a large model, and published files",
	},
	"docs/caches.md": {"P=snapstream": "minutes each, on a machine with nothing else to do"},
	"docs/embeddings.md": {
		"shoal up --model Qwen/Qwen3-Embedding": "a model of the hub; cluster TestEmbeddings requests vectors",
		"shoal up --model Qwen/Qwen3-Reranker":  "a model of the hub; cluster TestRerank reranks",
	},
	"docs/gpu.md": {
		"shoal gpu ":        "a graphics card; actors/socket TestCard has one, or one that is emulated",
		"docker run --gpus": "a Docker engine and a graphics card",
	},
	"docs/lora.md": {
		"shoal up -m org/base":             "models of a hub that do not exist; cluster TestAdaptersAPI has some",
		"curl localhost:8080/v1/load_lora": "an adapter that does not exist",
	},
	"docs/install.md": {
		"tar xf":                        "deploy/release TestArchiveWorksByItself does it",
		"go install":                    "compiles everything again; deploy/release TestGoInstall does it",
		"make deb":                      "root, and changes the machine; make bare does it in a Debian of its own",
		"docker build":                  "a Docker engine",
		"kubectl create secret generic": "a Kubernetes cluster",
	},
	"docs/jobs.md": {
		"shoal coordinator --bind 10": "three machines; TestStandby has them on one",
		"shoal store list":            "three machines; TestStoreMemberIsReplaced has them on one",
	},
	"README.md": {
		"shoal pull":         "downloads a model; internal/hub tests it against a hub of its own",
		"curl http":          "of the model that was not downloaded; docs/api.md has the same request",
		"shoal up -m Qwen/Q": "several machines; the tutorial has them on one",
	},
	"docs/machines.md": {
		"export SHOAL_API_KEY":     "several machines; the tutorial has them on one",
		"shoal node --id m2":       "several machines; the tutorial has them on one",
		"shoal status --server 10": "several machines; the tutorial has them on one",
		"shoal up --nodes 2 --clu": "PORT is a reader's; the tutorial joins nodes",
	},
	"docs/pull.md": {"shoal pull Qwen": "a hub on the network; TestRealModel has one of its own"},
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// box is a code block of a page.
type box struct{ kind, text string }

// boxes returns the code blocks of a page that contain commands or Go programs.
func boxes(t *testing.T, page string) (out []box) {
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllSubmatch(text, -1) {
		b := box{string(m[1]), string(m[2])}
		if b.kind == "" || b.kind == "sh" || b.kind == "go" && strings.HasPrefix(b.text, "package main") {
			out = append(out, b)
		}
	}
	return out
}

// TestDocs runs the code blocks of README.md and docs unchanged, each page in a separate shell, on
// free ports: commands, and complete Go programs. Pages that start no cluster use a shared one.
// Output that is shown is not compared.
func TestDocs(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	parallel(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 15 {
		t.Fatalf("%v: %v", pages, err)
	}
	shared := start(t, config{nodes: 2, args: []string{"--data-dir", t.TempDir()}})
	t.Run("http.md", func(t *testing.T) {
		want, stderr, code := command(t, patience, nil, "man", "--http", "--server", shared.base)
		if got, err := os.ReadFile("../../docs/http.md"); err != nil || code != 0 || string(got) != want {
			t.Errorf("docs/http.md differs from the routes of the server (%v %s); with `shoal up` running: go run ./cmd/shoal man --http > docs/http.md", err, stderr)
		}
	})
	for _, page := range append([]string{"../../README.md"}, pages...) {
		page = strings.TrimPrefix(filepath.ToSlash(page), "../../")
		if page == "docs/reference.md" { // examples from --help, with placeholder paths
			continue
		}
		if !full() && (page == "README.md" || page == "docs/install.md") { // they build the program from scratch
			continue
		}
		run, script, unused := 0, "", maps.Clone(notRun[page])
		for i, b := range boxes(t, page) {
			why := ""
			for begin := range notRun[page] {
				if strings.HasPrefix(b.text, begin) {
					why = begin
				}
			}
			switch {
			case why != "":
				delete(unused, why)
			case b.kind == "go":
				script += fmt.Sprintf("cat > program%d.go <<'END'\n%sEND\ngo run \"$PWD/program%d.go\"\n", i, b.text, i)
				run++
			default:
				script += b.text
				run++
			}
		}
		for begin := range unused {
			t.Errorf("%s has no box that begins with %q", page, begin)
		}
		if run == 0 {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			api := freePort(t)
			if !strings.Contains(script, "shoal up") {
				api = strings.TrimPrefix(shared.base, "http://")
			}
			script = strings.NewReplacer("127.0.0.1:7070", freePort(t), "127.0.0.1:8080", api, "localhost:8080", api).Replace(script)
			out := runPage(t, bash, api, script)
			for _, want := range map[string][]string{
				"docs/tutorial.md": {"\nthe same\n", "node-1", "m2 is drained"},
				"docs/client.md":   {"404 node_not_found", "node-1 is ready with 50% of the weights"},
				"README.md":        {"processes up", "tokens/s"},
				"docs/jobs.md":     {`"state":"completed"`},
			}[page] {
				if !strings.Contains(out, want) {
					t.Errorf("%s: no %q in what it prints:\n%s", page, want, out)
				}
			}
		})
	}
}

// runPage runs the commands of a page in an empty folder with the bundled models; `go` runs in the
// source tree. It kills the processes that the page leaves running.
func runPage(t *testing.T, bash, api, script string) string {
	t.Helper()
	sources, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), filepath.Dir(built.shoal(t, ""))
	for _, name := range []string{"models", "LICENSE"} {
		if err := os.Symlink(filepath.Join(sources, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, bash, "-c", `set -euxo pipefail
curl() { command curl --fail-with-body -sS "$@"; }
go() {
  if [ "${1-} ${2-} ${3-}" = "build -o bin/" ]; then
    command go -C "$SOURCES" build -o "$PWD/bin/" "${@:4}"
  else
    command go -C "$SOURCES" "$@"
  fi
}
`+script)
	c.Dir = dir
	caches, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache, modules, _ := strings.Cut(strings.TrimSpace(string(caches)), "\n")
	c.Env = append(cleanEnv(), "HOME="+dir, "GOCACHE="+cache, "GOMODCACHE="+modules, "SOURCES="+sources,
		"PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"), "XDG_STATE_HOME="+dir, "SHOAL_LISTEN="+api, "SHOAL_SERVER="+api)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to kill background processes too
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	out, err := c.CombinedOutput()
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	if err != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
		for _, name := range slices.Sorted(slices.Values(logs)) {
			out = fmt.Appendf(out, "\n--- %s:\n%s", filepath.Base(name), tail(name))
		}
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
