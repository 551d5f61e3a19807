package jobs

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
)

// StoreConfig configures a store. Zero fields take their defaults.
type StoreConfig struct {
	// MaxOpen is the maximum number of waiting and running jobs. Further jobs are refused. Default
	// 100,000.
	MaxOpen int
	// Retention and MaxEnded limit the ended jobs by age (default 72 h) and number (default 20,000). The
	// oldest are dropped first.
	Retention time.Duration
	MaxEnded  int
	// FullAt is the fraction of the log's size limit above which new jobs are refused, so that
	// existing jobs can finish. Default 0.9.
	FullAt float64
	// Salvage describes damage that was removed from the log before it was opened.
	Salvage Salvage
	// Peers keep other journals in the same log, for example batches.
	Peers  []PeerStore
	Logger *slog.Logger
	Now    func() time.Time // default: the system clock
}

func (c *StoreConfig) defaults() {
	c.MaxOpen = cmp.Or(c.MaxOpen, 100_000)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.MaxEnded = cmp.Or(c.MaxEnded, 20_000)
	c.FullAt = cmp.Or(c.FullAt, 0.9)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// DefaultRetention is the default retention of ended jobs.
const DefaultRetention = 72 * time.Hour

// Salvage describes the records that damaged log files have lost.
type Salvage struct {
	Lost    []string // journals without any record left
	New     []string // the subset of Lost that was found at this start
	Touched []string // journals that lost some of their records
	Notes   []string // damage that belongs to no known journal
}

var ErrTooMany = errors.New("jobs: too many unfinished jobs")

// PeerStore keeps its own journals in the log of a Store.
type PeerStore interface {
	// Owns reports whether the journal with this name belongs to the peer.
	Owns(name string) bool
	// Load receives one message while NewStore reads the log, in log order.
	Load(name string, seq uint64, data []byte)
	// Refresh reads a journal to which another process has written.
	// An ErrDamaged of read means that its records do not follow those that are known.
	Refresh(name string, read func(w *journal.Writer, apply func(*journal.Record, uint64) error) error)
	// Retains reports whether an ended job must be kept.
	Retains(s *Spec) bool
	// Sweep drops the journals that ended before a time in Unix milliseconds.
	Sweep(before int64, drop func(*journal.Writer) error) error
}

// peer returns the peer that owns a journal, or nil.
func (s *Store) peer(name string) PeerStore {
	if i := slices.IndexFunc(s.cfg.Peers, func(p PeerStore) bool { return p.Owns(name) }); i >= 0 {
		return s.cfg.Peers[i]
	}
	return nil
}

// Store holds the jobs of a journal.Log. All methods may be called concurrently.
type Store struct {
	cfg StoreConfig
	log journal.Log

	mu      sync.Mutex
	jobs    map[string]*job
	active  []entry  // jobs that have not ended, ordered by first
	pending int      // jobs whose acceptance is being written
	damages []string // damage that belongs to no job
	trouble string   // error of the last write; "": it succeeded
	usage   journal.Usage
	last    uint64 // number of the newest message, which is never dropped
	scanned uint64 // number of the newest message that NewStore read
	anchor  uint64 // number of the newest message of the anchor journal
	wake    chan struct{}

	followed atomic.Bool  // other processes may write to the log
	cut      atomic.Bool  // the log has lost its tail
	untraced atomic.Int64 // number of jobs that are lost without a trace
}

// NewStore reads the log. Damage does not stop it: the affected jobs become dead with an
// explanation, and Damage lists the rest.
func NewStore(ctx context.Context, l journal.Log, cfg StoreConfig) (*Store, error) {
	cfg.defaults()
	s := &Store{cfg: cfg, log: l, jobs: map[string]*job{}, wake: make(chan struct{}, 1)}
	err := l.Scan(ctx, func(name string, seq uint64, data []byte) error {
		s.last = max(s.last, seq)
		if name == anchorName {
			s.anchor = seq
			return nil
		}
		if b := s.peer(name); b != nil {
			b.Load(name, seq, data)
		} else {
			s.load(name, seq, data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.scanned = s.last
	s.salvaged()
	if s.usage, err = l.Usage(ctx); err != nil {
		return nil, err
	}
	for _, j := range s.jobs {
		if !j.state.Phase.Final() {
			s.activate(j)
		}
	}
	return s, nil
}

// salvaged notes the damage in Salvage that the journals do not show. Jobs lost without a trace are
// counted by Lost. A job that lost its newest record continues from the previous one.
func (s *Store) salvaged() {
	for _, text := range s.cfg.Salvage.Notes {
		s.recordDamage(text)
	}
	for _, name := range s.cfg.Salvage.Lost {
		if !isJob(name) && name != anchorName {
			s.recordDamage("the journal " + name + " is lost: its records were damaged")
		}
	}
	for _, name := range s.cfg.Salvage.Touched {
		if j := s.jobs[name]; j != nil && j.damage == "" || s.peer(name) != nil {
			s.recordDamage("the newest record of " + name + " was damaged; it continues from the previous record")
		}
	}
}

// isJob reports whether a journal name belongs to a job rather than to a batch.
func isJob(name string) bool {
	return strings.HasPrefix(name, "job-") || strings.HasPrefix(name, "resp_")
}

// load receives one message of a job, in log order.
func (s *Store) load(name string, seq uint64, data []byte) {
	j := s.jobs[name]
	if j == nil {
		j = newJob(name)
		j.first = seq
		s.jobs[name] = j
	}
	if j.damage != "" {
		return
	}
	r, err := j.journal.Verify(seq, data)
	if err == nil {
		err = j.apply(&r, seq)
		if err != nil && !errors.Is(err, journal.ErrDamaged) {
			err = fmt.Errorf("record %d of %s (message %d): %w: %v", r.Number, name, seq, journal.ErrDamaged, err)
		}
	}
	if err != nil {
		s.cfg.Logger.Error("jobs: damaged record", "job", name, "error", err)
		j.markDamaged(err.Error(), s.Now())
	}
}

// failed records why the log could not be written. Refusals by a journal's rules are not failures
// of the log.
func (s *Store) failed(err error) error {
	if Superseded(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble == "" {
		s.cfg.Logger.Error("jobs: the store cannot be written", "error", err)
	}
	s.trouble = err.Error()
	return err
}

func (s *Store) writable(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != "" {
		s.cfg.Logger.Info("jobs: the store can be written again")
	}
	s.trouble = ""
	s.last = max(s.last, seq)
}

// Write appends a record to a journal of the log and applies it. check runs first, so an invalid
// record is never written. apply receives the record, and before it any records that other
// processes have appended.
func (s *Store) Write(ctx context.Context, w *journal.Writer, r journal.Record, check func() error,
	apply func(*journal.Record, uint64) error) error {
	w.Lock()
	defer w.Unlock()
	foreign := func(r *journal.Record) error { return apply(r, w.Last()) }
	if w.MustCatchUp() {
		if err := w.Read(ctx, s.log, foreign); err != nil {
			return s.failed(err)
		}
	}
	if err := check(); err != nil {
		return err
	}
	seq, err := w.Append(ctx, s.log, &r, foreign)
	if err != nil {
		return s.failed(err)
	}
	s.writable(seq)
	return apply(&r, seq)
}

// LastError returns the error of the last write, or "".
func (s *Store) LastError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// Damage lists damage of the log, except that of damaged jobs, which report it themselves.
func (s *Store) Damage() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.damages)
}

// Lost returns the number of jobs lost to damage, whether or not any of their records remain, and
// the number of other damages of the log.
func (s *Store) Lost() (dead, other int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.damage != "" {
			dead++
		}
	}
	for _, name := range s.cfg.Salvage.Lost {
		if isJob(name) && s.jobs[name] == nil {
			dead++
		}
	}
	return dead + int(s.untraced.Load()), len(s.damages)
}

// Last returns the number of the newest acknowledged message.
func (s *Store) Last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// ID derives a job id from the idempotency key, so that the log itself refuses a second job with
// the key. Without a key it is random.
func ID(key string) string {
	if key == "" {
		return "job-" + strings.ToLower(rand.Text())
	}
	sum := sha256.Sum256([]byte("shoal job\x00" + key))
	return "job-" + hex.EncodeToString(sum[:16])
}

// id returns the id of the job that a request creates. An Idempotency-Key is scoped to the API key
// that sent it.
func (s *Spec) id() string {
	if s.Key != "" && s.Holder != "" {
		return ID(s.Holder + "\x00" + s.Key)
	}
	return ID(s.Key)
}

// Accept creates a job. After a nil error the job is on disk. existed reports whether a job with
// the same key and request was already there.
func (s *Store) Accept(ctx context.Context, spec Spec) (v snapshot, existed bool, err error) {
	return s.accept(ctx, spec.id(), spec)
}

func (s *Store) accept(ctx context.Context, id string, spec Spec) (v snapshot, existed bool, err error) {
	payload, err := json.Marshal(spec)
	if err != nil {
		return v, false, fmt.Errorf("jobs: %w", err)
	}
	s.mu.Lock()
	j := s.jobs[id]
	if j == nil {
		if err := s.checkRoom(); err != nil {
			s.mu.Unlock()
			return v, false, err
		}
		j = newJob(id)
		s.jobs[id] = j
	}
	s.pending++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.pending--
		s.mu.Unlock()
	}()
	again := func() (snapshot, bool, error) {
		stored, err := s.spec(ctx, id)
		switch {
		case err == nil && !stored.same(&spec):
			err = journal.ErrMismatch
		case errors.Is(err, journal.ErrDamaged) && j.dropped(): // it was deleted meanwhile
			return s.accept(ctx, id, spec)
		}
		return j.snapshot(), true, err
	}
	if j.snapshot().state.Phase != "" {
		return again()
	}
	err = s.append(ctx, j, journal.Record{Kind: KindAccept, At: s.Now(), Payload: payload})
	switch {
	case err == nil:
		s.activate(j)
		s.Wake()
		return j.snapshot(), false, nil
	case errors.Is(err, errRemoved): // another request removed the entry after it was looked up
		return s.accept(ctx, id, spec)
	case j.snapshot().state.Phase != "": // a concurrent request with the same key won, or an earlier one whose answer was lost
		if !j.snapshot().state.Phase.Final() {
			s.activate(j)
		}
		return again()
	}
	s.removeEntry(j)
	return v, false, err
}

// errRemoved means that the entry of a job was removed.
var errRemoved = errors.New("jobs: entry removed")

// checkRoom returns an error if no further job may be accepted. s.mu must be held.
func (s *Store) checkRoom() error {
	if n := len(s.active) + s.pending; n >= s.cfg.MaxOpen {
		return fmt.Errorf("%w: %d of at most %d", ErrTooMany, n, s.cfg.MaxOpen)
	}
	if u := s.usage; u.Limit > 0 && float64(u.Bytes) >= s.cfg.FullAt*float64(u.Limit) {
		return fmt.Errorf("%w: %d of %d bytes", journal.ErrFull, u.Bytes, u.Limit)
	}
	return nil
}

// removeEntry removes the entry of a job that was not accepted.
func (s *Store) removeEntry(j *job) {
	j.journal.Lock()
	defer j.journal.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.jobs[j.id] == j && j.snapshot().state.Phase == "" {
		j.removed = true
		delete(s.jobs, j.id)
	}
}

// Now returns the time for new records, in Unix milliseconds.
func (s *Store) Now() int64 { return s.cfg.Now().UnixMilli() }

// Wake signals the job runner that a job may be due.
func (s *Store) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Store) job(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[id]; j != nil && j.snapshot().state.Phase != "" {
		return j
	}
	return nil
}

// list returns snapshots of all jobs in the order of acceptance.
func (s *Store) list() []snapshot {
	s.mu.Lock()
	out := make([]snapshot, 0, len(s.jobs))
	for _, j := range s.jobs {
		if v := j.snapshot(); v.state.Phase != "" {
			out = append(out, v)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b snapshot) int { return cmp.Compare(a.first, b.first) })
	return out
}

func (s *Store) end(ctx context.Context, j *job, r journal.Record) error {
	if err := s.append(ctx, j, r); err != nil {
		return err
	}
	s.deactivate(j)
	s.Wake()
	return nil
}

// anchorName is a journal whose messages only mark the end of the log. One is written before the
// journal with the newest message is dropped. So the newest message always exists, and Dir.Attach
// detects a log that has lost its tail.
const anchorName = "anchor"

// DropJournal deletes a journal.
func (s *Store) DropJournal(ctx context.Context, j *journal.Writer) error {
	j.Lock()
	defer j.Unlock()
	return s.dropJournal(ctx, j)
}

// dropJournal is DropJournal with the lock of the journal held.
func (s *Store) dropJournal(ctx context.Context, j *journal.Writer) error {
	if err := s.anchorAfter(ctx, j.Last()); err != nil {
		return err
	}
	return s.log.Drop(ctx, j.Name)
}

// DropThrough deletes the messages of a journal up to and including message seq.
func (s *Store) DropThrough(ctx context.Context, name string, seq uint64) error {
	if err := s.anchorAfter(ctx, seq); err != nil {
		return err
	}
	return s.log.DropThrough(ctx, name, seq)
}

// anchorAfter writes an anchor if message seq is the newest one.
func (s *Store) anchorAfter(ctx context.Context, seq uint64) error {
	s.mu.Lock()
	newest, anchor := seq >= s.last, s.anchor
	s.mu.Unlock()
	if !newest {
		return nil
	}
	at, err := s.log.Append(ctx, anchorName, anchor, []byte(anchorName))
	if errors.Is(err, journal.ErrConflict) {
		at, err = s.anchorOfOthers(ctx, anchor, seq)
	}
	if err != nil {
		return s.failed(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.anchor = max(s.last, at), max(s.anchor, at)
	return nil
}

// anchorOfOthers returns an anchor after message seq when the newest one is not the known one: another process has
// written it, or the answer to an append was lost.
func (s *Store) anchorOfOthers(ctx context.Context, known, seq uint64) (at uint64, err error) {
	at = known
	err = s.log.Read(ctx, anchorName, known, func(n uint64, _ []byte) error {
		at = n
		return nil
	})
	if err != nil || at > seq {
		return at, err
	}
	return s.log.Append(ctx, anchorName, at, []byte(anchorName))
}

// ReadJournal calls each, in order, for all messages of a journal as the log has them.
func (s *Store) ReadJournal(ctx context.Context, name string, each func(seq uint64, data []byte) error) error {
	return s.log.Read(ctx, name, 0, each)
}

// drop deletes a job that has ended.
func (s *Store) drop(ctx context.Context, id string) error {
	j := s.job(id)
	if j == nil {
		return nil
	}
	j.journal.Lock()
	defer j.journal.Unlock()
	if err := s.dropJournal(ctx, j.journal); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j.removed = true
	delete(s.jobs, id)
	return nil
}

// retained reports whether a job must be kept for another journal, such as that of its batch.
func (s *Store) retained(head *Spec) bool {
	return slices.ContainsFunc(s.cfg.Peers, func(p PeerStore) bool { return p.Retains(head) })
}

// sweep enforces the limits on ended jobs and measures the log.
func (s *Store) sweep(ctx context.Context) error {
	ended := slices.DeleteFunc(s.list(), func(v snapshot) bool { return !v.state.Phase.Final() || s.retained(&v.head) })
	slices.SortFunc(ended, func(a, b snapshot) int { return cmp.Compare(a.state.Ended, b.state.Ended) })
	limit := s.Now() - s.cfg.Retention.Milliseconds()
	extra := len(ended) - s.cfg.MaxEnded
	for i, v := range ended {
		if i >= extra && v.state.Ended >= limit {
			break
		}
		if err := s.drop(ctx, v.id); err != nil {
			return err
		}
	}
	var failed error
	for _, p := range s.cfg.Peers {
		failed = errors.Join(failed, p.Sweep(limit, func(w *journal.Writer) error { return s.DropJournal(ctx, w) }))
	}
	u, err := s.log.Usage(ctx)
	if err != nil {
		return errors.Join(failed, err)
	}
	s.mu.Lock()
	s.usage = u
	s.mu.Unlock()
	return failed
}

// activate adds a job to the unfinished ones.
func (s *Store) activate(j *job) {
	first := j.snapshot().first
	s.mu.Lock()
	defer s.mu.Unlock()
	at, there := slices.BinarySearchFunc(s.active, first, byFirst)
	if !there {
		s.active = slices.Insert(s.active, at, entry{first, j})
	}
}

func (s *Store) deactivate(j *job) {
	first := j.snapshot().first
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, there := slices.BinarySearchFunc(s.active, first, byFirst); there {
		s.active = slices.Delete(s.active, at, at+1)
	}
}

// entry is a job and the number of its first message.
type entry struct {
	first uint64
	job   *job
}

func byFirst(e entry, first uint64) int { return cmp.Compare(e.first, first) }

// unfinished calls each for every unfinished job, in the order of acceptance, until it returns
// false.
func (s *Store) unfinished(each func(*job) bool) {
	s.mu.Lock()
	all := slices.Clone(s.active)
	s.mu.Unlock()
	for _, e := range all {
		if !each(e.job) {
			return
		}
	}
}
