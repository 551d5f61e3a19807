package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

// jet opens the log in a folder as the coordinator does; close stops the server.
func jet(t *testing.T, dir string, maxBytes int64) (l Log, close func()) {
	t.Helper()
	nc, stop := natstest.Alone(t, dir, 0)
	l, err := OpenJetStream(t.Context(), nc, maxBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	close = sync.OnceFunc(func() { _ = l.Close(); stop() })
	t.Cleanup(close)
	return l, close
}

// TestLogsAgree runs the same scenario on the in-memory log and on JetStream.
func TestLogsAgree(t *testing.T) {
	for name, make := range map[string]func(*testing.T) Log{
		"memory":    func(*testing.T) Log { return NewMemoryLog() },
		"jetstream": func(t *testing.T) Log { l, _ := jet(t, t.TempDir(), 1<<20); return l },
	} {
		t.Run(name, func(t *testing.T) {
			l, ctx := make(t), context.Background()
			seq := func(journal string, after uint64, want error) uint64 {
				t.Helper()
				n, err := l.Append(ctx, journal, after, []byte(fmt.Sprint(journal, after)))
				if !errors.Is(err, want) {
					t.Fatalf("append to %s after %d: %v, want %v", journal, after, err, want)
				}
				return n
			}
			a1 := seq("a", 0, nil)
			seq("a", 0, ErrConflict)
			b1 := seq("b", 0, nil)
			a2 := seq("a", a1, nil)
			seq("a", a1, ErrConflict)
			seq("b", a2, ErrConflict)
			b2 := seq("b", b1, nil)
			if b2 != a1+3 {
				t.Fatalf("numbers %d %d %d %d", a1, b1, a2, b2)
			}
			var got []string
			read := func(journal string, after uint64) {
				t.Helper()
				if err := l.Read(ctx, journal, after, func(_ uint64, b []byte) error { got = append(got, string(b)); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			read("a", 0)
			read("b", b1)
			if err := l.Scan(ctx, func(j string, n uint64, _ []byte) error { got = append(got, fmt.Sprint(j, n)); return nil }); err != nil {
				t.Fatal(err)
			}
			for _, through := range []uint64{b1, a1, a1} { // b1: another journal's message
				if err := l.DropThrough(ctx, "b", through); err != nil {
					t.Fatal(err)
				}
			}
			read("b", 0)
			seq("b", 0, ErrConflict) // its last message has stayed
			if err := l.Drop(ctx, "a"); err != nil {
				t.Fatal(err)
			}
			read("a", 0)
			if err := l.DropThrough(ctx, "b", b2); err != nil {
				t.Fatal(err)
			}
			read("b", 0)
			seq("b", 0, nil)
			if want := fmt.Sprint([]string{"a0", "a1", "b2", "a1", "b2", "a3", "b4", "b2"}); fmt.Sprint(got) != want {
				t.Fatalf("got %v, want %v", got, want)
			}
			if u, err := l.Usage(ctx); err != nil || u.Last != 5 {
				t.Fatalf("%+v %v", u, err)
			}
		})
	}
}

// A server without a leader answers 503, which is retried. Other errors are returned.
func TestRetryWithoutLeader(t *testing.T) {
	asked := 0
	err := retry(t.Context(), func(context.Context) error {
		if asked++; asked < 3 {
			return fmt.Errorf("read: %w", &jetstream.APIError{Code: 503, ErrorCode: 10008})
		}
		return nil
	})
	if err != nil || asked != 3 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if err := retry(t.Context(), func(context.Context) error {
		asked++
		return jetstream.ErrMsgNotFound
	}); !errors.Is(err, jetstream.ErrMsgNotFound) || asked != 4 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}

func TestIsName(t *testing.T) {
	for name, want := range map[string]bool{"job-a1": true, "resp_B": true, strings.Repeat("a", 128): true,
		"": false, "*": false, ">": false, "a.b": false, "a b": false, "ä": false, strings.Repeat("a", 129): false} {
		if IsName(name) != want {
			t.Errorf("%q is a name: %v", name, !want)
		}
	}
}
