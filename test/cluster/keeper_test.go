package cluster_test

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKeeperLost: one of the three processes whose NATS servers keep the store is
// killed with jobs in flight, and its copy is damaged before it comes back. The
// jobs end as in the undisturbed run, and three copies are in step again.
func TestKeeperLost(t *testing.T) {
	if testing.Short() {
		t.Skip("forms a replicated store, some ten seconds")
	}
	beside(t)
	p := &pair{t: t, dirs: [2]string{t.TempDir()}, gossip: [2]string{freePort(t)}}
	at := &parts{t: t, httpClient: newHTTPClient(t, "http://"+freePort(t), "")}
	p.at = [2]*parts{at, at}
	p.start(0, false)
	p.runs[0].line(t, p.runs[0].err, listens, startLimit)
	dirs := []string{t.TempDir(), t.TempDir()}
	var nodes [2]*process
	begin := func(i, run int) {
		nodes[i] = spawn(t, built.shoal(t, ""), fmt.Sprintf("n%d-%d", i, run), nil, "node", "--join", p.gossip[0], "--id", fmt.Sprintf("n%d", i), "--threads", "1", "--data-dir", dirs[i])
	}
	begin(0, 0)
	begin(1, 0)
	p.serves(0, startLimit)
	p.copies(0)
	r := rand.New(rand.NewPCG(8, 8))
	var reqs []request
	for i := range 3 {
		reqs = append(reqs, request{fmt.Sprintf("job %d", i), "/v1/completions",
			map[string]any{"prompt": ids(r, 20+30*i), "max_tokens": 200, "ignore_eos": true, "temperature": float64(i%2) * 0.8, "seed": i}})
	}
	want := at.send(t, reqs, len(reqs))
	jobs := p.jobs(0, "kept", reqs)
	p.begun(0, jobs)
	nodes[1].kill(t)
	p.check(0, "kept", reqs, want, jobs)
	later := p.jobs(0, "meanwhile", reqs) // accepted by the two that are left
	if n := damage(t, dirs[1]); n == 0 {
		t.Fatal("no file of the copy was found to be damaged")
	}
	begin(1, 1)
	p.copies(0)
	p.check(0, "meanwhile", reqs, want, later)
	p.check(0, "kept", reqs, want, jobs)
}

// damage overwrites the middle of every file of messages of a copy of the store, and
// says how many there were.
func damage(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".blk") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil || len(b) < 64 {
			return err
		}
		for i := len(b) / 3; i < 2*len(b)/3; i++ {
			b[i] ^= 0x5a
		}
		n++
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
