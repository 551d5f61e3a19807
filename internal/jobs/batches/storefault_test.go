package batches_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// silentLog is a log whose next reads of jobs fail.
type silentLog struct {
	journal.Log
	fails atomic.Int64
}

func (l *silentLog) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if strings.HasPrefix(name, "job-") && l.fails.Add(-1) >= 0 {
		return fmt.Errorf("journal: read %s: %w", name, journal.ErrNoAnswer)
	}
	return l.Log.Read(ctx, name, after, each)
}

// A log that does not answer for a time is not a fault of the job: its attempts do not count as failures.
func TestSilentLogIsNoFailure(t *testing.T) {
	l := &silentLog{Log: journaltest.NewMemoryLog()}
	h := open(t, l, t.TempDir(), &fakeEngine{}, config{Config: jobs.Config{Rules: jobs.Rules{MaxFailures: 2}}})
	l.fails.Store(5)
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	if j := h.until(id, "completed"); j["attempt"] != 6.0 {
		t.Errorf("attempts: %v, want 5 without records and the last one", j["attempt"])
	}
}

// The answer to the append of an anchor is lost. Later deletions find the anchor and succeed.
func TestPurgeAfterALostAnswer(t *testing.T) {
	l := journaltest.NewMemoryLog()
	h := open(t, l, t.TempDir(), &fakeEngine{}, config{})
	id := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	h.until(id, "completed")
	var lost atomic.Bool
	l.SetFault(func(name string, _ []byte, done bool) error {
		if name == "anchor" && done && lost.CompareAndSwap(false, true) {
			return errors.New("journal: no answer")
		}
		return nil
	})
	h.want(503, "DELETE", "/v1/jobs/"+id+"?purge=true", "")
	h.want(200, "DELETE", "/v1/jobs/"+id+"?purge=true", "")
	h.want(404, "GET", "/v1/jobs/"+id, "")
}
