package hub

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/hub/hubtest"
	"github.com/shoal-llm/shoal/internal/hub/layout"
	"github.com/shoal-llm/shoal/internal/testlevel"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// child runs in a process that is killed: a pull from the hub of its parent.
func child() bool {
	text := os.Getenv("HUB_TEST_PULL")
	if text == "" {
		return false
	}
	s, err := FromEnv(os.Getenv, filepath.Dir(os.Getenv("HF_HUB_CACHE")))
	if err == nil {
		var r Ref
		if r, err = Parse(text); err == nil {
			st := Open(s)
			st.chunk = chunk
			_, err = st.Pull(context.Background(), r, nil)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// TestKilledPulls kills a process that pulls at random moments, and pulls again. A file with its final name
// is right at every moment, and all files are in the end.
func TestKilledPulls(t *testing.T) {
	kills := 5
	if testlevel.Long() {
		kills = 50
	}
	repo := weights(map[string][]byte{
		"model-00001-of-00002.safetensors": content(1, 3<<20), "model-00002-of-00002.safetensors": content(2, 2<<20),
		indexFile: []byte(`{"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`),
	})
	h := start(t, map[string]*hubtest.Repo{"org/one": repo})
	h.Lock()
	h.CDNFault = func(*http.Request, int) hubtest.Fault { return hubtest.Fault{Rate: 2 << 20} }
	h.Unlock()
	s := at(t, h)
	cache := repoCache{s.s.Cache, "org/one"}
	pull := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HUB_TEST_PULL=org/one", "HF_ENDPOINT="+h.URL, "HF_HUB_CACHE="+s.s.Cache)
		cmd.Stderr = &bytes.Buffer{}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	var killed, resumed int
	var most int64
	for killed < kills {
		// from the start again, now and then
		if blobs, _ := filepath.Glob(filepath.Join(cache.dir(), layout.Blobs, "*")); len(blobs) > 0 && rand.N(12) == 0 {
			os.RemoveAll(cache.dir())
		}
		cmd := pull()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("a pull that was not killed: %v: %s", err, cmd.Stderr)
			}
			os.RemoveAll(cache.dir()) // it was too fast
		case <-time.After(time.Duration(20+rand.N(400)) * time.Millisecond):
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-ended
			killed++
		}
		blobs, _ := filepath.Glob(filepath.Join(cache.dir(), layout.Blobs, "*"))
		for _, b := range blobs {
			if name := filepath.Base(b); !strings.HasSuffix(name, incomplete) {
				if err := CheckFile(b, Digest(name), nil); err != nil {
					t.Errorf("after kill %d: %v", killed, err)
				}
			} else if st, err := os.Stat(b); err == nil && st.Size() > 0 {
				resumed++
				most = max(most, st.Size())
			}
		}
		if m, err := s.Find(parsed(t, "org/one")); err == nil {
			same(t, m, repo, "config.json", "tokenizer.json", indexFile, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
		}
	}
	h.Lock()
	h.CDNFault = nil
	h.Unlock()
	if cmd := pull(); cmd.Wait() != nil {
		t.Fatalf("the last pull: %s", cmd.Stderr)
	}
	m, err := s.Find(parsed(t, "org/one"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, m, repo, "config.json", "tokenizer.json", indexFile, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
	if left, _ := filepath.Glob(filepath.Join(cache.dir(), layout.Blobs, "*"+incomplete)); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
	t.Logf("%d kills left %d parts, the largest of %d bytes", killed, resumed, most)
	if testlevel.Long() && resumed == 0 {
		t.Error("no kill left a part to continue")
	}
}

// TestWaiterTakesOver: a process that waits for another one's download continues it when that
// process is killed, from the bytes that are there.
func TestWaiterTakesOver(t *testing.T) {
	repo := weights(map[string][]byte{"model.safetensors": content(1, 4<<20)})
	h := start(t, map[string]*hubtest.Repo{"org/one": repo})
	h.Lock()
	h.CDNFault = func(*http.Request, int) hubtest.Fault { return hubtest.Fault{Rate: 400 << 10} }
	h.Unlock()
	s := at(t, h)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HUB_TEST_PULL=org/one", "HF_ENDPOINT="+h.URL, "HF_HUB_CACHE="+s.s.Cache)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	part := repoCache{s.s.Cache, "org/one"}.blob(hubtest.SHA256(repo.Files["model.safetensors"])) + incomplete
	testutil.Eventually(t, time.Minute, "a part that the first process fetches", func() (bool, string) {
		st, err := os.Stat(part)
		return err == nil && st.Size() >= 200<<10, fmt.Sprint(err)
	})
	killed := false
	m, err := s.Pull(t.Context(), parsed(t, "org/one"), func(p Progress) {
		if strings.Contains(p.Waiting, "another process") && !killed {
			killed = true
			cmd.Process.Kill()
			h.Lock()
			h.CDNFault = nil
			h.Unlock()
		}
	})
	if err != nil || !killed {
		t.Fatalf("%v; the other process was killed: %v", err, killed)
	}
	same(t, m, repo, "config.json", "tokenizer.json", "model.safetensors")
	begins := 0
	for _, l := range h.Log() {
		if strings.HasSuffix(l, fmt.Sprintf("bytes=0-%d", chunk-1)) {
			begins++
		}
	}
	if begins != 1 {
		t.Errorf("the first bytes were fetched %d times", begins)
	}
}
