package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/bench/serve"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// serveCommand returns lab serve for a server that answers some requests and then refuses all.
func serveCommand(t *testing.T, answers int64) (*benchServeCmd, *atomic.Int64) {
	t.Helper()
	asked := new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > answers {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\ndata: [DONE]\n\n")
	}))
	t.Cleanup(s.Close)
	c := &benchServeCmd{API: "completions", Name: "m", Arrival: "constant", Requests: 3, Lengths: "fixed:4:1", Groups: 1, PerWord: 1,
		Timeout: 10 * time.Second, Limit: time.Minute, JSON: true, Seed: 1}
	c.Server = s.URL
	return c, asked
}

// TestServeRefusesFirst: a wrong flag fails before a request is sent.
func TestServeRefusesFirst(t *testing.T) {
	for _, c := range []struct {
		set  func(c *benchServeCmd)
		want string
	}{
		{func(c *benchServeCmd) { c.Rate = []float64{100, 1e9} }, "--rate"},
		{func(c *benchServeCmd) { c.Plot = filepath.Join(t.TempDir(), "missing", "x.svg") }, "--plot"},
	} {
		cmd, asked := serveCommand(t, 1000)
		cmd.Rate = []float64{100}
		c.set(cmd)
		err := cmd.Run(&ui.Env{Ctx: t.Context(), Stdout: t.Output(), Stderr: t.Output()})
		if err == nil || !strings.Contains(err.Error(), c.want) || asked.Load() > 0 {
			t.Errorf("%v after %d requests; want an error of %s before the first", err, asked.Load(), c.want)
		}
	}
}

// TestServeKeepsResults: when a rate fails, the results of the rates before it are printed and plotted.
func TestServeKeepsResults(t *testing.T) {
	cmd, _ := serveCommand(t, 3)
	cmd.Rate, cmd.Plot = []float64{100, 200, 300}, filepath.Join(t.TempDir(), "x.svg")
	if err := os.WriteFile(cmd.Plot, []byte("the last plot"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := cmd.Run(&ui.Env{Ctx: t.Context(), Stdout: &out, Stderr: t.Output()})
	if err == nil || !strings.Contains(err.Error(), "200 per second") || !strings.Contains(err.Error(), "down") {
		t.Errorf("error %v", err)
	}
	var list []serve.Result
	if err := json.Unmarshal(out.Bytes(), &list); err != nil || len(list) != 1 || list[0].Rate != 100 || list[0].Summary.Completed != 3 {
		t.Errorf("%v, %+v of %q", err, list, out.String())
	}
	if plot, err := os.ReadFile(cmd.Plot); err != nil || !strings.HasPrefix(string(plot), "<svg") {
		t.Errorf("plot %.40q, %v", plot, err)
	}
}

// TestQuestionsRefuseFirst: lab jsonl refuses a wrong --out before it loads a model, and keeps an earlier file.
func TestQuestionsRefuseFirst(t *testing.T) {
	dir := t.TempDir()
	file, earlier := filepath.Join(dir, "q.jsonl"), filepath.Join(dir, "earlier")
	for _, name := range []string{file, earlier} {
		if err := os.WriteFile(name, []byte(`{"input":"q","outputs":["a"]}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ out, want string }{
		{filepath.Join(dir, "missing", "out"), "--out"}, {earlier, "nowhere"}, {filepath.Join(dir, "new"), "nowhere"},
	} {
		cmd := evalJSONLCmd{File: file, Metric: "contains", Out: c.out}
		cmd.Model = filepath.Join(dir, "nowhere")
		err := cmd.Run(&ui.Env{Ctx: t.Context(), Stdout: t.Output(), Stderr: t.Output()})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.out, err, c.want)
		}
	}
	if text, err := os.ReadFile(earlier); err != nil || len(text) == 0 {
		t.Errorf("the earlier file is %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file without answers was left")
	}
}
