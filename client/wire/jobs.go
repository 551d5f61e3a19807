package wire

import "encoding/json"

// Job is a job in answers of /v1/jobs. Times are seconds since 1970.
type Job struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	State       string          `json:"state"` // queued, running, completed, dead, cancelled
	Endpoint    string          `json:"endpoint"`
	CreatedAt   int64           `json:"created_at"`
	StartedAt   int64           `json:"started_at,omitempty"`
	EndedAt     int64           `json:"ended_at,omitempty"`
	Attempt     uint32          `json:"attempt"`
	Failures    int             `json:"failures,omitempty"`
	NextAttempt int64           `json:"next_attempt_at,omitempty"`
	Events      int             `json:"events"`
	Prompt      string          `json:"prompt_preview,omitempty"` // beginning of its prompt or newest message, in one line
	Answer      string          `json:"answer_preview,omitempty"` // beginning of its first choice so far, in one line
	Key         string          `json:"idempotency_key,omitempty"`
	Batch       string          `json:"batch_id,omitempty"`
	Durability  string          `json:"durability"` // single, or replicated
	Replicas    int             `json:"replicas"`   // copies that are up to date now
	Error       *JobError       `json:"error"`
	Result      json.RawMessage `json:"result,omitempty"` // the answer of the endpoint; not in lists
}

// JobError is the reason why a job is dead, or why its last attempt failed.
type JobError struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Status  int             `json:"status,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"` // the error answer of the endpoint
}

// JobList is a page of /v1/jobs, the newest first.
type JobList struct {
	Object  string         `json:"object"`
	Data    []Job          `json:"data"`
	HasMore bool           `json:"has_more"`
	Counts  map[string]int `json:"counts"` // number of jobs that the key may read, by state
	Store   string         `json:"store"`  // ok, or the reason why the store cannot be written
	Damage  []string       `json:"damage,omitempty"`
}

// JobEvent is one event of a job's stream. Index counts the events of the job and is the SSE id;
// from=Index+1 continues after it.
type JobEvent struct {
	Object  string   `json:"object"` // job.event
	Index   int      `json:"index"`
	Choice  int      `json:"choice"`
	Token   *int32   `json:"token"` // null: an end without a token
	Text    string   `json:"text"`
	Logprob *float32 `json:"logprob,omitempty"`
	Finish  *string  `json:"finish_reason"`
}

// JobEnd follows the last event of a job.
type JobEnd struct {
	Object string    `json:"object"` // job.end
	State  string    `json:"state"`
	Events int       `json:"events"`
	Error  *JobError `json:"error"`
}
