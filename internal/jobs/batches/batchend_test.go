package batches_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/testutil"
)

func batchOf(file string) string {
	return `{"input_file_id":"` + file + `","endpoint":"/v1/completions","completion_window":"24h"}`
}

// lineUntil waits until the job of a line exists and has a state.
func (h *house) lineUntil(id, state string) {
	h.t.Helper()
	testutil.Eventually(h.t, patience, "line "+state, func() (bool, string) {
		_, j := h.do("GET", "/v1/jobs/"+id, "")
		return j["state"] == state, fmt.Sprint(j)
	})
}

func ended(b map[string]any) bool { return b["status"] == "completed" || b["status"] == "cancelled" }

// A line of a running batch cannot be deleted: the batch would wait for it, and lose its result.
func TestLinesOfRunningBatchesStay(t *testing.T) {
	e := &fakeEngine{hold: 1}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{})
	file := h.upload(`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x","max_tokens":2}}` + "\n" +
		`{"custom_id":"b","method":"POST","url":"/v1/completions","body":{"prompt":"y","max_tokens":2}}`)
	b := h.want(200, "POST", "/v1/batches", batchOf(file))["id"].(string)
	line := "job-" + strings.TrimPrefix(b, "batch_") + "-0"
	h.lineUntil(line, "running")
	if e := h.want(http.StatusConflict, "DELETE", "/v1/jobs/"+line+"?purge=true", ""); e["error"].(map[string]any)["code"] != "job_in_use" {
		t.Errorf("%v", e)
	}
	e.release()
	if got := h.batchUntil(b, ended); got["status"] != "completed" || got["request_counts"].(map[string]any)["completed"] != 2.0 {
		t.Errorf("%v", got)
	}
	h.want(200, "DELETE", "/v1/jobs/"+line+"?purge=true", "")
}

// A request for a batch is repeated with its key after the batch has ended and its input was deleted.
func TestIdempotencyKeyWithoutTheInput(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	file := h.upload(`{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x","max_tokens":2}}`)
	b := h.want(200, "POST", "/v1/batches", batchOf(file), "Idempotency-Key", "x")["id"].(string)
	h.batchUntil(b, ended)
	h.want(200, "DELETE", "/v1/files/"+file, "")
	if again := h.want(200, "POST", "/v1/batches", batchOf(file), "Idempotency-Key", "x")["id"]; again != b {
		t.Errorf("%v, not %s", again, b)
	}
	h.want(http.StatusConflict, "POST", "/v1/batches", batchOf("file-other"), "Idempotency-Key", "x")
	h.want(http.StatusBadRequest, "POST", "/v1/batches", batchOf(file), "Idempotency-Key", "y")
}

// A coordinator ends before it has cancelled the jobs of a cancelled batch. The next one finds the jobs after a line
// that never became one.
func TestCancelledBatchAcrossARestart(t *testing.T) {
	l, dir, e := journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{most: 2}
	cfg := config{Config: jobs.Config{Parallel: 1}}
	h := open(t, l, dir, e, cfg)
	file := h.upload(batchLines(1) + `{"custom_id":"bad","method":"POST","url":"/v1/completions","body":{"prompt":"x","temperature":-1}}` + "\n" +
		strings.ReplaceAll(batchLines(2), `:"c`, `:"d`))
	b := h.want(200, "POST", "/v1/batches", batchOf(file))["id"].(string)
	line := "job-" + strings.TrimPrefix(b, "batch_")
	h.lineUntil(line+"-2", "completed")
	h.lineUntil(line+"-3", "running")
	l.SetFault(func(name string, data []byte, _ bool) error {
		if name == line+"-3" && journal.Kind(data[4]) == jobs.KindCancel {
			return errors.New("journal: no answer")
		}
		return nil
	})
	h.want(200, "POST", "/v1/batches/"+b+"/cancel", "")
	h.close()
	l.SetFault(nil)
	h = open(t, l, dir, e, cfg)
	got := h.batchUntil(b, ended)
	if c := fmt.Sprint(got["request_counts"]); got["status"] != "cancelled" || c != "map[completed:2 failed:2 total:4]" {
		t.Errorf("%v: %s", got["status"], c)
	}
	if good, rest := h.lines(got["output_file_id"]), h.lines(got["error_file_id"]); len(good) != 2 || len(rest) != 2 {
		t.Errorf("%d results, %d errors", len(good), len(rest))
	}
	if j := h.want(200, "GET", "/v1/jobs/"+line+"-3", ""); j["state"] != "cancelled" {
		t.Errorf("the last line is %v", j["state"])
	}
}

// The content of the input file is removed by hand while the coordinator is down. The batch fails with the reason.
func TestBatchWithoutItsInput(t *testing.T) {
	l, dir, e := journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{hold: 1}
	h := open(t, l, dir, e, config{Config: jobs.Config{Parallel: 1}})
	file := h.upload(batchLines(2))
	b := h.want(200, "POST", "/v1/batches", batchOf(file))["id"].(string)
	h.lineUntil("job-"+strings.TrimPrefix(b, "batch_")+"-0", "running")
	h.close()
	if err := os.Remove(filepath.Join(dir, file+".data")); err != nil {
		t.Fatal(err)
	}
	h = open(t, l, dir, &fakeEngine{}, config{})
	got := h.batchUntil(b, func(b map[string]any) bool { return b["status"] == "failed" })
	if issues := fmt.Sprint(got["errors"]); !strings.Contains(issues, "invalid_file") || !strings.Contains(issues, "is gone") {
		t.Errorf("%v", issues)
	}
	h.want(200, "DELETE", "/v1/files/"+file, "")
}
