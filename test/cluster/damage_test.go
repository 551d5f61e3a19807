package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// TestFlippedBitAfterAKill: a coordinator is killed and a bit of its job store is flipped. At most
// the affected job is lost, no other job changes, and /health has the number of lost jobs.
func TestFlippedBitAfterAKill(t *testing.T) {
	p := startProcesses(t, 1)
	const ended, pending = 10, 6
	until := time.Now().Add(patience)
	ids := map[string]string{} // earlier outcome of each job
	for i := range ended + pending {
		body := map[string]any{"prompt": fmt.Sprintf("The sea %d", i), "max_tokens": 4, "seed": i}
		if i >= ended { // queued behind the others, and unfinished when the coordinator dies
			body["max_tokens"], body["ignore_eos"], body["kv_policy"] = 4000, true, "full"
		}
		id, err := p.submit(fmt.Sprint("k", i), body, until)
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = "pending"
		if i < ended {
			testutil.Eventually(t, patience, "a completed job", func() (bool, string) {
				var j jobState
				p.getJSON("/v1/jobs/"+id, &j)
				ids[id] = string(j.Result)
				return j.State == "completed", j.State
			})
		}
	}
	p.recorded(len(ids))
	p.coordinator.kill(t)
	dead := p.data
	blocks, _ := filepath.Glob(filepath.Join(dead, "jetstream", "jetstream", "*", "streams", "SHOAL_JOBS", "msgs", "*.blk"))
	if len(blocks) != 1 {
		t.Fatalf("blocks: %v", blocks)
	}
	rel, err := filepath.Rel(dead, blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	places := []int{2, 300, 998} // in thousandths of the file
	if full() {
		places = append(places, 100, 301, 302, 303, 600)
	}
	for _, per := range places {
		p.data = t.TempDir()
		if err := os.CopyFS(p.data, os.DirFS(dead)); err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(p.data, rel)
		data, err := os.ReadFile(at)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)*per/1000] ^= 4
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		p.startCoordinator()
		p.ready(startLimit)
		lost := 0
		for id, was := range ids {
			a := p.call("GET", "/v1/jobs/"+id, nil)
			var j jobState
			_ = json.Unmarshal(a.body, &j)
			switch {
			case a.status == 404, j.State == "dead":
				lost++
			case was != "pending" && j.State == "completed" && string(j.Result) != was:
				t.Errorf("at %d per mille: job %s has another result", per, id)
			}
		}
		reported := 0
		if m := regexp.MustCompile(`(\d+) jobs are lost`).FindSubmatch(p.call("GET", "/health", nil).body); m != nil {
			reported, _ = strconv.Atoi(string(m[1]))
		}
		if lost > 1 || reported != lost {
			t.Errorf("at %d per mille: %d of %d jobs are lost, /health has %d", per, lost, len(ids), reported)
		}
		if kept, _ := filepath.Glob(filepath.Join(p.data, "damaged", "*.bin")); len(kept) == 0 {
			t.Errorf("at %d per mille: nothing was set aside", per)
		}
		p.coordinator.kill(t)
	}
}
