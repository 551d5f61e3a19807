package web_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
)

// cluster is `shoal up` as a user runs it.
type cluster struct {
	t   *testing.T
	url string
	key string // of the API; "": none
}

// start builds the program and starts it on a free port with a new data directory.
func start(t *testing.T, args ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "shoal")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/shoal-llm/shoal/cmd/shoal").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(bin, append([]string{"up", "--listen", "127.0.0.1:0", "--data-dir",
		filepath.Join(dir, "data"), "--kv-memory", "96MiB", "--log-level", "error"}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+dir, "XDG_CACHE_HOME="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case lines <- s.Text():
			default: // no reader is left
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case <-done:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Error("the cluster did not end")
		}
	})
	c := &cluster{t: t}
	for end := time.After(patience); c.url == ""; {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatal("the cluster ended")
			}
			if _, at, ready := strings.Cut(line, "API at "); ready {
				c.url = strings.TrimSuffix(at, "/v1")
			}
		case <-end:
			t.Fatal("the cluster is not ready")
		}
	}
	return c
}

// get decodes the answer of a route.
func (c *cluster) get(path string, v any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.url+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := (&http.Client{Timeout: patience}).Do(req)
	if err == nil {
		defer resp.Body.Close()
		err = json.NewDecoder(resp.Body).Decode(v)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// kill kills a node like kill -9.
func (c *cluster) kill(id string) {
	c.t.Helper()
	var s wire.ClusterState
	c.get("/v1/cluster", &s)
	for _, n := range s.Nodes {
		if n.ID == id {
			if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
				c.t.Fatal(err)
			}
			return
		}
	}
	c.t.Fatalf("there is no %s", id)
}

// load keeps the cluster busy with streams under different policies until the test ends; there are
// more of them for a picture.
func (c *cluster) load() {
	policies := []string{"full"}
	if *pictures != "" {
		policies = []string{"full", "snapkv", "streaming", "full", "h2o", "snapstream", "full", "tova", "quest", "streaming", "full", "knorm"}
	}
	for i, policy := range policies {
		body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true,"seed":%d,"kv_policy":%q}`, strings.Repeat("// Package sort provides order. ", 2+25*(i%5)), 4000-600*(i%4), i, policy)
		ctx, url, key := c.t.Context(), c.url, c.key
		go func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
				if err != nil {
					return
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Authorization", "Bearer "+key)
				if resp, err := http.DefaultClient.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				time.Sleep(100 * time.Millisecond) // it ended, or was refused between two epochs
			}
		}()
	}
}
