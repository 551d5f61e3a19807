package cluster_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// A Go program uses package client: it follows a job over a kill -9 of the coordinator, without
// missing or repeated events. It drains and undrains nodes, and each change appears among the
// events.
func TestClientPackage(t *testing.T) {
	parallel(t)
	p := startProcesses(t, 2)
	c, ctx := client.New(p.base, ""), t.Context()
	c.HTTP.Transport = p.http.Transport
	body := map[string]any{"prompt": "// Package sort provides", "max_tokens": 300, "ignore_eos": true, "temperature": 0}
	job, err := c.Submit(ctx, "one", body)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Submit(ctx, "one", body); err != nil || again.ID != job.ID {
		t.Errorf("the same key gives %+v, %v", again, err)
	}
	text, tokens := "", 0
	for e, err := range c.Watch(ctx, job.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if text += e.Text; tokens == 50 {
			p.coordinator.kill(t)
			p.startCoordinator()
		}
		if e.Token != nil {
			tokens++
		}
	}
	result, err := c.Result(ctx, job.ID)
	if err != nil || tokens != 300 || text == "" {
		t.Fatalf("%d tokens, %q, %v", tokens, text, err)
	}
	var whole struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(result, &whole); err != nil || whole.Choices[0].Text != text {
		t.Errorf("the result is %s (%v), the events gave %q", result, err, text)
	}
	if now, err := c.Job(ctx, job.ID); err != nil || now.Attempt < 2 || now.State != "completed" {
		t.Errorf("the job is %+v, %v: was its coordinator killed?", now, err)
	}
	body["max_tokens"] = 1900
	long, err := c.Submit(ctx, "", body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Cancel(ctx, long.ID); err != nil {
		t.Error(err)
	}
	var failed *client.Failed
	if _, err := c.Result(ctx, long.ID); !errors.As(err, &failed) || failed.Job.State != "cancelled" {
		t.Errorf("the result of a job that was cancelled: %v", err)
	}
	if list, err := c.Jobs(ctx, client.Page{Limit: 1}); err != nil || len(list.Data) != 1 || !list.HasMore ||
		list.Data[0].ID != long.ID || list.Counts["completed"] != 1 {
		t.Errorf("the list is %+v, %v", list, err)
	}

	state := func(want string) {
		t.Helper()
		testutil.Eventually(t, 30*time.Second, "n1 "+want, func() (bool, string) {
			s, err := c.Cluster(ctx)
			if err != nil {
				return false, err.Error()
			}
			for _, n := range s.Nodes {
				if n.ID == "n1" {
					return n.State == want, n.State
				}
			}
			return false, "it is gone"
		})
	}
	if err := c.Drain(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	state("drained")
	if err := c.Undrain(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	state("ready")
	var e *client.Error
	if err := c.Drain(ctx, "n7"); !errors.As(err, &e) || e.Status != 404 || e.Code != "node_not_found" {
		t.Errorf("a node that there is not: %v", err)
	}
	past, err := c.Events(ctx, 0)
	if err != nil || len(past) == 0 {
		t.Fatalf("%d events, %v", len(past), err)
	}
	newest := past[len(past)-1].Revision
	for e, err := range c.FollowEvents(ctx, newest-1) {
		if err != nil || e.Revision < newest {
			t.Errorf("followed: %+v, %v", e, err)
		}
		if e.Revision >= newest {
			break
		}
	}
}
