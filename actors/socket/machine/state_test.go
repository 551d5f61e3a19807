package machine

import (
	"errors"
	"testing"
)

func TestStateFencesOldEpochs(t *testing.T) {
	s := State{Phase: Idle}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	stale := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrStaleEpoch) {
			t.Fatalf("got %v, want a stale epoch", err)
		}
	}
	must(s.Load(3))
	stale(s.Load(3))
	stale(s.Loaded(2, true))
	must(s.Loaded(3, true))
	if err := s.Begin(3, 1); !errors.Is(err, ErrWrongPhase) {
		t.Fatalf("a step before the group was formed: %v", err)
	}
	must(s.Join(3))
	must(s.Joined(3, true))
	must(s.Begin(3, 1))
	if err := s.Begin(3, 2); !errors.Is(err, ErrWrongPhase) {
		t.Fatalf("two steps at once: %v", err)
	}
	must(s.End(3, true))
	stale(s.Begin(3, 1))
	must(s.Begin(3, 2))
	must(s.Load(4)) // a newer epoch interrupts a step
	stale(s.End(3, true))
	if s.Retire(3) {
		t.Fatal("an old epoch was retired over a newer one")
	}
	if !s.Retire(4) || s.Phase != Idle {
		t.Fatal("the current epoch was not retired")
	}
	stale(s.Load(4))
	if s.Retire(8) {
		t.Fatal("an idle socket reports something to tear down")
	}
	stale(s.Load(7)) // it was sent before the socket was retired
	must(s.Load(9))
	must(s.Loaded(9, false))
	if err := s.Join(9); !errors.Is(err, ErrWrongPhase) {
		t.Fatalf("joined after a failed load: %v", err)
	}
}

// A stopping actor still receives messages. None may find an epoch that has been freed.
func TestStoppedStateRefusesEverything(t *testing.T) {
	for _, phase := range []Phase{Idle, Loading, Loaded, Joining, Ready, Stepping, Failed} {
		s := State{Phase: phase, Epoch: 3}
		s.Stop()
		for name, err := range map[string]error{"load": s.Load(4), "loaded": s.Loaded(3, true), "join": s.Join(3), "joined": s.Joined(3, true),
			"begin": s.Begin(3, 1), "end": s.End(3, true)} {
			if !errors.Is(err, ErrWrongPhase) {
				t.Errorf("stopped when %s, %s: %v", phase, name, err)
			}
		}
		if s.Retire(3) || s.Retire(4) || s.Phase != Stopped {
			t.Errorf("stopped when %s: retired, now %s", phase, s.Phase)
		}
	}
}
