package batches_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// responseEvents reads the stream of a response until it ends or breaks.
func (h *house) responseEvents(method, path, body string) (out []string, last map[string]any) {
	h.t.Helper()
	resp := h.open(method, path, body)
	defer resp.Body.Close()
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
			last = nil
			if err := json.Unmarshal([]byte(data), &last); err != nil {
				h.t.Fatal(err)
			}
			out = append(out, data)
		}
	}
	return out, last
}

func (h *house) untilResponse(id, status string) (r map[string]any) {
	h.t.Helper()
	testutil.Eventually(h.t, patience, "response "+status, func() (bool, string) {
		r = h.want(200, "GET", "/v1/responses/"+id, "")
		return r["status"] == status, fmt.Sprint(r)
	})
	return r
}

// Foreground and background responses survive a restart, and later responses can continue them.
func TestResponsesAreKept(t *testing.T) {
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	h := open(t, log, dir, &fakeEngine{}, config{})
	const ask = `{"input":"Name a fish.","max_output_tokens":8,"seed":3}`
	first := h.want(200, "POST", "/v1/responses", ask)
	id := first["id"].(string)
	if first["store"] != true || first["status"] != "incomplete" || canon(h.want(200, "GET", "/v1/responses/"+id, "")) != canon(first) {
		t.Fatalf("%v", first)
	}
	if r := h.want(200, "POST", "/v1/responses", `{"input":"x","max_output_tokens":2,"store":false}`); r["store"] != false {
		t.Fatalf("%v", r)
	} else {
		h.want(404, "GET", "/v1/responses/"+r["id"].(string), "")
	}
	later := `{"previous_response_id":"` + id + `","input":[{"role":"user","content":"Another."}],"max_output_tokens":8,"seed":3}`
	whole := fmt.Sprintf(`{"input":[{"role":"user","content":"Name a fish."},%s,{"role":"user","content":"Another."}],"max_output_tokens":8,"seed":3,"store":false}`,
		canonItem(first["output"].([]any)[0]))
	want := h.want(200, "POST", "/v1/responses", whole)["output"].([]any)[0]
	text := func(v any) string { return fmt.Sprint(v.(map[string]any)["content"]) }

	bg := h.want(200, "POST", "/v1/responses", strings.Replace(ask, "{", `{"background":true,`, 1))
	if bg["status"] != "queued" {
		t.Fatalf("%v", bg)
	}
	done := h.untilResponse(bg["id"].(string), "incomplete")
	if text(done["output"].([]any)[0]) != text(first["output"].([]any)[0]) {
		t.Errorf("in the background %v, at once %v", done["output"], first["output"])
	}
	h.close()

	h = open(t, log, dir, &fakeEngine{}, config{})
	if again := h.want(200, "GET", "/v1/responses/"+id, ""); canon(again) != canon(first) {
		t.Errorf("after a restart %v", again)
	}
	next := h.want(200, "POST", "/v1/responses", later)
	if got := next["output"].([]any)[0]; text(got) != text(want) || next["previous_response_id"] != id {
		t.Errorf("going on: %v, with all of it sent %v", got, want)
	}
	ref := fmt.Sprintf(`{"input":[{"role":"user","content":"Name a fish."},{"type":"item_reference","id":%q},{"role":"user","content":"Another."}],"max_output_tokens":8,"seed":3}`,
		first["output"].([]any)[0].(map[string]any)["id"])
	if got := h.want(200, "POST", "/v1/responses", ref)["output"].([]any)[0]; text(got) != text(want) {
		t.Errorf("by reference %v, want %v", got, want)
	}
	items := h.want(200, "GET", "/v1/responses/"+next["id"].(string)+"/input_items?order=asc", "")["data"].([]any)
	if len(items) != 1 || !strings.Contains(fmt.Sprint(items), "Another.") {
		t.Errorf("input items %v", items)
	}
	if d := h.want(200, "DELETE", "/v1/responses/"+id, ""); d["deleted"] != true {
		t.Errorf("%v", d)
	}
	h.want(404, "GET", "/v1/responses/"+id, "")
	if e := h.want(400, "POST", "/v1/responses", later); e["error"].(map[string]any)["code"] != "previous_response_not_found" {
		t.Errorf("%v", e)
	}
	h.want(404, "POST", "/v1/responses/"+next["id"].(string)+"/compact", "{}")
}

// unreadable is a log of which one journal cannot be read for a time.
type unreadable struct {
	journal.Log
	name   atomic.Pointer[string]
	denied atomic.Int64
}

func (l *unreadable) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if p := l.name.Load(); p != nil && *p == name {
		l.denied.Add(1)
		return errors.New("no leader")
	}
	return l.Log.Read(ctx, name, after, each)
}

// TestResponseWaitsForTheStore: an accepted response that continues another waits while the store cannot read that one.
func TestResponseWaitsForTheStore(t *testing.T) {
	log, e := &unreadable{Log: journaltest.NewMemoryLog()}, &fakeEngine{}
	h := open(t, log, t.TempDir(), e, config{Config: jobs.Config{Parallel: 1}})
	first := h.want(200, "POST", "/v1/responses", `{"input":"Name a fish.","max_output_tokens":8,"seed":3}`)["id"].(string)
	e.mu.Lock()
	e.hold = 1
	e.mu.Unlock()
	before := h.want(200, "POST", "/v1/responses", `{"input":"Count.","max_output_tokens":4,"background":true}`)["id"].(string)
	h.untilResponse(before, "in_progress")
	id := h.want(200, "POST", "/v1/responses",
		`{"previous_response_id":"`+first+`","input":"Another.","max_output_tokens":4,"background":true}`)["id"].(string)
	log.name.Store(&first)
	e.release()
	testutil.Eventually(t, patience, "two attempts that cannot read it", func() (bool, string) {
		if r := h.want(200, "GET", "/v1/responses/"+id, ""); r["status"] == "failed" {
			t.Fatalf("an accepted response ended: %v", r["error"])
		}
		return log.denied.Load() >= 2, fmt.Sprint(log.denied.Load())
	})
	log.name.Store(nil)
	h.untilResponse(id, "incomplete")
}

// The events of a background response are the same at every read, before and after a restart in its
// middle, from any starting number.
func TestResponsesBackgroundStream(t *testing.T) {
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	e := &fakeEngine{hold: 20}
	h := open(t, log, dir, e, config{})
	r := h.want(200, "POST", "/v1/responses", `{"input":"Count.","max_output_tokens":40,"background":true,"seed":5}`)
	path := "/v1/responses/" + r["id"].(string)
	testutil.Eventually(t, patience, "20 events", func() (bool, string) {
		j := h.want(200, "GET", "/v1/jobs/"+r["id"].(string), "")
		return j["events"].(float64) >= 20, fmt.Sprint(j)
	})
	if now := h.want(200, "GET", path, ""); now["status"] != "in_progress" || len(now["output"].([]any)) != 0 {
		t.Errorf("%v", now)
	}
	h.close()
	h = open(t, log, dir, &fakeEngine{}, config{})
	all, last := h.responseEvents("GET", path+"?stream=true", "")
	if last["type"] != "response.incomplete" || canon(last["response"]) != canon(h.want(200, "GET", path, "")) {
		t.Fatalf("%v", last)
	}
	again, _ := h.responseEvents("GET", path+"?stream=true&starting_after=9", "")
	if strings.Join(again, "\n") != strings.Join(all[10:], "\n") {
		t.Errorf("from 10 on:\n%s\nof\n%s", strings.Join(again, "\n"), strings.Join(all, "\n"))
	}
	if resumed := h.want(200, "POST", path+"/cancel", ""); resumed["status"] != "incomplete" {
		t.Errorf("%v", resumed)
	}
}

func TestResponsesCancelled(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{hold: 3}, config{})
	r := h.want(200, "POST", "/v1/responses", `{"input":"Count.","max_output_tokens":40,"background":true}`)
	path := "/v1/responses/" + r["id"].(string)
	if c := h.want(200, "POST", path+"/cancel", ""); c["status"] != "cancelled" {
		t.Errorf("%v", c)
	}
	if e := h.want(400, "POST", "/v1/responses", `{"input":"x","previous_response_id":"`+r["id"].(string)+`"}`); e["error"].(map[string]any)["code"] != "previous_response_not_completed" {
		t.Errorf("%v", e)
	}
	if _, last := h.responseEvents("GET", path+"?stream=true", ""); last["type"] != "response.cancelled" {
		t.Errorf("%v", last)
	}
}

func canonItem(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}
