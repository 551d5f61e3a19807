package batches_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/files"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/server/httpserver"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Files, batches and their jobs are visible to the key that created them and to operator keys.
// Every route hides them from other keys. Only operator keys see the records without an owner that
// older builds wrote.
func TestFilesAndBatchesAreSeparate(t *testing.T) {
	for name, kept := range map[string]func(*testing.T) files.Store{
		"folder": func(t *testing.T) files.Store {
			f, err := files.OpenFolder(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		"log": func(t *testing.T) files.Store { return sharedFiles(t, journaltest.NewMemoryLog()) },
	} {
		t.Run(name, func(t *testing.T) { filesAndBatchesAreSeparate(t, kept(t)) })
	}
}

func filesAndBatchesAreSeparate(t *testing.T, kept files.Store) {
	log := journaltest.NewMemoryLog()
	keys := []httpserver.Key{
		{Name: "ann", Secret: "a"},
		{Name: "bob", Secret: "b"},
		{Name: "root", Secret: "r", Role: httpserver.RoleOperator},
	}
	as := func(secret string, more ...string) []string {
		return append([]string{"Authorization", "Bearer " + secret}, more...)
	}
	const input = `{"custom_id":"c","method":"POST","url":"/v1/completions","body":{"prompt":"secret","max_tokens":2}}` + "\n"
	ask := func(file string) string {
		return `{"input_file_id":"` + file + `","endpoint":"/v1/completions","completion_window":"24h","holder":"bob","key":"k"}`
	}
	finish := func(h *house, id string, header ...string) (b map[string]any) {
		t.Helper()
		testutil.Eventually(t, patience, "batch completed", func() (bool, string) {
			b = h.want(200, "GET", "/v1/batches/"+id, "", header...)
			return b["status"] == "completed", fmt.Sprint(b)
		})
		return b
	}

	h := openWith(t, log, kept, &fakeEngine{}, config{}) // without API keys, records have no owner
	nobodys := h.upload(input)
	oldBatch := h.want(200, "POST", "/v1/batches", ask(nobodys), "Idempotency-Key", "k")["id"].(string)
	oldOut := finish(h, oldBatch)["output_file_id"].(string)
	h.close()

	start := func() {
		h = openWith(t, log, kept, &fakeEngine{}, config{})
		if err := h.api.SetKeys(keys); err != nil {
			t.Fatal(err)
		}
	}
	start()
	annsIn := h.upload(input, as("a")...)
	annsBatch := h.want(200, "POST", "/v1/batches", ask(annsIn), as("a", "Idempotency-Key", "k")...)["id"].(string)
	if annsBatch == oldBatch {
		t.Error("an Idempotency-Key of one API key is another's")
	}
	annsOut := finish(h, annsBatch, as("a")...)["output_file_id"].(string)
	for _, restarted := range []bool{false, true} {
		if restarted {
			h.close()
			start()
		}
		for _, c := range []struct {
			file, out, batch string
			may              string // names of the keys that may see the objects
		}{{annsIn, annsOut, annsBatch, "ar"}, {nobodys, oldOut, oldBatch, "r"}} {
			for _, secret := range []string{"a", "b", "r"} {
				may := strings.Contains(c.may, secret)
				status := 404
				if may {
					status = 200
				}
				job := "job-" + c.batch[len("batch_"):] + "-0"
				for _, path := range []string{"/v1/files/" + c.file, "/v1/files/" + c.out, "/v1/batches/" + c.batch, "/v1/jobs/" + job} {
					if got, body := h.do("GET", path, "", as(secret)...); got != status || strings.Contains(fmt.Sprint(body), "holder") {
						t.Errorf("key %s: GET %s: %d %v", secret, path, got, body)
					}
				}
				for _, path := range []string{"/v1/files/" + c.file + "/content", "/v1/files/" + c.out + "/content", "/v1/jobs/" + job + "/events"} {
					resp := h.open("GET", path, "", as(secret)...)
					resp.Body.Close()
					if resp.StatusCode != status {
						t.Errorf("key %s: GET %s: %s", secret, path, resp.Status)
					}
				}
				for path, id := range map[string]string{"/v1/files": c.file, "/v1/files?purpose=batch_output": c.out,
					"/v1/batches": c.batch, "/v1/jobs": job, "/v1/jobs?batch_id=" + c.batch: job} {
					list := h.want(200, "GET", path, "", as(secret)...)
					listed := slices.ContainsFunc(list["data"].([]any), func(x any) bool { return x.(map[string]any)["id"] == id })
					if listed != may || strings.Contains(fmt.Sprint(list), "holder") {
						t.Errorf("key %s: %s lists %s: %v", secret, path, id, listed)
					}
				}
				if may {
					continue
				}
				for _, x := range [][2]string{
					{"POST", "/v1/batches/" + c.batch + "/cancel"},
					{"DELETE", "/v1/files/" + c.file},
					{"DELETE", "/v1/files/" + c.out},
					{"DELETE", "/v1/jobs/" + job},
					{"DELETE", "/v1/jobs/" + job + "?purge=true"},
				} {
					h.want(404, x[0], x[1], "", as(secret)...)
				}
				h.want(400, "POST", "/v1/batches", ask(c.file), as(secret)...)
				h.want(400, "POST", "/v1/batches", ask(c.out), as(secret)...)
			}
		}
		if again := h.want(200, "POST", "/v1/batches", ask(annsIn), as("a", "Idempotency-Key", "k")...)["id"]; again != annsBatch {
			t.Errorf("ann's batch again: %v", again)
		}
		if counts := h.want(200, "GET", "/v1/jobs", "",
			as("b")...)["counts"]; fmt.Sprint(counts) != "map[cancelled:0 completed:0 dead:0 queued:0 running:0]" {
			t.Errorf("bob counts %v", counts)
		}
	}
	h.want(200, "DELETE", "/v1/files/"+annsOut, "", as("a")...)
	h.want(200, "DELETE", "/v1/files/"+nobodys, "", as("r")...)
}
