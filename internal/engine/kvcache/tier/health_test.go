package tier

import (
	"errors"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A request that ends at its deadline does not hang: a process that was stopped finds both due when it goes on.
func TestRequestEndsAtDeadline(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			var h health
			if hung, err := h.run(time.Second, func() error { time.Sleep(time.Second); return nil }, func(error) {}); hung || err != nil {
				t.Fatalf("hangs %v: %v", hung, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var h health
		hung, _ := h.run(time.Second, func() error { time.Sleep(time.Minute); return nil }, func(error) {})
		if !hung || h.ok(time.Now()) {
			t.Error("a request of a minute does not hang")
		}
		time.Sleep(time.Hour)
		if !h.ok(time.Now()) {
			t.Error("a request that has ended hangs")
		}
	})
}

// On a full disk the removal of the oldest cache has the deadline of its request.
func TestFullDiskHangs(t *testing.T) {
	for name, of := range map[string]func(s *Saved, scratch *Scratch) error{
		"rows":    func(_ *Saved, scratch *Scratch) error { _, err := scratch.Create(10); return err },
		"session": func(s *Saved, _ *Scratch) error { return saveCache(s, cacheOf(1, 8, 1<<40)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := time.UnixMilli(1000)
			s, scratch := savedIn(t, t.TempDir(), 10_000, &now)
			scratch.log = slog.New(slog.DiscardHandler)
			full := func() error { scratch.room.Lock(); return syscall.ENOSPC } // removals wait for the lock
			scratch.create = func() (Medium, error) { return nil, full() }
			s.create = func() (SavedMedium, error) { return nil, full() }
			ended := make(chan error, 1)
			go func() { ended <- of(s, scratch) }()
			select {
			case err := <-ended:
				if !errors.Is(err, ErrScratch) {
					t.Error(err)
				}
			case <-time.After(2 * SavedTimeout):
				t.Error("a removal that hangs has no deadline")
			}
			scratch.room.Unlock()
		})
	}
}
