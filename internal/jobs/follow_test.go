package jobs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// A coordinator that has lost its lease without noticing accepts and cancels jobs. Processes that
// follow the log receive all of it.
func TestFollowAppliesRecordsOfOthers(t *testing.T) {
	l := journaltest.NewMemoryLog()
	old, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	before, _, err := old.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":0}`)})
	if err != nil {
		t.Fatal(err)
	}
	next, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); next.Follow(ctx) }()
	late, _, err := old.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if err := old.end(t.Context(), old.job(before.id), journal.Record{Kind: KindCancel, At: 1}); err != nil {
		t.Fatal(err)
	}
	mine, _, err := next.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":2}`)})
	if err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 2*time.Minute, "all jobs of both processes", func() (bool, string) {
		j, phase := next.job(late.id), next.job(before.id).snapshot().state.Phase
		waiting, total := next.Count()
		return j != nil && phase == Cancelled && waiting == 2 && total == 3 && next.job(mine.id) != nil,
			fmt.Sprintf("the late job is known: %v, the cancelled one: %s, %d of %d jobs wait", j != nil, phase, waiting, total)
	})
	again, existed, err := next.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"})
	if err != nil || !existed || again.id != late.id {
		t.Errorf("the key of the late job gives %s, existed %v, %v", again.id, existed, err)
	}
	stop()
	<-done
}

// unfollowed is a log whose Follow fails, as when its server has died. Its reads can be made to
// fail too.
type unfollowed struct {
	journal.Log
	dumb atomic.Bool
}

func (l *unfollowed) Follow(ctx context.Context, _ uint64, _ func(string, uint64)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l *unfollowed) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if l.dumb.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.Log.Read(ctx, name, after, each)
}

// A job that another process has accepted is found by Lookup before Follow reports it, and it runs.
// An unknown job is not found. A log that does not answer is an error, not a missing job.
func TestAskedBeforeHeard(t *testing.T) {
	l := &unfollowed{Log: journaltest.NewMemoryLog()}
	old, err := NewStore(t.Context(), l.Log, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	next, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	late, _, err := old.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	v := &Service{store: next}
	if j, err := v.lookup(t.Context(), late.id); j != nil || err != nil {
		t.Errorf("a log of one process was read: %v, %v", j, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); next.Follow(ctx) }()
	defer func() { stop(); <-done }()
	testutil.Eventually(t, 2*time.Minute, "the log is followed", func() (bool, string) { return next.followed.Load(), "" })
	for _, none := range []string{"job-none", "anchor", "", "*", ">", "a.b", "job ä"} {
		if j, err := v.lookup(t.Context(), none); j != nil || err != nil {
			t.Errorf("job %q: %v, %v", none, j, err)
		}
	}
	if _, total := next.Count(); total != 0 {
		t.Errorf("%d jobs of those that are not there", total)
	}
	hurried, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	l.dumb.Store(true)
	if j, err := v.lookup(hurried, late.id); j != nil || err == nil {
		t.Errorf("of a log without an answer: %v, %v", j, err)
	}
	l.dumb.Store(false)
	if j, err := v.lookup(t.Context(), late.id); j == nil || err != nil {
		t.Errorf("a job that is there: %v, %v", j, err)
	}
	if waiting, total := next.Count(); waiting != 1 || total != 1 {
		t.Errorf("%d of %d jobs wait", waiting, total)
	}
}

// lostAnswers is a log that loses the answer to its first append: the message is stored, but the
// writer neither gets an answer nor finds the message until ctx ends.
type lostAnswers struct {
	journal.Log
	once   sync.Once
	stored chan uint64
}

func (l *lostAnswers) Append(ctx context.Context, name string, after uint64, data []byte) (seq uint64, err error) {
	seq, err = l.Log.Append(ctx, name, after, data)
	l.once.Do(func() {
		l.stored <- seq
		<-ctx.Done()
		err = ctx.Err()
	})
	return seq, err
}

func (l *lostAnswers) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return l.Log.Read(ctx, name, after, each)
}

// A client's request is given up while its job is being written, and Follow reports the stored job
// at that moment. A repeated request gets the running job, not a second one over the same records.
func TestGivenUpAndThere(t *testing.T) {
	for range 50 {
		l := &lostAnswers{Log: journaltest.NewMemoryLog(), stored: make(chan uint64, 1)}
		s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		spec := Spec{Endpoint: "e", Body: []byte(`{}`), Key: "k"}
		ctx, giveUp := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, _ = s.Accept(ctx, spec) // may succeed if Follow reported the job first
		})
		seq := <-l.stored
		wg.Go(func() { s.refresh(t.Context(), ID(spec.Key), seq) })
		time.Sleep(100 * time.Microsecond) // usually enough for it to wait for the journal
		giveUp()
		wg.Wait()
		v, existed, err := s.Accept(t.Context(), spec)
		if err != nil || !existed {
			t.Fatalf("asked again: existed %v, %v", existed, err)
		}
		s.unfinished(func(j *job) bool {
			if j != s.job(v.id) {
				t.Fatal("the job to run is not the one of the API")
			}
			return true
		})
		if waiting, _ := s.Count(); waiting != 1 {
			t.Fatalf("%d jobs wait", waiting)
		}
	}
}

// unread is a log some of whose reads fail, as during a leader election.
type unread struct {
	journal.Log
	fails atomic.Int32
}

func (l *unread) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	if l.fails.Add(-1) >= 0 {
		return context.DeadlineExceeded
	}
	return l.Log.Read(ctx, name, after, each)
}

// Follow reports a journal once. A read that fails then is repeated later.
func TestHeardAndNotRead(t *testing.T) {
	l := &unread{Log: journaltest.NewMemoryLog()}
	other, err := NewStore(t.Context(), l.Log, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := other.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	l.fails.Store(1)
	s.refresh(t.Context(), v.id, v.first)
	if j := s.job(v.id); j == nil || j.snapshot().state.Phase != Queued {
		t.Error("a job of another process is unknown and will never be reported again")
	}
}

// journal.Copy replaces the destination with exact copies of the journals.
func TestCopy(t *testing.T) {
	from, to := journaltest.NewMemoryLog(), journaltest.NewMemoryLog()
	a, err := NewStore(t.Context(), from, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for range 3 {
		v, _, err := a.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{}`)})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, v.id)
	}
	if err := a.append(t.Context(), a.job(ids[1]), journal.Record{Kind: KindStart, Attempt: 1, At: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Append(t.Context(), ids[0], 0, []byte("of a copy that was cut short")); err != nil {
		t.Fatal(err)
	}
	if n, err := journal.Copy(t.Context(), from, to); n != 4 || err != nil {
		t.Fatalf("%d messages, %v", n, err)
	}
	b, err := NewStore(t.Context(), to, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		want, got := a.job(id).snapshot().state, b.job(id).snapshot()
		if got.state != want || got.damage != "" {
			t.Errorf("job %d is %+v (%s), was %+v", i, got.state, got.damage, want)
		}
	}
}
