package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/strictjson"
)

// Spec is the request that created a job.
type Spec struct {
	Endpoint    string          `json:"endpoint"`
	Body        json.RawMessage `json:"body"`
	Key         string          `json:"key,omitempty"`   // Idempotency-Key
	Seed        uint64          `json:"seed"`            // for a body without a seed
	Drawn       bool            `json:"drawn,omitempty"` // Seed also replaces -1; false in records of older builds
	Fingerprint string          `json:"fingerprint,omitempty"`
	Adapter     string          `json:"adapter,omitempty"` // ID of the LoRA adapter that the body names
	Batch       string          `json:"batch,omitempty"`
	Line        int             `json:"line,omitempty"`   // of the batch, from 0
	Holder      string          `json:"holder,omitempty"` // name of the API key that owns the job; "": operators
}

// same compares two requests: the endpoint, and the body as canonical JSON (strictjson.Canonical).
// It does not compare the bytes of the bodies, because the store keeps a body in the form of
// json.Marshal: without white space and with <, > and & escaped.
func (s *Spec) same(other *Spec) bool {
	if s.Endpoint != other.Endpoint {
		return false
	}
	a, err := strictjson.Canonical(s.Body)
	b, otherErr := strictjson.Canonical(other.Body)
	if err != nil || otherErr != nil {
		return bytes.Equal(s.Body, other.Body)
	}
	return bytes.Equal(a, b)
}

// endRecord is the payload of Retry and Dead.
type endRecord struct {
	Code      string          `json:"code,omitempty"`
	Message   string          `json:"message,omitempty"`
	NotBefore int64           `json:"not_before,omitempty"`
	Forgiven  bool            `json:"forgiven,omitempty"`
	Status    int             `json:"status,omitempty"` // Dead: HTTP status for the client
	Body      json.RawMessage `json:"body,omitempty"`
}

// committed is the payload of Done.
type committed struct {
	Bytes int    `json:"bytes"`
	Sum   []byte `json:"sha256"`
	Usage struct {
		Prompt, Completion int
	} `json:"usage"`
}

// NewRecord returns the record of an update. Without a payload, Retry and Dead get one from the update.
func NewRecord(n Update, payload []byte) journal.Record {
	if payload == nil && (n.Kind == KindRetry || n.Kind == KindDead) {
		payload, _ = json.Marshal(endRecord{Code: n.Code, Message: n.Message, NotBefore: n.NotBefore, Forgiven: n.Forgiven})
	}
	return journal.Record{Kind: n.Kind, Attempt: n.Attempt, At: n.At, Payload: payload}
}

// UpdateOf returns the part of a record that State needs.
func UpdateOf(r *journal.Record) (Update, error) {
	n := Update{Kind: r.Kind, Attempt: r.Attempt, At: r.At}
	switch r.Kind {
	case KindTokens:
		var err error
		n.First, n.Count, err = tokensHead(r.Payload)
		return n, err
	case KindRetry, KindDead:
		var e endRecord
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			return n, fmt.Errorf("%w: the ending does not decode: %v", journal.ErrDamaged, err)
		}
		n.Code, n.Message, n.NotBefore, n.Forgiven = e.Code, e.Message, e.NotBefore, e.Forgiven
	}
	return n, nil
}
