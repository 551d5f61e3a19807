package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/hub/hubtest"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// isolateCaches gives the test its own caches, and a hub that does not answer. It returns the folder
// of the caches.
func isolateCaches(t *testing.T) string {
	dir := t.TempDir()
	for name, v := range map[string]string{"XDG_CACHE_HOME": dir, "HF_HOME": "", "HF_HUB_CACHE": "",
		"HF_TOKEN": "", "HF_TOKEN_PATH": filepath.Join(dir, "none"), "HF_HUB_OFFLINE": "",
		"SHOAL_MODELS": "", "OLLAMA_MODELS": filepath.Join(dir, "ollama"), "HF_ENDPOINT": "http://127.0.0.1:1"} {
		t.Setenv(name, v)
	}
	return dir
}

// hubOf starts a hub that serves folders as org/NAME.
func hubOf(t *testing.T, dirs ...string) *hubtest.Hub {
	t.Helper()
	h := hubtest.Start()
	t.Cleanup(h.Close)
	for _, dir := range dirs {
		repo := &hubtest.Repo{Files: map[string][]byte{}, LFS: map[string]bool{}}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			repo.Files[f.Name()], repo.LFS[f.Name()] = b, filepath.Ext(f.Name()) == ".safetensors"
		}
		h.Repos["org/"+filepath.Base(dir)] = repo
	}
	t.Setenv("HF_ENDPOINT", h.URL)
	return h
}

// shoal runs a command line in this process.
func shoal(t *testing.T, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(ui.Env{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, args)
	return status, out.String(), errs.String()
}

// TestPullAndUse pulls, lists and verifies a model, finds it by every form of its name, damages it, and
// removes it.
func TestPullAndUse(t *testing.T) {
	isolateCaches(t)
	h := hubOf(t, "../../models/fry")
	if status, _, stderr := shoal(t, "tokenize", "-m", "org/none", "x"); status != 1 ||
		!strings.Contains(stderr, "has no repository org/none") {
		t.Errorf("a model that the hub does not have: %d, %s", status, stderr)
	}
	status, stdout, stderr := shoal(t, "pull", "org/fry")
	if status != 0 || !strings.HasPrefix(stdout, "org/fry, 30.3 MiB, is in ") {
		t.Fatalf("pull: %d, %s%s", status, stdout, stderr)
	}
	path := strings.TrimSpace(strings.TrimPrefix(stdout, "org/fry, 30.3 MiB, is in "))
	n := len(h.Log())
	t.Setenv("HF_HUB_OFFLINE", "1")
	for _, word := range []string{"org/fry", "hf://org/fry", path, path + "/", filepath.Dir(filepath.Dir(path)),
		filepath.Join(path, "model.safetensors"), "models--org--fry"} {
		dir, err := models.FindModel(ui.Quiet(t.Context()), word)
		if err != nil || dir != path || layout.NameOf(dir) != "org/fry" {
			t.Errorf("%s is %s, %v; want %s", word, dir, err, path)
		}
		if status, stdout, stderr := shoal(t, "tokenize", "-m", word, "hello"); status != 0 || !strings.Contains(stdout, "tokens") {
			t.Errorf("tokenize -m %s: %d, %s%s", word, status, stdout, stderr)
		}
	}
	if len(h.Log()) != n {
		t.Errorf("a model on disk caused requests to the hub: %q", h.Log()[n:])
	}
	status, stdout, stderr = shoal(t, "models", "--json")
	var list []models.ListedModel
	if err := json.Unmarshal([]byte(stdout), &list); status != 0 || err != nil || len(list) != 1 {
		t.Fatalf("models: %d, %v, %s%s", status, err, stdout, stderr)
	}
	m := list[0]
	if m.Name != "org/fry" || m.Path != path || m.Format != "safetensors" ||
		m.Stored != "f32" && m.Stored != "bf16" || m.Problem != "" || len(m.Needs) != len(models.Quants) {
		t.Errorf("the list has %+v", m)
	}
	for i, need := range m.Needs {
		if need.NodeBytes < 10<<20 || need.Rate <= 0 || i > 0 && (need.NodeBytes >= m.Needs[i-1].NodeBytes) {
			t.Errorf("%s needs %+v", need.Quant, need)
		}
	}
	if status, stdout, _ := shoal(t, "models"); status != 0 || !regexp.MustCompile(`(?m)^org/fry +safetensors +\w+ +30\.3 MiB .* MiB, .*/s .*`+path).MatchString(stdout) {
		t.Errorf("models: %d\n%s", status, stdout)
	}
	if status, stdout, stderr := shoal(t, "verify", "org/fry"); status != 0 ||
		!strings.Contains(stdout, "5 files, 30.3 MiB: all bytes match the checksums of the hub") {
		t.Errorf("verify: %d, %s%s", status, stdout, stderr)
	}
	blob, err := filepath.EvalSymlinks(filepath.Join(path, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(blob)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1 // the weight stays finite
	if err := os.WriteFile(blob, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := shoal(t, "verify", "org/fry"); status != 1 || !strings.Contains(stderr, "its SHA-256 is not") {
		t.Errorf("verify of a flipped bit: %d, %s", status, stderr)
	}
	if status, stdout, stderr := shoal(t, "models", "rm", "org/fry"); status != 0 ||
		!strings.Contains(stdout, "org/fry is removed: 30.3 MiB are free") {
		t.Errorf("rm: %d, %s%s", status, stdout, stderr)
	}
	if status, stdout, _ := shoal(t, "models"); status != 0 || !strings.HasPrefix(stdout, "no models in ") {
		t.Errorf("models after rm: %d, %s", status, stdout)
	}
	for _, args := range [][]string{{"verify", "org/fry"}, {"models", "rm", "org/fry"}} {
		if status, _, stderr := shoal(t, args...); status != 1 || !strings.Contains(stderr, "not on this machine") {
			t.Errorf("%q: %d, %s", args, status, stderr)
		}
	}
	if status, _, stderr := shoal(t, "up", "-m", "org/fry"); status != 1 || !strings.Contains(stderr, "HF_HUB_OFFLINE is set") {
		t.Errorf("up offline: %d, %s", status, stderr)
	}
	t.Setenv("HF_HUB_OFFLINE", "")
	if dir, err := models.FindModel(ui.Quiet(t.Context()), "org/fry"); err != nil || dir != path {
		t.Errorf("a missing model is not pulled: %s, %v", dir, err)
	}
}

func TestFindModel(t *testing.T) {
	isolateCaches(t)
	e := ui.Quiet(t.Context())
	for word, want := range map[string]string{"fry": "fry", "fry-tools": "fry-tools", "../../models/fry": "fry",
		"../../models/fry/": "fry", "random:llama-3.2-1b": "random:llama-3.2-1b"} {
		if dir, err := models.FindModel(e, word); err != nil || layout.NameOf(dir) != want {
			t.Errorf("%s is %s, %v; want %s", word, dir, err, want)
		}
	}
	for word, want := range map[string]string{"llama3": "ollama://llama3", "org/a--b": "org/name@revision", "s3://x": "is not known"} {
		if dir, err := models.FindModel(e, word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %s, %v; want an error with %q", word, dir, err, want)
		}
	}
	for _, args := range [][]string{{"pull", "fry"}, {"pull", "../../models/fry"}} {
		if status, _, stderr := shoal(t, args...); status != 1 || !strings.Contains(stderr, "nothing to pull") {
			t.Errorf("%q: %d, %s", args, status, stderr)
		}
	}
}

// TestPullAdapter checks that an adapter of a hub pulls its base, and keeps its own name.
func TestPullAdapter(t *testing.T) {
	isolateCaches(t)
	h := hubOf(t, "../../models/fry", "../../models/fry-tools")
	config := h.Repos["org/fry-tools"].Files
	config["adapter_config.json"] = bytes.ReplaceAll(config["adapter_config.json"], []byte(`"../fry"`), []byte(`"org/fry"`))
	if !bytes.Contains(config["adapter_config.json"], []byte("org/fry")) {
		t.Fatalf("the adapter names another base: %s", config["adapter_config.json"])
	}
	dir, err := models.FindModel(ui.Quiet(t.Context()), "org/fry-tools")
	if err != nil || layout.NameOf(dir) != "org/fry-tools" || !ui.Exists(filepath.Join(dir, "config.json")) {
		t.Errorf("%s, %v", dir, err)
	}
	if dir, err := models.FindModel(ui.Quiet(t.Context()), "org/fry"); err != nil || layout.NameOf(dir) != "org/fry" {
		t.Errorf("the base: %s, %v", dir, err)
	}
}

// TestPlanFetchesTheConfigAlone checks that a plan downloads no weights.
func TestPlanFetchesTheConfigAlone(t *testing.T) {
	isolateCaches(t)
	h := hubOf(t, "../../models/fry")
	if status, stdout, stderr := shoal(t, "plan", "-m", "org/fry", "--nodes", "2", "--memory", "1GB"); status != 0 ||
		!strings.Contains(stdout, "org/fry") {
		t.Errorf("%d, %s%s", status, stdout, stderr)
	}
	for _, l := range h.Log() {
		if strings.Contains(l, "safetensors") {
			t.Errorf("a plan fetched weights: %s", l)
		}
	}
	if status, stdout, _ := shoal(t, "models"); status != 0 || !strings.Contains(stdout, "no weights") {
		t.Errorf("models: %d, %s", status, stdout)
	}
}

func TestFindDraft(t *testing.T) {
	isolateCaches(t)
	hubOf(t, "../../models/fry")
	for word, want := range map[string]string{"": "", "mtp": "mtp", "org/fry": "org/fry", "fry": "fry"} {
		if at, err := models.FindDraft(ui.Quiet(t.Context()), word); err != nil || want == "" && at != "" ||
			want != "" && layout.NameOf(at) != want {
			t.Errorf("%q is %s, %v; want %s", word, at, err, want)
		}
	}
	if _, err := models.FindDraft(ui.Quiet(t.Context()), "org/none"); err == nil || !strings.HasPrefix(err.Error(), "--draft: ") {
		t.Errorf("%v", err)
	}
}

// TestWrongFlagsPullNothing checks that wrong flags are refused before a pull.
// An empty name is often a variable of a script that is not set. It does not mean the working directory.
func TestPullOfAnEmptyName(t *testing.T) {
	isolateCaches(t)
	for _, args := range [][]string{{"pull", ""}, {"models", "rm", ""}} {
		if status, _, stderr := shoal(t, args...); status != 1 || !strings.Contains(stderr, "the name is empty") {
			t.Errorf("%q: %d, %s", args, status, stderr)
		}
	}
}

func TestWrongFlagsPullNothing(t *testing.T) {
	isolateCaches(t)
	h := hubOf(t, "../../models/fry")
	for _, args := range [][]string{
		{"up", "-m", "org/fry", "--listen", "nonsense"},
		{"coordinator", "-m", "org/fry", "--listen", "nonsense"},
		{"node", "-m", "org/fry", "--join", "127.0.0.1:1"},
		{"node", "-m", "org/fry", "--join", "127.0.0.1:1", "--threads=-1"},
	} {
		before := len(h.Log())
		if status, _, stderr := shoal(t, args...); status != 1 || len(h.Log()) > before {
			t.Errorf("%q: %d, %s; %d requests", args, status, stderr, len(h.Log())-before)
		}
	}
}
