package cluster_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// copyOfFry returns a copy of the bundled model, and its weights.
func copyOfFry(t *testing.T) (dir, weights string, bytes []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "fry")
	if err := os.CopyFS(dir, os.DirFS("../../models/fry")); err != nil {
		t.Fatal(err)
	}
	weights = filepath.Join(dir, "model.safetensors")
	bytes, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	return dir, weights, bytes
}

// editTensor changes the first bytes of a tensor in a file.
func editTensor(t *testing.T, path, name string) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	start := 8 + int64(binary.LittleEndian.Uint64(whole))
	var tensors map[string]struct {
		Offsets []int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(whole[8:start], &tensors); err != nil || len(tensors[name].Offsets) != 2 {
		t.Fatalf("%s has no tensor %s: %v", path, name, err)
	}
	at := start + tensors[name].Offsets[0]
	data := whole[at : at+10000]
	for i := range data {
		data[i] ^= 0x21
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, at); errors.Join(err, f.Close()) != nil {
		t.Fatal(err)
	}
}

// TestModelFileChanges: truncating, overwriting or editing the model file of a running cluster ends no
// process and changes no token. While the content differs, the error names the file and the remedy.
// Once the content is restored, the cluster serves again.
func TestModelFileChanges(t *testing.T) {
	parallel(t)
	dir, path, whole := copyOfFry(t)
	c := up(t, 3, "--model", dir)
	pids := c.children()
	body := map[string]any{"prompt": "The sea is", "max_tokens": 30, "temperature": 0, "ignore_eos": true, "cache": false}
	text := func() string {
		t.Helper()
		var a struct{ Choices []struct{ Text string } }
		if err := json.Unmarshal(c.want(200, "POST", "/v1/completions", body).body, &a); err != nil {
			t.Fatal(err)
		}
		return a.Choices[0].Text
	}
	want := text()
	check := func(what string) {
		t.Helper()
		if got := text(); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		if left := alive(pids); len(left) != len(pids) {
			t.Fatalf("%s: processes %v of %v are left", what, left, pids)
		}
	}
	restore := func() {
		t.Helper()
		if err := os.WriteFile(path, whole, 0); err != nil {
			t.Fatal(err)
		}
		c.waitReady()
	}
	unhealthy := func(what string) {
		t.Helper()
		testutil.Eventually(t, patience, what, func() (bool, string) {
			a := c.call("GET", "/health", nil)
			return a.status == 503 && strings.Contains(string(a.body), path) &&
				strings.Contains(string(a.body), "put the old file back, or restart"), string(a.body)
		})
		if left := alive(pids); len(left) != len(pids) {
			t.Fatalf("%s: processes %v of %v are left", what, left, pids)
		}
	}

	// An accepted request waits until the file is back.
	if err := os.Truncate(path, 1_000_000); err != nil {
		t.Fatal(err)
	}
	waiting := c.open([]request{{"of a cut file", "/v1/completions",
		map[string]any{"prompt": "The sea is", "max_tokens": 30, "temperature": 0, "ignore_eos": true, "cache": false, "stream": true}}})
	unhealthy("cut")
	restore()
	if got, _ := waiting.wait(t); len(got) != 1 {
		t.Errorf("streams %v", got)
	}
	check("cut and back")

	for range 5 {
		done := make(chan error)
		go func() { done <- os.WriteFile(path, whole, 0) }()
		check("written over with the same bytes")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	c.waitReady()

	// Weights in memory and unchanged rows of the embedding remain usable; a new placement requires
	// the file.
	editTensor(t, path, "model.layers.3.mlp.down_proj.weight")
	check("edited, without a fault")
	c.waitIdle(patience)
	one := c.state().Nodes[0]
	c.signal(one.ID, syscall.SIGKILL)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == one.PID })
	unhealthy("edited, and a node is gone")
	restore()
	check("edited and back")

	// Changed rows are never read.
	editTensor(t, path, "model.embed_tokens.weight")
	all := make([]int, 64)
	for i := range all {
		all[i] = i
	}
	broken := c.open([]request{{"of changed rows", "/v1/completions",
		map[string]any{"prompt": all, "max_tokens": 3, "temperature": 0, "stream": true}}})
	unhealthy("rows of the embedding were edited")
	restore()
	broken.wait(t)
	check("rows back")

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	check("removed")
}

// TestNodeOfOtherWeights: a single changed row makes another model. Its node is refused with both
// model hashes.
func TestNodeOfOtherWeights(t *testing.T) {
	parallel(t)
	dir, path, _ := copyOfFry(t)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	editTensor(t, path, "model.layers.3.mlp.down_proj.weight")
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	c, gossip := coordinate(t, config{})
	join(t, "good", gossip, nil)
	c.waitReady()
	join(t, "other", gossip, nil, "--model", dir)
	testutil.Eventually(t, startLimit, "the other one is refused", func() (bool, string) {
		for _, n := range c.state().Nodes {
			if n.ID == "other" {
				return strings.HasPrefix(n.State, "refused: serves model ") && strings.Contains(n.State, "the cluster serves "), n.State
			}
		}
		return false, "not there"
	})
}
