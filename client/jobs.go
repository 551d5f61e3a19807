package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
)

// Submit makes a job of a request: the body of /v1/completions or /v1/chat/completions. It returns when
// the job is on disk. A second request with the same key returns the same job, so Submit repeats a
// request without an answer. An empty key is replaced by a random one.
func (c *Client) Submit(ctx context.Context, key string, body any) (*wire.Job, error) {
	if key == "" {
		key = rand.Text()
	}
	return get[wire.Job](ctx, c, http.MethodPost, "/v1/jobs", http.Header{"Idempotency-Key": {key}}, body)
}

// Job returns the progress of a job, with its result once it exists.
func (c *Client) Job(ctx context.Context, id string) (*wire.Job, error) {
	return get[wire.Job](ctx, c, http.MethodGet, "/v1/jobs/"+url.PathEscape(id), nil, nil)
}

// Page selects jobs of the list. A zero field does not restrict the list.
type Page struct {
	State string // queued, running, completed, dead or cancelled
	Batch string // id of a batch
	After string // id of the last job of the previous page
	Limit int    // default 20, at most 1000
}

// Jobs lists jobs, the newest first.
func (c *Client) Jobs(ctx context.Context, p Page) (*wire.JobList, error) {
	q := url.Values{}
	for name, value := range map[string]string{"state": p.State, "batch_id": p.Batch, "after": p.After} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if p.Limit > 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	return get[wire.JobList](ctx, c, http.MethodGet, "/v1/jobs?"+q.Encode(), nil, nil)
}

// Cancel ends a job; a job that has ended does not change.
func (c *Client) Cancel(ctx context.Context, id string) (*wire.Job, error) {
	return get[wire.Job](ctx, c, http.MethodDelete, "/v1/jobs/"+url.PathEscape(id), nil, nil)
}

// Watch yields the events of a job from an index on, and ends with the job. A stream that breaks is
// continued after the last event, also at a restarted coordinator, so that no event is missed or
// repeated. An error is the last value.
func (c *Client) Watch(ctx context.Context, id string, from int) iter.Seq2[wire.JobEvent, error] {
	return func(yield func(wire.JobEvent, error) bool) {
		for {
			err := c.follow(ctx, fmt.Sprintf("/v1/jobs/%s/events?from=%d", url.PathEscape(id), from), func(data []byte) error {
				if string(data) == "[DONE]" {
					return errEnough
				}
				var e struct {
					wire.JobEvent
					Error *wire.JobError
				}
				if err := json.Unmarshal(data, &e); err != nil {
					return fmt.Errorf("client: an event of job %s is not JSON: %w", id, err)
				}
				switch {
				case e.Object == "job.end":
					return nil
				case e.Object != "job.event" || e.Index != from:
					return fmt.Errorf("client: want event %d of job %s, got %.200s", from, id, data)
				}
				from++
				if !yield(e.JobEvent, nil) {
					return errEnough
				}
				return nil
			})
			switch {
			case errors.Is(err, errEnough):
				return
			case !errors.Is(err, ErrStreamEnded) || c.RetryTimeout == 0:
				yield(wire.JobEvent{}, err)
				return
			}
			select {
			case <-ctx.Done(): // follow returns the error
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

// Failed is the error of a job that ended without a result.
type Failed struct{ Job *wire.Job }

func (e *Failed) Error() string {
	text := fmt.Sprintf("job %s is %s", e.Job.ID, e.Job.State)
	if p := e.Job.Error; p != nil {
		text += ": " + p.Message
	}
	return text
}

// Result waits for a job's end and returns the answer of its endpoint, or [Failed].
func (c *Client) Result(ctx context.Context, id string) (json.RawMessage, error) {
	for {
		j, err := c.Job(ctx, id)
		switch {
		case err != nil:
			return nil, err
		case j.State == "completed":
			return j.Result, nil
		case j.State == "dead", j.State == "cancelled":
			return nil, &Failed{j}
		}
		for _, err := range c.Watch(ctx, id, j.Events) {
			if err != nil {
				return nil, err
			}
		}
	}
}
