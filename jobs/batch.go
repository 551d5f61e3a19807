package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
)

const batchPrefix = "batch_"

// batchSpec is a batch as it was asked for, the payload of its first record.
type batchSpec struct {
	Input    string            `json:"input_file_id"`
	Endpoint string            `json:"endpoint"`
	Window   string            `json:"completion_window"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Key      string            `json:"key,omitempty"`
}

// batchEnd is the payload of BatchDone.
type batchEnd struct {
	Phase  BatchPhase   `json:"phase"`
	Output string       `json:"output_file_id,omitempty"`
	Errors string       `json:"error_file_id,omitempty"`
	Counts batchCounts  `json:"counts"`
	Issues []batchIssue `json:"issues,omitempty"`
}

type batchCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// batchIssue is why a batch failed before it began.
type batchIssue struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty"` // from 1
	Param   string `json:"param,omitempty"`
}

// batch is what is kept in memory of a batch.
type batch struct {
	id      string
	journal journal

	mu     sync.Mutex
	spec   batchSpec
	raw    string // the first payload
	state  BatchState
	end    batchEnd
	counts batchCounts
	ready  bool // every line is settled; the files are being written
	first  uint64
	damage string

	feed *feeder // of the goroutine that runs batches
}

type batchPayload struct {
	Total   int  `json:"total,omitempty"`
	Expired bool `json:"expired,omitempty"`
}

func (b *batch) apply(r *Record, seq uint64) error {
	n := BatchNote{Kind: r.kind, At: r.at}
	var spec batchSpec
	var end batchEnd
	var p batchPayload
	var err error
	switch r.kind {
	case KindBatch:
		err = json.Unmarshal(r.payload, &spec)
	case KindBatchDone:
		err = json.Unmarshal(r.payload, &end)
		n.Phase = end.Phase
	default:
		err = json.Unmarshal(r.payload, &p)
		n.Total, n.Expired = p.Total, p.Expired
	}
	if err != nil {
		return fmt.Errorf("%w: a record of batch %s does not decode: %v", ErrDamaged, b.id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.state
	if err := next.Apply(n); err != nil {
		return err
	}
	b.state = next
	switch r.kind {
	case KindBatch:
		b.spec, b.raw, b.first = spec, string(r.payload), seq
	case KindValidated:
		b.counts.Total = n.Total
	case KindBatchDone:
		b.end, b.counts = end, end.Counts
	}
	return nil
}

// loadBatch takes one message of a batch in the order of the log.
func (s *Store) loadBatch(name string, seq uint64, data []byte) {
	b := s.batches[name]
	if b == nil {
		b = &batch{id: name, journal: journal{Journal: Journal{Name: name}}}
		s.batches[name] = b
	}
	if b.damage != "" {
		return
	}
	r, err := b.journal.Verify(seq, data)
	if err == nil {
		err = b.apply(&r, seq)
	}
	if err != nil {
		s.cfg.Logger.Error("jobs: damaged record", "batch", name, "error", err)
		b.damage = err.Error()
		if !b.state.Phase.Final() {
			b.state.Ended = s.now()
			b.state.Phase, b.end.Issues = BatchFailed, []batchIssue{{Code: "record_damaged", Message: err.Error()}}
		}
	}
}

// appendBatch writes a record of a batch.
func (s *Store) appendBatch(ctx context.Context, b *batch, kind Kind, payload any) error {
	text, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	b.journal.write.Lock()
	defer b.journal.write.Unlock()
	foreign := func(r *Record) error { return b.apply(r, b.journal.last) }
	if b.journal.doubt {
		if err := b.journal.catchUp(ctx, s.log, foreign); err != nil {
			return s.failed(err)
		}
	}
	n := BatchNote{Kind: kind, At: s.now()}
	if e, ok := payload.(batchEnd); ok {
		n.Phase = e.Phase
	}
	b.mu.Lock()
	next := b.state
	b.mu.Unlock()
	if err := next.Apply(n); err != nil {
		return fmt.Errorf("batch %s: %w", b.id, err)
	}
	r := Record{kind: kind, at: n.At, payload: text}
	seq, err := b.journal.append(ctx, s.log, &r, foreign)
	if err != nil {
		return s.failed(err)
	}
	s.works(seq)
	return b.apply(&r, seq)
}

// createBatch makes a batch, or finds the one of the same key and request.
func (s *Store) createBatch(ctx context.Context, spec batchSpec) (*batch, error) {
	id := batchPrefix + newID()
	if spec.Key != "" {
		id = batchPrefix + jobID("batch\x00" + spec.Key)[len("job-"):]
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	s.mu.Lock()
	b := s.batches[id]
	s.mu.Unlock()
	if b == nil {
		b = &batch{id: id, journal: journal{Journal: Journal{Name: id}}}
		err := s.appendBatch(ctx, b, KindBatch, spec)
		if b.state.Phase == "" {
			return nil, err
		}
		s.mu.Lock()
		if s.batches[id] == nil {
			s.batches[id] = b
		}
		b = s.batches[id]
		s.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.raw != string(text) {
		return nil, ErrMismatch
	}
	return b, nil
}

func (s *Store) batch(id string) *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batches[id]
}

// listBatches is all batches, the newest first.
func (s *Store) listBatches() []*batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*batch, 0, len(s.batches))
	for _, b := range s.batches {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *batch) int {
		if a.first > b.first {
			return -1
		}
		return 1
	})
	return out
}

func (s *Store) batchOpen(id string) bool {
	b := s.batch(id)
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.state.Phase.Final()
}

// batchOf names a batch that still reads a file.
func (s *Store) batchOf(file string) string {
	for _, b := range s.listBatches() {
		b.mu.Lock()
		uses := b.spec.Input == file && !b.state.Phase.Final()
		b.mu.Unlock()
		if uses {
			return b.id
		}
	}
	return ""
}

// stopBatch lets no more lines begin. Twice is once.
func (s *Store) stopBatch(ctx context.Context, b *batch, expired bool) error {
	err := s.appendBatch(ctx, b, KindStopping, batchPayload{Expired: expired})
	if errors.Is(err, ErrOrder) || errors.Is(err, ErrFinal) {
		return nil
	}
	return err
}
