package batches_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

// A byte order mark, which some editors write, is not part of the first line.
func TestByteOrderMark(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	create := func(text string) map[string]any {
		id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+h.upload(text)+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
		return h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" || b["status"] == "failed" })
	}
	for name, text := range map[string]string{"mark": "\xef\xbb\xbf" + batchLines(3), "mark and CRLF": "\xef\xbb\xbf" +
		strings.ReplaceAll(batchLines(3), "\n", "\r\n"), "mark and empty line": "\xef\xbb\xbf\n" + batchLines(3)} {
		b := create(text)
		if b["status"] != "completed" || len(h.lines(b["output_file_id"])) != 3 || h.lines(b["output_file_id"])[0]["custom_id"] != "c0" {
			t.Errorf("%s: %v", name, b)
		}
	}
	for _, text := range []string{"\xef\xbb\xbf", "\xef\xbb\xbf\xef\xbb\xbf" + batchLines(1), batchLines(1) + "\xef\xbb\xbf" + batchLines(1)} {
		if b := create(text); b["status"] != "failed" {
			t.Errorf("%q: %v", text, b)
		}
	}
}

// goWords matches names that encoding/json puts into its errors.
var goWords = regexp.MustCompile(`Go |struct|inputLine|unmarshal|RawMessage|map\[string\]|json: `)

// Member names match exactly at every depth, duplicates are errors, and no error reveals Go types.
func TestNamesOfLines(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	line := func(members string) string {
		return `{"method":"POST","url":"/v1/completions",` + members + "}\n"
	}
	for text, want := range map[string]string{
		line(`"custom_id":"a","Body":{"prompt":"x"}`):                                     "no 'body'",
		line(`"Custom_ID":"a","body":{"prompt":"x"}`):                                     "'custom_id'",
		line(`"custom_id":"a","body":{"prompt":"x"},"custom_id":"b"`):                     `"custom_id" twice`,
		line(`"custom_id":"a","body":{"prompt":"x","prompt":"y"}`):                        `'body' has the member "prompt" twice`,
		line(`"custom_id":"a","body":{"prompt":"x","metadata":{"k":{"a":1,"\u0061":2}}}`): `'body.metadata.k' has the member "a" twice`,
		line(`"custom_id":5,"body":{"prompt":"x"}`):                                       "'custom_id' must be a string",
		line(`"custom_id":"a","method":["POST"],"body":{}`)[1:]:                           "not valid JSON",
		"[]\n":                              "must be an object",
		"\"a\"\n":                           "must be an object",
		"{\n":                               "not valid JSON",
		strings.Repeat("[", 100_000) + "\n": "nested deeper than 129 levels",
	} {
		id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+h.upload(text)+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
		b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" || b["status"] == "failed" })
		if got := fmt.Sprint(b["errors"]); b["status"] != "failed" || !strings.Contains(got, want) ||
			!strings.Contains(got, "Line 1") || goWords.MatchString(strings.ReplaceAll(got, "map[code", "")) {
			t.Errorf("%.80s: %v, want %q", text, got, want)
		}
	}
	for path, bodies := range map[string]map[string]string{
		"/v1/batches": {`{"input_file_id":5}`: "'input_file_id' must be a string", `{"metadata":{"a":1}}`: "'metadata.a' must be a string", `[]`: "must be an object", `{"endpoint":"a","endpoint":"b"}`: `"endpoint" twice`,
			`{"Input_File_Id":"x","endpoint":"/v1/completions","completion_window":"24h"}`: `no file ""`},
		"/v1/jobs": {`{"endpoint":5}`: "'endpoint' must be a string", `[]`: "must be an object", `{"endpoint":"/v1/completions","BODY":{"prompt":"x"}}`: "'prompt' is required", `{"Prompt":"x"}`: "Name the 'endpoint'",
			`{"body":{"prompt":"x","prompt":"y"},"endpoint":"/v1/completions"}`: `'body' has the member "prompt" twice`},
	} {
		for body, want := range bodies {
			e := h.want(400, "POST", path, body)
			if got := fmt.Sprint(e["error"].(map[string]any)["message"]); !strings.Contains(got, want) || goWords.MatchString(got) {
				t.Errorf("%s %s: %s, want %q", path, body, got, want)
			}
		}
	}
}

// A seed of -1 is drawn once per job and stored: the job gives the same answer after a restart.
func TestSeedIsDrawn(t *testing.T) {
	// Compare token ids, because bytes that are not valid UTF-8 look alike as text.
	log, dir := journaltest.NewMemoryLog(), t.TempDir()
	h := open(t, log, dir, &fakeEngine{}, config{})
	answer := func(id string) string { return canon(h.until(id, "completed")["result"].(map[string]any)["choices"]) }
	ids, seen := []string{}, map[string]bool{}
	for _, body := range []string{`{"prompt":"a","max_tokens":9,"logprobs":0,"return_tokens_as_token_ids":true,"seed":-1}`, `{"prompt":"a","max_tokens":9,"logprobs":0,"return_tokens_as_token_ids":true,"seed":-1.0}`, `{"prompt":"a","max_tokens":9,"logprobs":0,"return_tokens_as_token_ids":true}`, `{"prompt":"a","max_tokens":9,"logprobs":0,"return_tokens_as_token_ids":true,"seed":-2}`} {
		id := h.want(202, "POST", "/v1/jobs", body)["id"].(string)
		ids = append(ids, id)
		seen[answer(id)] = true
	}
	if len(seen) != len(ids) {
		t.Errorf("%d jobs, %d answers", len(ids), len(seen))
	}
	line := `{"custom_id":"c%d","method":"POST","url":"/v1/completions","body":{"prompt":"a","max_tokens":9,"logprobs":0,"return_tokens_as_token_ids":true,"seed":-1}}` + "\n"
	id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+h.upload(fmt.Sprintf(line, 0)+fmt.Sprintf(line, 1))+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" })
	text := func(l map[string]any) string {
		return canon(l["response"].(map[string]any)["body"].(map[string]any)["choices"])
	}
	if out := h.lines(b["output_file_id"]); len(out) != 2 || text(out[0]) == text(out[1]) {
		t.Errorf("lines of seed -1: %v", out)
	}
	h.close()
	h = open(t, log, dir, &fakeEngine{}, config{})
	for _, id := range ids {
		if !seen[answer(id)] {
			t.Errorf("job %s has another answer after a restart", id)
		}
	}
}

// A line that the server refuses with any status is an error line. The lines after it run.
func TestRefusedLineDoesNotStallABatch(t *testing.T) {
	h := open(t, journaltest.NewMemoryLog(), t.TempDir(), &fakeEngine{}, config{})
	for range 2 {
		h.want(200, "POST", "/v1/completions", `{"session":"s","prompt":"x","max_tokens":2}`)
	}
	in := h.upload(`{"custom_id":"moved","method":"POST","url":"/v1/completions","body":{"session":"s","session_turns":1,"prompt":"x"}}` +
		"\n" + batchLines(2))
	id := h.want(200, "POST", "/v1/batches", batchOf(in))["id"].(string)
	b := h.batchUntil(id, ended)
	if c := fmt.Sprint(b["request_counts"]); c != "map[completed:2 failed:1 total:3]" {
		t.Errorf("%v", b)
	}
	if bad := h.lines(b["error_file_id"]); len(bad) != 1 || bad[0]["response"].(map[string]any)["status_code"] != 409.0 {
		t.Errorf("%v", bad)
	}
}
