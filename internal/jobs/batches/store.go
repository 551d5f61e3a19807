package batches

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs"
	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

const prefix = "batch_"

// spec is the request that created a batch. It is the payload of the first record.
type spec struct {
	Input    string            `json:"input_file_id"`
	Endpoint string            `json:"endpoint"`
	Window   string            `json:"completion_window"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Key      string            `json:"key,omitempty"`
	Holder   string            `json:"holder,omitempty"` // name of the API key that owns the batch; "": operators
}

// id returns the id of the batch that a request creates. An Idempotency-Key is scoped to the API
// key that sent it.
func (s *spec) id() string {
	if s.Key == "" {
		return prefix + strings.ToLower(rand.Text())
	}
	key := s.Key
	if s.Holder != "" {
		key = s.Holder + "\x00" + key
	}
	return prefix + jobs.ID("batch\x00" + key)[len("job-"):]
}

// endRecord is the payload of KindDone.
type endRecord struct {
	Phase  Phase   `json:"phase"`
	Output string  `json:"output_file_id,omitempty"`
	Errors string  `json:"error_file_id,omitempty"`
	Counts counts  `json:"counts"`
	Issues []issue `json:"issues,omitempty"`
}

type counts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// withRestFailed counts every line that did not complete as failed, because the error file lists
// it. This includes lines that never became jobs because the batch was cancelled or expired.
func (c counts) withRestFailed() counts {
	c.Failed = c.Total - c.Completed
	return c
}

// issue is one reason why validation failed a batch.
type issue struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty"` // from 1
	Param   string `json:"param,omitempty"`
}

// batch is the in-memory state of a batch.
type batch struct {
	id      string
	journal *journal.Writer

	mu     sync.Mutex
	spec   spec
	raw    string // payload of the first record
	state  State
	end    endRecord
	counts counts
	ready  bool // every line is settled and the files are being written
	first  uint64
	damage string

	feed *feeder // owned by the goroutine of Service.run
}

func newBatch(name string) *batch { return &batch{id: name, journal: journal.NewWriter(name)} }

// Store holds the batches in the log of a job store. Pass it to jobs.StoreConfig, then to Start.
// All methods may be called concurrently.
type Store struct {
	log  *slog.Logger
	jobs *jobs.Store // set by Start

	mu      sync.Mutex
	batches map[string]*batch
}

// NewStore returns an empty store. The job store fills it while it reads the log.
func NewStore(log *slog.Logger) *Store { return &Store{log: log, batches: map[string]*batch{}} }

func (s *Store) Owns(name string) bool { return strings.HasPrefix(name, prefix) }

type phaseRecord struct {
	Total   int  `json:"total,omitempty"`
	Expired bool `json:"expired,omitempty"`
}

func (b *batch) apply(r *journal.Record, seq uint64) error {
	n := Update{Kind: r.Kind, At: r.At}
	var spec spec
	var end endRecord
	var p phaseRecord
	var err error
	switch r.Kind {
	case KindCreated:
		err = json.Unmarshal(r.Payload, &spec)
	case KindDone:
		err = json.Unmarshal(r.Payload, &end)
		n.Phase = end.Phase
	default:
		err = json.Unmarshal(r.Payload, &p)
		n.Total, n.Expired = p.Total, p.Expired
	}
	if err != nil {
		return fmt.Errorf("%w: a record of batch %s does not decode: %v", journal.ErrDamaged, b.id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	next := b.state
	if err := next.Apply(n); err != nil {
		return err
	}
	b.state = next
	switch r.Kind {
	case KindCreated:
		b.spec, b.raw, b.first = spec, string(r.Payload), seq
	case KindValidated:
		b.counts.Total = n.Total
	case KindDone:
		b.end, b.counts = end, end.Counts
		if end.Issues == nil { // older builds did not list the lines that a cancelled batch never ran
			b.counts = b.counts.withRestFailed()
		}
	}
	return nil
}

func (s *Store) Load(name string, seq uint64, data []byte) {
	b := s.batches[name]
	if b == nil {
		b = newBatch(name)
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
		s.log.Error("jobs: damaged record", "batch", name, "error", err)
		b.damage = err.Error()
		if !b.state.Phase.Final() {
			b.state.Ended = time.Now().UnixMilli()
			b.state.Phase, b.end.Issues = Failed, []issue{{Code: "record_damaged", Message: err.Error()}}
		}
	}
}

// append writes a record of a batch.
func (s *Store) append(ctx context.Context, b *batch, kind journal.Kind, payload any) error {
	text, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	n := Update{Kind: kind, At: s.jobs.Now()}
	if e, ok := payload.(endRecord); ok {
		n.Phase = e.Phase
	}
	return s.jobs.Write(ctx, b.journal, journal.Record{Kind: kind, At: n.At, Payload: text}, func() error {
		b.mu.Lock()
		next := b.state
		b.mu.Unlock()
		if err := next.Apply(n); err != nil {
			return fmt.Errorf("batch %s: %w", b.id, err)
		}
		return nil
	}, b.apply)
}

func (s *Store) Refresh(name string, read func(*journal.Writer, func(*journal.Record, uint64) error) error) {
	b := s.get(name)
	if b == nil {
		b = newBatch(name)
	}
	_ = read(b.journal, b.apply) // it has logged its error
	b.mu.Lock()
	known := b.state.Phase != ""
	b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if known && s.batches[name] == nil {
		s.batches[name] = b
	}
}

// Retains implements jobs.PeerStore: jobs of an open batch are kept until its files are written.
func (s *Store) Retains(j *jobs.Spec) bool { return j.Batch != "" && s.open(j.Batch) }

func (s *Store) Sweep(before int64, drop func(*journal.Writer) error) error {
	for _, b := range s.list() {
		b.mu.Lock()
		old := b.state.Phase.Final() && b.state.Ended < before
		b.mu.Unlock()
		if !old {
			continue
		}
		if err := drop(b.journal); err != nil {
			return err
		}
		s.mu.Lock()
		delete(s.batches, b.id)
		s.mu.Unlock()
	}
	return nil
}

// create makes a batch. existed is true if a batch with the same key and request was already there.
func (s *Store) create(ctx context.Context, spec spec) (b *batch, existed bool, err error) {
	id := spec.id()
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, false, fmt.Errorf("jobs: %w", err)
	}
	s.mu.Lock()
	b, existed = s.batches[id]
	s.mu.Unlock()
	if !existed {
		b = newBatch(id)
		err := s.append(ctx, b, KindCreated, spec)
		if b.state.Phase == "" {
			return nil, false, err
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
		return nil, false, journal.ErrMismatch
	}
	return b, existed, nil
}

func (s *Store) get(id string) *batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.batches[id]
}

// list returns all batches, newest first.
func (s *Store) list() []*batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.batches), func(a, b *batch) int { return cmp.Compare(b.first, a.first) })
}

// open reports whether a batch exists and has not ended.
func (s *Store) open(id string) bool {
	b := s.get(id)
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.state.Phase.Final()
}

// Uses returns the id of a running batch that reads the file, or "".
func (s *Store) Uses(file string) string {
	for _, b := range s.list() {
		b.mu.Lock()
		uses := b.spec.Input == file && !b.state.Phase.Final()
		b.mu.Unlock()
		if uses {
			return b.id
		}
	}
	return ""
}

// stop keeps further lines from becoming jobs. Repeated calls have no effect.
func (s *Store) stop(ctx context.Context, b *batch, expired bool) error {
	err := s.append(ctx, b, KindStopping, phaseRecord{Expired: expired})
	if errors.Is(err, jobs.ErrOrder) || errors.Is(err, jobs.ErrFinal) {
		return nil
	}
	return err
}
