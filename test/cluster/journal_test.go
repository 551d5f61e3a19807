package cluster_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/collective/natsbus"
	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// journals returns the records in the data directory of a stopped coordinator, by job.
func journals(t testing.TB, dir string) map[string][]entry {
	t.Helper()
	ns, err := natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true,
		StoreDir: filepath.Join(dir, "jetstream"), StoreBytes: 2 << 30, SyncAlways: true})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Shutdown()
	nc, err := ns.Connect("auditor")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	log, err := journal.OpenJetStream(ctx, nc, jobs.StoreBytes, 1)
	if err != nil {
		nc.Close()
		t.Fatal(err)
	}
	defer log.Close()
	out := map[string][]entry{}
	err = log.Scan(ctx, func(name string, _ uint64, b []byte) error {
		if len(b) > 16 && string(b[:4]) == "SHJ1" { // the magic of internal/jobs/journal/record.go
			out[name] = append(out[name], entry{int(b[4]), int(binary.LittleEndian.Uint32(b[12:]))})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// recorded waits until last.json has the number of jobs, which the coordinator writes once a second.
func (p *processCluster) recorded(jobs int) {
	p.t.Helper()
	testutil.Eventually(p.t, patience, fmt.Sprintf("last.json has %d jobs", jobs), func() (bool, string) {
		b, err := os.ReadFile(filepath.Join(p.data, "last.json"))
		var m struct{ Jobs int }
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		return err == nil && m.Jobs == jobs, fmt.Sprintf("%s %v", b, err)
	})
}

// TestLostJobsShowInHealth: the journals of all jobs are overwritten while the coordinator is down.
// It serves afterwards, and /health reports that jobs are lost.
func TestLostJobsShowInHealth(t *testing.T) {
	parallel(t)
	p := startProcesses(t, 1)
	until := time.Now().Add(requestLimit)
	for i, r := range diskJobs(3, 5) {
		id, err := p.submit(fmt.Sprint("lost ", i), r.body, until)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := p.follow(id, until); err != nil {
			t.Fatal(err)
		}
	}
	if a := p.call("GET", "/health", nil); a.status != 200 || strings.Contains(string(a.body), "degraded") {
		t.Fatalf("before: %d %s", a.status, a.body)
	}
	p.recorded(3)
	p.coordinator.kill(t)
	damaged := 0
	err := filepath.WalkDir(p.data, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !strings.HasSuffix(path, ".blk") || !strings.Contains(path, "SHOAL_JOBS") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range b {
			b[i] ^= 0x55
		}
		damaged++
		return os.WriteFile(path, b, 0o600)
	})
	if err != nil || damaged == 0 {
		t.Fatalf("no journal in %s: %v", p.data, err)
	}
	p.startCoordinator()
	p.ready(startLimit)
	if a := p.call("GET", "/health", nil); a.status != 200 || !strings.Contains(string(a.body), "degraded") ||
		!strings.Contains(string(a.body), "damaged: 3 jobs are lost") {
		t.Errorf("after: %d %s; GET /v1/jobs: %s", a.status, a.body, p.call("GET", "/v1/jobs", nil).body)
	}
}
