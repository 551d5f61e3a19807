package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

// TestLogsAgree runs the same scenario on the in-memory log and on JetStream.
func TestLogsAgree(t *testing.T) {
	for name, make := range map[string]func(*testing.T) journal.Log{
		"memory": func(*testing.T) journal.Log { return journaltest.NewMemoryLog() },
		"jetstream": func(t *testing.T) journal.Log {
			nc, stop := natstest.Alone(t, t.TempDir(), 0)
			l, err := journal.OpenJetStream(t.Context(), nc, 1<<20, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(); stop() })
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, ctx := make(t), context.Background()
			seq := func(name string, after uint64, want error) uint64 {
				t.Helper()
				n, err := l.Append(ctx, name, after, []byte(fmt.Sprint(name, after)))
				if !errors.Is(err, want) {
					t.Fatalf("append to %s after %d: %v, want %v", name, after, err, want)
				}
				return n
			}
			a1 := seq("a", 0, nil)
			seq("a", 0, journal.ErrConflict)
			b1 := seq("b", 0, nil)
			a2 := seq("a", a1, nil)
			seq("a", a1, journal.ErrConflict)
			seq("b", a2, journal.ErrConflict)
			b2 := seq("b", b1, nil)
			if b2 != a1+3 {
				t.Fatalf("numbers %d %d %d %d", a1, b1, a2, b2)
			}
			var got []string
			read := func(name string, after uint64) {
				t.Helper()
				if err := l.Read(ctx, name, after, func(_ uint64, b []byte) error { got = append(got, string(b)); return nil }); err != nil {
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
			seq("b", 0, journal.ErrConflict) // its last message has stayed
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
