package jobs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
)

func TestStateOverTheLifeOfAJob(t *testing.T) {
	var s State
	rules := Rules{MaxFailures: 3, Backoff: time.Second, MaxBackoff: 3 * time.Second}
	rules.Defaults()
	ok := func(n Update) {
		t.Helper()
		if err := s.Apply(n); err != nil {
			t.Fatalf("%+v: %v", n, err)
		}
	}
	no := func(n Update, want error) {
		t.Helper()
		before := s
		if err := s.Apply(n); !errors.Is(err, want) || s != before {
			t.Fatalf("%+v: %v, want %v", n, err, want)
		}
	}
	no(Update{Kind: KindStart, Attempt: 1}, ErrOrder)
	ok(Update{Kind: KindAccept, At: 5})
	no(Update{Kind: KindAccept}, ErrOrder)
	no(Update{Kind: KindTokens, Count: 1}, ErrOrder)
	ok(Update{Kind: KindStart, Attempt: 1, At: 6})
	no(Update{Kind: KindTokens, Attempt: 1, First: 1, Count: 1}, ErrOrder)
	ok(Update{Kind: KindTokens, Attempt: 1, Count: 2})
	fail := func(at int64, f Failure) Update {
		t.Helper()
		if n, ok := s.Fail(s.Attempt-1, at, f, rules); ok {
			t.Fatalf("an attempt that is not the newest has the note %+v", n)
		}
		n, ok := s.Fail(s.Attempt, at, f, rules)
		if !ok {
			t.Fatal("the running attempt has no note")
		}
		return n
	}
	f := fail(10_000, Failure{Code: "x"})
	if f.Kind != KindRetry || f.NotBefore != 11_000 {
		t.Fatalf("%+v", f)
	}
	ok(f)
	if n, ok := s.Fail(s.Attempt, 10_000, Failure{Code: "x"}, rules); ok {
		t.Fatalf("a failed attempt has the note %+v", n)
	}
	if _, now := s.Begin(10_999, rules); now {
		t.Fatal("it begins before its pause is over")
	}
	if _, now := s.Begin(11_000-3_600_000, rules); !now {
		t.Fatal("the clock was set back by an hour, and it waits for an hour")
	}
	n, _ := s.Begin(11_000, rules)
	ok(n)
	no(Update{Kind: KindTokens, Attempt: 1, First: 2, Count: 1}, ErrFenced)
	no(Update{Kind: KindDone, Attempt: 1}, ErrFenced)
	ok(fail(20_000, Failure{Code: "away", Forgiven: true}))
	n, _ = s.Begin(30_000, rules)
	ok(n)
	if f := fail(30_000, Failure{Code: "x"}); f.Kind != KindRetry || f.NotBefore != 32_000 {
		t.Fatalf("second failure: %+v", f)
	} else {
		ok(f)
	}
	n, _ = s.Begin(40_000, rules)
	ok(n)
	f = fail(40_000, Failure{Code: "x"})
	if f.Kind != KindDead {
		t.Fatalf("third failure: %+v", f)
	}
	ok(f)
	no(Update{Kind: KindDone, Attempt: s.Attempt}, ErrFinal)
	no(Update{Kind: KindCancel}, ErrFinal)
}

func TestAJobThatKillsItsCoordinatorDies(t *testing.T) {
	s := State{}
	rules := Rules{MaxTakeovers: 3}
	rules.Defaults()
	_ = s.Apply(Update{Kind: KindAccept})
	for i := range 5 {
		n, ok := s.Begin(0, rules)
		if !ok {
			t.Fatal("it does not begin")
		}
		if n.Kind == KindDead {
			if i != 4 {
				t.Fatalf("dead after %d attempts", i)
			}
			return
		}
		if err := s.Apply(n); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("it never dies")
}

// world is a log that several processes write to, although some have lost the lease. It has no
// lease on purpose: the journals alone must keep jobs consistent.
type world struct {
	log      *journaltest.MemoryLog
	stores   []*Store
	accepted map[string]bool
	now      time.Time
	next     int // fault of the next append: 0 none, 1 not written, 2 written but reported as failed
	cancel   context.CancelFunc
}

var errDisk = errors.New("disk: no space left on device")

func (w *world) boot(t *rapid.T) *Store {
	s, err := NewStore(context.Background(), w.log, StoreConfig{Logger: quiet, Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	w.stores = append(w.stores, s)
	for id := range w.accepted {
		if s.job(id) == nil {
			t.Fatalf("job %s was accepted and is lost", id)
		}
	}
	return s
}

// once returns a context that a fault cancels, like a process that dies during a write.
func (w *world) once() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	return ctx
}

func (w *world) fault(_ string, _ []byte, done bool) error {
	if w.next == 1 && !done || w.next == 2 && done {
		w.next = 0
		w.cancel()
		return errDisk
	}
	return nil
}

// tokenAt is the token of the engine at an index; it depends on nothing else.
func tokenAt(id string, i int) int32 {
	sum := sha256.Sum256([]byte(fmt.Sprint(id, i)))
	return int32(sum[0])
}

const tokensOfAJob = 6

// move performs the next action of a job in one process, as an attempt would.
func (w *world) move(t *rapid.T, s *Store, id string, own map[string]uint32) {
	j := s.job(id)
	if j == nil {
		return
	}
	st := j.snapshot().state
	ctx := w.once()
	if st.Phase != Running || own[id] != st.Attempt {
		rules := Rules{MaxTakeovers: 1 << 30, MaxFailures: 1 << 30}
		rules.Defaults()
		if n, ok := st.Begin(s.Now(), rules); ok && s.append(ctx, j, journal.Record{Kind: KindStart, Attempt: n.Attempt, At: n.At}) == nil {
			own[id] = n.Attempt
		}
		return
	}
	if st.Events < tokensOfAJob {
		n := rapid.IntRange(1, tokensOfAJob-st.Events).Draw(t, "tokens")
		var events []Logged
		for i := range n {
			var e Logged
			e.Event.Token = tokenAt(id, st.Events+i)
			events = append(events, e)
		}
		_ = s.append(ctx, j, journal.Record{Kind: KindTokens, Attempt: own[id], At: s.Now(), Payload: EncodeTokens(st.Events, events)})
		return
	}
	if s.append(ctx, j, journal.Record{Kind: KindPart, Attempt: own[id], At: s.Now(), Payload: []byte(id)}) == nil {
		sum := sha256.Sum256([]byte(id))
		_ = s.end(ctx, j, journal.Record{Kind: KindDone, Attempt: own[id], At: s.Now(), Payload: []byte(fmt.Sprintf(`{"bytes":%d,"sha256":%q}`, len(id), base64(sum[:])))})
	}
}

// TestNothingAcceptedIsLostAndCommitsAreSingle lets processes die between any two actions, and lets
// dead ones write later.
func TestNothingAcceptedIsLostAndCommitsAreSingle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{log: journaltest.NewMemoryLog(), accepted: map[string]bool{}, now: time.UnixMilli(1000)}
		w.log.SetFault(w.fault)
		owns := []map[string]uint32{{}}
		w.boot(t)
		keys := []string{"a", "b", "c"}
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			w.now = w.now.Add(time.Second)
			at := rapid.IntRange(max(0, len(w.stores)-2), len(w.stores)-1).Draw(t, "process")
			s := w.stores[at]
			w.next = rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "fault")
			key := rapid.SampledFrom(keys).Draw(t, "job")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1:
				v, _, err := s.Accept(w.once(), Spec{Endpoint: "e", Body: []byte(`"` + key + `"`), Key: key})
				if err == nil {
					w.accepted[v.id] = true
				}
			case 2:
				w.boot(t)
				owns = append(owns, map[string]uint32{})
			case 3:
				if j := s.job(ID(key)); j != nil && rapid.IntRange(0, 3).Draw(t, "cancel") == 0 {
					_ = s.end(w.once(), j, journal.Record{Kind: KindCancel, At: s.Now()})
				}
			case 4:
				if j := s.job(ID(key)); j != nil && owns[at][j.id] == j.snapshot().state.Attempt && j.snapshot().state.Phase == Running {
					_ = s.append(w.once(), j, journal.Record{Kind: KindRetry, Attempt: owns[at][j.id], At: s.Now(), Payload: []byte(`{"code":"x"}`)})
				}
			default:
				w.move(t, s, ID(key), owns[at])
			}
			w.next = 0
		}
		last := w.boot(t)
		own := map[string]uint32{}
		for range 200 {
			w.now = w.now.Add(time.Second)
			for _, key := range keys { // in a fixed order: the draws must not depend on map iteration
				id := ID(key)
				if w.accepted[id] && !last.job(id).snapshot().state.Phase.Final() {
					w.move(t, last, id, own)
				}
			}
		}
		w.check(t, last)
	})
}

// check verifies the content of the log.
func (w *world) check(t *rapid.T, s *Store) {
	done, tokens := map[string]int{}, map[string]int{}
	check := map[string]*journal.Journal{}
	err := w.log.Scan(context.Background(), func(name string, seq uint64, data []byte) error {
		if check[name] == nil {
			check[name] = &journal.Journal{Name: name}
		}
		r, err := check[name].Verify(seq, data)
		if err != nil {
			return err
		}
		if done[name] > 0 {
			t.Fatalf("%s: a record of kind %d after the end", name, r.Kind)
		}
		switch r.Kind {
		case KindDone, KindCancel, KindDead:
			done[name]++
		case KindTokens:
			first, events, err := DecodeTokens(r.Payload)
			if err != nil || first != tokens[name] {
				t.Fatalf("%s: events from %d, want %d (%v)", name, first, tokens[name], err)
			}
			for _, e := range events {
				if e.Event.Token != tokenAt(name, tokens[name]) {
					t.Fatalf("%s: event %d changed", name, tokens[name])
				}
				tokens[name]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range w.accepted {
		v := s.job(id).snapshot()
		if done[id] != 1 {
			t.Fatalf("%s ended %d times (%s)", id, done[id], v.state.Phase)
		}
		if v.state.Phase == Completed {
			if got, err := s.result(context.Background(), v); err != nil || string(got) != id {
				t.Fatalf("%s: result %q, %v", id, got, err)
			}
		}
	}
}
