package batches_test

import (
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
)

// TestHolders: jobs and stored responses are visible to the key that created them and to operator
// keys, also after a restart. Every route hides them from other keys.
func TestHolders(t *testing.T) {
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	keys := []httpserver.Key{
		{Name: "ann", Secret: "a"},
		{Name: "bob", Secret: "b"},
		{Name: "root", Secret: "r", Role: httpserver.RoleOperator},
	}
	start := func() *house {
		h := open(t, log, dir, &fakeEngine{}, config{})
		if err := h.api.SetKeys(keys); err != nil {
			t.Fatal(err)
		}
		return h
	}
	as := func(secret string, more ...string) []string {
		return append([]string{"Authorization", "Bearer " + secret}, more...)
	}
	h := start()
	const ask = `{"input":"Name a fish.","max_output_tokens":8,"seed":3}`
	made := h.want(200, "POST", "/v1/responses", ask, as("a")...)
	id, item := made["id"].(string), made["output"].([]any)[0].(map[string]any)["id"].(string)
	job := h.want(202, "POST", "/v1/jobs", `{"prompt":"a","max_tokens":2}`, as("a", "Idempotency-Key", "k")...)["id"].(string)
	if other := h.want(202, "POST", "/v1/jobs", `{"prompt":"b","max_tokens":2}`, as("b", "Idempotency-Key", "k")...)["id"].(string); other == job {
		t.Error("an Idempotency-Key of one API key is another's")
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.stop()
			h = start()
		}
		for secret, status := range map[string]int{"a": 200, "b": 404, "r": 200} {
			h.want(status, "GET", "/v1/responses/"+id, "", as(secret)...)
			h.want(status, "GET", "/v1/responses/"+id+"/input_items", "", as(secret)...)
			h.want(status, "GET", "/v1/jobs/"+job, "", as(secret)...)
			h.want(status, "GET", "/v1/jobs/"+id, "", as(secret)...)
			found := false
			for _, j := range h.want(200, "GET", "/v1/jobs", "", as(secret)...)["data"].([]any) {
				found = found || j.(map[string]any)["id"] == job
			}
			if found != (status == 200) {
				t.Errorf("key %s lists the job: %v", secret, found)
			}
			if status == 404 {
				status = 400
			}
			h.want(status, "POST", "/v1/responses", `{"previous_response_id":"`+id+`","input":"Another.","max_output_tokens":2,"store":false}`, as(secret)...)
			h.want(status, "POST", "/v1/responses", `{"input":[{"type":"item_reference","id":"`+item+`"},{"role":"user","content":"x"}],"max_output_tokens":2,"store":false}`, as(secret)...)
		}
		for _, x := range [][2]string{{"POST", "/v1/responses/" + id + "/cancel"}, {"DELETE", "/v1/responses/" + id},
			{"DELETE", "/v1/jobs/" + job}, {"DELETE", "/v1/jobs/" + id}} {
			h.want(404, x[0], x[1], "", as("b")...)
		}
	}
	h.want(200, "DELETE", "/v1/responses/"+id, "", as("a")...)
	h.want(404, "GET", "/v1/responses/"+id, "", as("r")...)
}
