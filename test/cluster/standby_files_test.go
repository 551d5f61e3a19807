package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// upload uploads the input of a batch and returns the file id.
func (c *httpClient) upload(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, _ := m.CreateFormFile("file", "in.jsonl")
	_, _ = io.WriteString(w, text)
	_ = m.WriteField("purpose", "batch")
	m.Close()
	r, _ := http.NewRequest("POST", c.base+"/v1/files", &b)
	r.Header.Set("Content-Type", m.FormDataContentType())
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var f struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || resp.StatusCode != 200 || f.ID == "" {
		t.Fatalf("upload: status %d, %+v, %v", resp.StatusCode, f, err)
	}
	return f.ID
}

// fileOf returns the content of a file.
func (c *httpClient) fileOf(t testing.TB, id string) string {
	t.Helper()
	a, err := c.try(context.Background(), "GET", "/v1/files/"+id+"/content", nil)
	if err != nil || a.status != 200 {
		t.Fatalf("the content of %s: status %d %s, %v", id, a.status, a.body, err)
	}
	return string(a.body)
}

// batchOf creates a batch of the requests and returns its id, its input's id and the input.
func (p *pair) batchOf(i int, reqs []request) (batch, input, text string) {
	p.t.Helper()
	for n, r := range reqs {
		line, _ := json.Marshal(map[string]any{"custom_id": fmt.Sprint(n), "method": "POST", "url": r.path, "body": r.body})
		text += string(line) + "\n"
	}
	input = p.at[i].upload(p.t, text)
	a, err := p.at[i].try(context.Background(), "POST", "/v1/batches",
		map[string]any{"input_file_id": input, "endpoint": reqs[0].path, "completion_window": "24h"})
	var b struct{ ID string }
	if err != nil || a.status != 200 || json.Unmarshal(a.body, &b) != nil {
		p.t.Fatalf("a batch: status %d %s, %v", a.status, a.body, err)
	}
	return b.ID, input, text
}

// batchEnds waits until a coordinator has completed a batch. It compares the stored input with the
// sent one, and the output with the undisturbed run.
func (p *pair) batchEnds(i int, batch, input, text string, want []string) {
	p.t.Helper()
	var b struct {
		Status string
		Output string `json:"output_file_id"`
		Errors json.RawMessage
	}
	testutil.Eventually(p.t, requestLimit, "the batch ends", func() (bool, string) {
		a, err := p.at[i].try(context.Background(), "GET", "/v1/batches/"+batch, nil)
		if err != nil || a.status != 200 || json.Unmarshal(a.body, &b) != nil {
			return false, fmt.Sprintf("status %d %s, %v", a.status, a.body, err)
		}
		return b.Status == "completed" || b.Status == "failed", string(a.body)
	})
	if b.Status != "completed" {
		p.t.Errorf("the batch %s: %s", b.Status, b.Errors)
		return
	}
	if got := p.at[i].fileOf(p.t, input); got != text {
		p.t.Errorf("its input has %d bytes, %d were sent", len(got), len(text))
	}
	lines := strings.Split(strings.TrimSpace(p.at[i].fileOf(p.t, b.Output)), "\n")
	if len(lines) != len(want) {
		p.t.Fatalf("the output has %d lines, want %d", len(lines), len(want))
	}
	for n, line := range lines {
		var l struct {
			Response struct{ Body json.RawMessage }
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || canonical(string(l.Response.Body)) != strings.TrimSpace(want[n]) {
			p.t.Errorf("line %d differs from the undisturbed run (%v) %s", n,
				err, firstDifference(strings.TrimSpace(want[n]), canonical(string(l.Response.Body))))
		}
	}
}

// nodeAt returns a node as a coordinator reports it.
func (p *pair) nodeAt(i int, id string) (wire.NodeState, bool) {
	s, _ := p.state(i)
	for _, n := range s.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return wire.NodeState{}, false
}

// staysDrained checks that the node is present without a share.
func (p *pair) staysDrained(i int, id string) {
	p.t.Helper()
	testutil.Eventually(p.t, startLimit, id+" is there", func() (bool, string) { // gossip reports it after the placement
		n, ok := p.nodeAt(i, id)
		return ok, fmt.Sprintf("%+v", n)
	})
	if n, _ := p.nodeAt(i, id); n.State != "drained" || n.Share != 0 {
		p.t.Errorf("under c%d: %s is %s with a share of %v, want drained without one", i, id, n.State, n.Share)
	}
}
