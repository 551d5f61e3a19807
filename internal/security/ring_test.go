package security

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKeyFileOfSeveral: the first key is used, all are accepted, and an unreadable file changes
// nothing.
func TestKeyFileOfSeveral(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write := func(lines ...string) {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := NewKey(), NewKey()
	write(a.Text())
	k, err := ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var reported [][]Key
	k.Watch(func(keys []Key) { reported = append(reported, keys) })
	prints := func(keys ...Key) (out []string) {
		for _, x := range keys {
			out = append(out, x.Fingerprint())
		}
		return out
	}
	check := func(what string, want ...Key) {
		t.Helper()
		if got := k.Fingerprints(); !slices.Equal(got, prints(want...)) || k.Fingerprint() != got[0] ||
			!slices.Equal(k.Gossip(), want[0].Gossip()) || !k.Equal(want[0]) || k.Text() != want[0].Text() {
			t.Errorf("%s: keys %v, want %v; in use %s", what, got, prints(want...), k.Fingerprint())
		}
	}
	check("one", a)
	server, _, err := k.TLS(Identity{RoleCoordinator, "c"})
	if err != nil {
		t.Fatal(err)
	}
	lets := func(who Key) error {
		_, client, err := who.TLS(Identity{RoleNode, "n"})
		if err != nil {
			t.Fatal(err)
		}
		serr, cerr, _ := shake(t, server, client)
		return errors.Join(serr, cerr)
	}
	rounds := []struct {
		keys         []Key
		oldIn, newIn bool
	}{{[]Key{a, b}, true, false}, {[]Key{b, a}, false, true}, {[]Key{b}, false, true}}
	for _, r := range rounds {
		var lines []string
		for _, x := range r.keys {
			lines = append(lines, x.Text())
		}
		write(append(lines, "")...)
		if err := k.Reload(); err != nil {
			t.Fatal(err)
		}
		check("reloaded", r.keys...)
		// A process with a single key accepts this one's certificate only if it was made from that
		// key.
		if err := lets(a); (err == nil) != r.oldIn {
			t.Errorf("keys %v: the old one alone: %v", prints(r.keys...), err)
		}
		if err := lets(b); (err == nil) != r.newIn {
			t.Errorf("keys %v: the new one alone: %v", prints(r.keys...), err)
		}
	}
	if len(reported) != 3 || !reported[2][0].Equal(b) {
		t.Errorf("notified %d times", len(reported))
	}
	for what, lines := range map[string][]string{"nonsense": {b.Text(), "x"}, "twice": {b.Text(), b.Text()}, "nothing": {"", ""},
		"five": {NewKey().Text(), NewKey().Text(), NewKey().Text(), NewKey().Text(), NewKey().Text()}} {
		write(lines...)
		if err := k.Reload(); !errors.Is(err, ErrKeyFormat) {
			t.Errorf("%s: %v", what, err)
		}
		check(what, b)
	}
	if err := a.Reload(); !errors.Is(err, ErrNoFile) {
		t.Errorf("a key without a file: %v", err)
	}
}

// TestWatchStops: a part of the process that has ended is not called any more, and is not kept in memory. The others are.
func TestWatchStops(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := WriteKeyFile(path, NewKey()); err != nil {
		t.Fatal(err)
	}
	k, err := ReadKeyFile(path)
	if err != nil {
		t.Fatal(err)
	}
	calls := [2]int{}
	k.Watch(func([]Key) { calls[0]++ })
	stop := k.Watch(func([]Key) { calls[1]++ })
	for range 2 {
		if err := k.Reload(); err != nil {
			t.Fatal(err)
		}
		stop()
		stop()
	}
	if calls != [2]int{2, 1} || len(k.ring.watches) != 1 {
		t.Errorf("%v calls, %d watches", calls, len(k.ring.watches))
	}
	Key{}.Watch(nil)()
}
