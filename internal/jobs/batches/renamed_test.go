package batches_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// Jobs and responses that were accepted under a name of the model are shown and finished when it has another name.
func TestRenamedModel(t *testing.T) {
	log, dir, e := journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}
	h := open(t, log, dir, e, config{Config: jobs.Config{Parallel: 2}})
	job := h.until(h.want(202, "POST", "/v1/jobs", `{"model":"m","prompt":"x","max_tokens":4,"seed":2}`)["id"].(string), "completed")["id"].(string)
	before, _ := h.events(job, 0)
	e.mu.Lock()
	e.hold = 1
	e.mu.Unlock()
	background := func() string {
		id := h.want(200, "POST", "/v1/responses", `{"model":"m","input":"Count.","max_output_tokens":6,"background":true,"seed":5,`+
			`"instructions":"Be brief.","tools":[{"type":"function","name":"f"}]}`)["id"].(string)
		h.untilResponse(id, "in_progress")
		return id
	}
	left, running := background(), background()
	shown := h.want(200, "POST", "/v1/responses/"+left+"/cancel", "")
	h.close()
	e.release()

	h = open(t, log, dir, e, config{model: "renamed", Config: jobs.Config{Parallel: 2}})
	if again := h.want(200, "GET", "/v1/responses/"+left, ""); canon(again) != canon(shown) || again["model"] != "m" {
		t.Errorf("shown %v, before %v", again, shown)
	}
	h.untilResponse(running, "incomplete")
	if after, _ := h.events(job, 0); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("events %v, before %v", after, before)
	}
	h.want(404, "POST", "/v1/jobs", `{"model":"m","prompt":"x","max_tokens":4}`) // a new one is refused
	h.want(404, "POST", "/v1/responses", `{"model":"m","input":"x"}`)
}

// A response that runs names its model, also if the request did not.
func TestModelOfARunningResponse(t *testing.T) {
	e := &fakeEngine{hold: 1}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{})
	r := h.want(200, "POST", "/v1/responses", `{"input":"x","max_output_tokens":2,"background":true}`)
	shown := h.want(200, "GET", "/v1/responses/"+r["id"].(string), "")
	if r["model"] != "m" || shown["model"] != "m" {
		t.Errorf("the model is %q in the answer and %q after it", r["model"], shown["model"])
	}
	e.release()
}

// The events of a response do not depend on the responses before it, which may be removed.
func TestEventsWithoutThePreviousResponse(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	first := h.want(200, "POST", "/v1/responses", `{"input":"Name a fish.","max_output_tokens":8,"seed":3}`)
	id := first["id"].(string)
	item := first["output"].([]any)[0].(map[string]any)["id"].(string)
	before := map[string]string{}
	for _, input := range []string{`"input":"Another."`, `"instructions":"Go on."`,
		`"input":[{"type":"item_reference","id":"` + item + `"},{"role":"user","content":"x"}]`} {
		r := h.want(200, "POST", "/v1/responses", `{"previous_response_id":"`+id+`",`+input+`,"max_output_tokens":6,"background":true}`)
		h.untilResponse(r["id"].(string), "incomplete")
		path := "/v1/responses/" + r["id"].(string) + "?stream=true"
		all, _ := h.responseEvents("GET", path, "")
		before[path] = strings.Join(all, "\n")
	}
	h.want(200, "DELETE", "/v1/responses/"+id, "")
	for path, before := range before {
		all, last := h.responseEvents("GET", path, "")
		if after := strings.Join(all, "\n"); after != before || last["type"] != "response.incomplete" {
			t.Errorf("the events are\n%s\nbefore\n%s", after, before)
		}
	}
}

// A response that was not made in the background has events too: those of its items.
func TestEventsOfAForegroundResponse(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	r := h.want(200, "POST", "/v1/responses", `{"input":"Name a fish.","max_output_tokens":8,"seed":3}`)
	all, last := h.responseEvents("GET", "/v1/responses/"+r["id"].(string)+"?stream=true", "")
	if last["type"] != "response.incomplete" || canon(last["response"]) != canon(r) {
		t.Errorf("the last event is %v", last)
	}
	item := r["output"].([]any)[0].(map[string]any)
	done := 0
	for i, e := range all {
		var x struct {
			Type string
			Item map[string]any
		}
		if err := json.Unmarshal([]byte(e), &x); err != nil {
			t.Fatal(err)
		}
		if x.Type == "response.output_item.done" {
			if done++; canonItem(x.Item) != canonItem(item) {
				t.Errorf("event %d has %v, and the item is %v", i, x.Item, item)
			}
		}
	}
	if done != 1 {
		t.Errorf("%d items of events:\n%s", done, strings.Join(all, "\n"))
	}
}

// Only items of the request itself are named as left out, not those of the responses before it.
func TestIgnoredItemsOfEarlierResponses(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	ask := func(body, want string) string {
		resp := h.open("POST", "/v1/responses", body)
		defer resp.Body.Close()
		var r struct{ ID string }
		if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || resp.Header.Get("X-Ignored-Parameters") != want {
			t.Errorf("%s: %v, ignored %q, want %q", body, err, resp.Header.Get("X-Ignored-Parameters"), want)
		}
		return r.ID
	}
	id := ask(`{"input":[{"type":"web_search_call","id":"w"},{"role":"user","content":"x"}],"max_output_tokens":2}`, "input[0]")
	ask(`{"previous_response_id":"`+id+`","input":"y","max_output_tokens":2}`, "")
	ask(`{"previous_response_id":"`+id+`","max_output_tokens":2}`, "")
}

// The body of a background response counts against the memory for bodies until it is accepted, not while a client
// reads the events.
func TestBodyOfABackgroundStream(t *testing.T) {
	e := &fakeEngine{hold: 1}
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), e, config{})
	resp := h.open("POST", "/v1/responses", `{"background":true,"stream":true,"max_output_tokens":4,"input":"x","metadata":{"a":"`+
		strings.Repeat("x", 1<<20)+`"}}`)
	defer resp.Body.Close()
	if n := h.api.BodiesInUse(); resp.StatusCode != 200 || n != 0 {
		t.Errorf("status %d, %d bytes of bodies", resp.StatusCode, n)
	}
	e.release()
}

// A browser that connects again repeats the URL and adds Last-Event-ID: the stream continues there.
func TestReconnectingBrowser(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	id := h.until(h.want(202, "POST", "/v1/jobs", `{"prompt":"x","max_tokens":5}`)["id"].(string), "completed")["id"].(string)
	for query, first := range map[string]string{"?from=0": "3", "": "3", "?from=4": "3"} {
		resp := h.open("GET", "/v1/jobs/"+id+"/events"+query, "", "Last-Event-ID", "2")
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !strings.HasPrefix(string(text), "id: "+first+"\n") {
			t.Errorf("%q after event 2: %v, %.100q", query, err, text)
		}
	}
}
