package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// job is the in-memory state of a job. Body, tokens and result stay on disk.
type job struct {
	id      string
	journal *journal.Writer
	removed bool // guarded by the journal's lock: not accepted or deleted, and removed from the store

	mu         sync.Mutex
	state      State
	head       Spec    // without Body
	prompt     string  // its first characters
	promptOnly bool    // max_tokens is 0: the response has no generated token
	answer     []int32 // first tokens of the first choice
	done       committed
	status     int             // Dead: HTTP status for the client
	body       json.RawMessage // Dead: response body for the client
	first      uint64          // number of its first message; defines the order of acceptance
	damage     string          // fault of its records; if set, nothing is appended
	changed    chan struct{}   // closed and replaced at every change
	attempts   context.CancelFunc
	running    bool      // this process is running an attempt
	pause      time.Time // no attempt starts earlier; monotonic, so setting the clock back does not prolong it
}

func newJob(id string) *job {
	return &job{id: id, journal: journal.NewWriter(id), changed: make(chan struct{})}
}

// dropped reports whether the job is removed from the store. It waits for a deletion in progress.
func (j *job) dropped() bool {
	j.journal.Lock()
	defer j.journal.Unlock()
	return j.removed
}

// snapshot is a copy of the fields that the API may return.
type snapshot struct {
	id      string
	state   State
	head    Spec
	prompt  string
	answer  []int32
	done    committed
	status  int
	body    json.RawMessage
	first   uint64
	damage  string
	changed <-chan struct{}
}

func (j *job) snapshot() snapshot {
	j.mu.Lock()
	defer j.mu.Unlock()
	return snapshot{j.id, j.state, j.head, j.prompt, j.answer, j.done, j.status, j.body, j.first, j.damage, j.changed}
}

// apply folds a record into the state. The record may come from this process or from the log.
func (j *job) apply(r *journal.Record, seq uint64) error {
	n, err := UpdateOf(r)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	next := j.state
	if err := next.Apply(n); err != nil {
		return err
	}
	switch r.Kind {
	case KindAccept:
		var s Spec
		if err := json.Unmarshal(r.Payload, &s); err != nil {
			return fmt.Errorf("%w: the request does not decode: %v", journal.ErrDamaged, err)
		}
		j.first = seq
		j.prompt = promptPreview(s.Endpoint, s.Body)
		j.promptOnly = promptOnly(s.Body)
		s.Body = nil
		j.head = s
	case KindTokens:
		if !j.promptOnly {
			j.answer = appendAnswerStart(j.answer, r)
		}
	case KindDone:
		if err := json.Unmarshal(r.Payload, &j.done); err != nil {
			return fmt.Errorf("%w: the commit does not decode: %v", journal.ErrDamaged, err)
		}
	case KindDead:
		var e endRecord
		_ = json.Unmarshal(r.Payload, &e) // UpdateOf has validated the payload
		j.status, j.body = e.Status, e.Body
	}
	j.state = next
	close(j.changed)
	j.changed = make(chan struct{})
	return nil
}

// markDamaged ends a job whose records are damaged, with an explanation.
func (j *job) markDamaged(why string, now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.damage = why
	if j.state.Phase != Completed && j.state.Phase != Cancelled {
		j.state.Phase, j.state.Code, j.state.Message = Dead, "record_damaged", why
		j.state.Ended = cmp.Or(j.state.Ended, now)
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// append writes a record and folds it in. The state is checked first, so an invalid record is never
// written. On journal.ErrConflict or an error of State.Apply the caller must read the state again.
func (s *Store) append(ctx context.Context, j *job, r journal.Record) error {
	err := s.Write(ctx, j.journal, r, func() error {
		if j.removed {
			return errRemoved
		}
		n, err := UpdateOf(&r)
		if err != nil {
			return err
		}
		j.mu.Lock()
		next, damage := j.state, j.damage
		j.mu.Unlock()
		if damage != "" {
			return fmt.Errorf("%w: %s", journal.ErrDamaged, damage)
		}
		if err := next.Apply(n); err != nil {
			return fmt.Errorf("job %s: %w", j.id, err)
		}
		return nil
	}, j.apply)
	if err != nil && j.snapshot().state.Phase.Final() { // an earlier append, whose answer was lost, has ended it
		s.deactivate(j)
	}
	return err
}

// read calls each for every record of a job, from the first. It verifies each record again, because
// the disk may have changed.
func (s *Store) read(ctx context.Context, id string, each func(*journal.Record) error) error {
	check := journal.Journal{Name: id}
	return s.log.Read(ctx, id, 0, func(seq uint64, data []byte) error {
		r, err := check.Verify(seq, data)
		if err != nil {
			return err
		}
		return each(&r)
	})
}

var errEnough = errors.New("jobs: enough")

func (s *Store) spec(ctx context.Context, id string) (Spec, error) {
	var spec Spec
	found := false
	err := s.read(ctx, id, func(r *journal.Record) error {
		found = true
		if err := json.Unmarshal(r.Payload, &spec); err != nil {
			return fmt.Errorf("%w: the request does not decode: %v", journal.ErrDamaged, err)
		}
		return errEnough
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: the records of %s are gone", journal.ErrDamaged, id)
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return spec, err
}

// result reads the committed result and verifies it.
func (s *Store) result(ctx context.Context, v snapshot) (json.RawMessage, error) {
	var out []byte
	err := s.read(ctx, v.id, func(r *journal.Record) error {
		if r.Kind == KindPart && r.Attempt == v.state.Attempt {
			out = append(out, r.Payload...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if extra := len(out) - v.done.Bytes; extra > 0 {
		out = out[extra:] // skip the parts of an earlier attempt that did not commit
	}
	if sum := sha256.Sum256(out); len(out) != v.done.Bytes || string(sum[:]) != string(v.done.Sum) {
		return nil, fmt.Errorf("%w: the result of %s has %d bytes with hash %x, but %d bytes with hash %.12x were committed", journal.ErrDamaged,
			v.id, len(out), sum[:6], v.done.Bytes, v.done.Sum)
	}
	return out, nil
}
