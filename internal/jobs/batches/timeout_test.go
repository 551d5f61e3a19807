package batches_test

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// silent is a log that stops answering: every call blocks until its deadline, as with an
// unreachable JetStream.
type silent struct {
	*journaltest.MemoryLog
	t     *testing.T
	mute  atomic.Bool
	first atomic.Int32 // number of calls that are still answered
	asked atomic.Int32
}

func (l *silent) ask(ctx context.Context) error {
	if !l.mute.Load() || l.first.Add(-1) >= 0 {
		return nil
	}
	l.asked.Add(1)
	limit := journal.AnswerTimeout(ctx, time.Hour)
	if limit == time.Hour {
		l.t.Error("a client waits for longer than its time")
		l.mute.Store(false)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	<-ctx.Done()
	return ctx.Err()
}

func (l *silent) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if err := l.ask(ctx); err != nil {
		return err
	}
	return l.MemoryLog.Read(ctx, name, after, each)
}

func (l *silent) Last(ctx context.Context, name string) (uint64, []byte, error) {
	if err := l.ask(ctx); err != nil {
		return 0, nil, err
	}
	return l.MemoryLog.Last(ctx, name)
}

func (l *silent) Journals(ctx context.Context) ([]string, error) {
	if err := l.ask(ctx); err != nil {
		return nil, err
	}
	return l.MemoryLog.Journals(ctx)
}

// TestClientsDoNotWaitForASilentStore: the job runner waits minutes for a store that does not
// answer, but a client soon gets an error that names the cause.
func TestClientsDoNotWaitForASilentStore(t *testing.T) {
	l, fl := &silent{MemoryLog: journaltest.NewMemoryLog(), t: t}, &silent{MemoryLog: journaltest.NewMemoryLog(), t: t}
	h := openWith(t, l, sharedFiles(t, fl), &fakeEngine{}, config{Silence: time.Millisecond})
	job := h.want(202, "POST", "/v1/jobs", askFor)["id"].(string)
	h.until(job, "completed")
	file := h.upload(batchLines(1))
	for _, c := range []struct{ method, path, body, what string }{
		{"GET", "/v1/jobs/" + job, "", "The result of the job"},
		{"GET", "/v1/jobs/" + job + "/events", "", "The request of the job"},
		{"GET", "/v1/files", "", "The list of files"},
		{"GET", "/v1/files/" + file, "", "The file"},
		{"GET", "/v1/files/" + file + "/content", "", "The file"},
		{"DELETE", "/v1/files/" + file, "", "The file"},
		{"POST", "/v1/batches", `{"input_file_id":"` + file + `","endpoint":"/v1/completions","completion_window":"24h"}`, "The input file"},
	} {
		for _, l := range []*silent{l, fl} {
			l.asked.Store(0)
			l.first.Store(0)
			l.mute.Store(true)
		}
		e := h.want(503, c.method, c.path, c.body)["error"].(map[string]any)
		m := e["message"].(string)
		if e["code"] != "store_unavailable" || !strings.HasPrefix(m, c.what+" cannot be read: the job store does not answer") {
			t.Errorf("%s %s: %v %q", c.method, c.path, e["code"], m)
		}
	}
	l.asked.Store(0)
	l.first.Store(1) // reading the request succeeds, reading the events does not
	resp, err := h.http.Client().Get(h.http.URL + "/v1/jobs/" + job + "/events")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(stream), `data: {"error":{"message":"The rest of the job's events cannot be read: the job store does not answer`) {
		t.Errorf("%s, %v", stream, err)
	}
	l.mute.Store(false)
	fl.mute.Store(false)
	if h.want(200, "GET", "/v1/jobs/"+job, "")["result"] == nil {
		t.Error("the store answers again, and there is no result")
	}
	h.want(200, "GET", "/v1/files/"+file, "")
}
