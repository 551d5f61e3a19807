package hostname

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheck(t *testing.T) {
	for host, says := range map[string]string{
		"10.0.0.2": "", "fd00::1": "", "127.0.0.1": "", "node-1": "", "node1.example.com": "", "a_b.lan": "", "1node": "",
		"": "neither", "0.0.0.0": "every address", "::": "every address", "fe80::1": "link-local",
		"fe80::1%eth0": "link-local", "169.254.1.1": "link-local", "fd00::1%eth0": "link-local",
		"10.0.0": "neither", "10.0.0.256": "neither", "node 1": "neither", "-node": "neither", "node-": "neither",
		"a..b": "neither", "http://node": "neither", "[fd00::1]": "neither", "fd00::g": "neither",
		strings.Repeat("a", MaxLength+1): "shorter",
	} {
		if err := Check(host); (err == nil) != (says == "") ||
			err != nil && (!errors.Is(err, ErrAddress) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v, want %q", host, err, says)
		}
	}
}

// TestChoose: all addresses of a name are of this machine, and one is chosen.
func TestChoose(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fe80::9"),
		netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")}
	for _, c := range []struct{ resolved, want, says string }{
		{"10.0.0.2", "10.0.0.2", ""},
		{"fd00::2", "fd00::2", ""},
		{"fd00::2 10.1.0.2 10.0.0.2", "10.1.0.2", ""},
		{"", "", "has no address"},
		{"127.0.1.1", "", "/etc/hosts"},
		{"10.0.0.2 127.0.0.1", "", "/etc/hosts"},
		{"fe80::9", "", "link-local"},
		{"10.0.0.3", "", "resolves to 10.0.0.3, which this machine does not have (it has 10.0.0.2, 10.1.0.2, fd00::2)"},
		{"10.0.0.2 10.0.0.3 fd00::3", "", "resolves to 10.0.0.3 and fd00::3"},
	} {
		var resolved []netip.Addr
		for _, a := range strings.Fields(c.resolved) {
			resolved = append(resolved, netip.MustParseAddr(a))
		}
		got, err := choose("node1", resolved, own)
		if c.want != "" && got.String() != c.want || (err == nil) != (c.says == "") ||
			err != nil && (!errors.Is(err, ErrName) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, %v", c.resolved, got, err)
		}
	}
}

// TestRetry: a name may resolve late, and a wrong one ends with its error.
func TestRetry(t *testing.T) {
	wrong := errors.New("wrong")
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log := slog.New(slog.NewTextHandler(&text, nil))
		calls := 0
		if err := Retry(t.Context(), log, "node1", func(context.Context) error {
			if calls++; calls < 4 {
				return wrong
			}
			return nil
		}); err != nil || calls != 4 || strings.Count(text.String(), "waiting for a name") != 1 {
			t.Errorf("%v after %d calls: %s", err, calls, text.String())
		}
		began := time.Now()
		if err := Retry(t.Context(), log, "node1", func(context.Context) error { return wrong }); !errors.Is(err, wrong) ||
			time.Since(began) != Limit {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(5*time.Second, func() { cancel(errors.New("enough")) })
		if err := Retry(ctx, log, "node1", func(context.Context) error { return wrong }); err == nil || err.Error() != "enough" {
			t.Error(err)
		}
	})
}

func TestPlace(t *testing.T) {
	for bind, want := range map[string]string{"10.0.0.2:7070": "10.0.0.2", "[fd00::1]:0": "fd00::1", "localhost:1": "localhost"} {
		p, err := Locate(t.Context(), bind, slog.New(slog.DiscardHandler))
		if err != nil || p.Bind != bind || p.Name != "" || p.Host() != want || p.With(bind) != bind {
			t.Errorf("%s: %+v, %v", bind, p, err)
		}
	}
	p := Place{Bind: "[fd00::1]:0", Name: "node1"}
	if p.Host() != "node1" || p.With("[fd00::1]:7071") != "node1:7071" {
		t.Errorf("%+v", p)
	}
}
