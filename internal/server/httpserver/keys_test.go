package httpserver

import (
	"testing"
	"time"
)

// The budget of a minute refills evenly, and a long answer delays the next request.
func TestTokensPerMinute(t *testing.T) {
	ring, err := newKeyring([]Key{{Name: "a", Secret: "s", TokensPerMinute: 60}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h, now := ring[0], time.Unix(1000, 0)
	if h.Secret != "" || h.SHA256 != "" {
		t.Error("the keyring keeps the key itself")
	}
	if e := h.CheckTokens(now); e != nil {
		t.Fatal(e)
	}
	h.Charge(90, now)
	if e := h.CheckTokens(now.Add(10 * time.Second)); e == nil || e.Status != 429 ||
		e.RetryAfter < 20*time.Second || e.RetryAfter > 22*time.Second {
		t.Errorf("20 tokens short: %+v", e)
	}
	if e := h.CheckTokens(now.Add(32 * time.Second)); e != nil {
		t.Errorf("after the wait: %v", e)
	}
	again, err := newKeyring([]Key{{Name: "renamed", Secret: "s", TokensPerMinute: 60}}, ring)
	if err != nil {
		t.Fatal(err)
	}
	h.Charge(60, now.Add(32*time.Second))
	if again[0].CheckTokens(now.Add(32*time.Second)) == nil {
		t.Error("a reload gives the minute back")
	}
}

// Guessing keys does not fill the disk.
func TestRefusalsAreWrittenSoManyASecond(t *testing.T) {
	a, now, written, missed := &audit{}, time.Unix(50, 0), 0, 0
	for i := range 1000 {
		m, write := a.refusal(now.Add(time.Duration(i) * 2 * time.Millisecond)) // two seconds
		missed += m
		if write {
			written++
		}
	}
	if written != 2*refusedPerSecond || missed != 500-refusedPerSecond {
		t.Errorf("%d written, %d reported", written, missed)
	}
}
