package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"shoal/collective/natsbus"
)

// jet opens the log in a folder, as the coordinator does; close ends the server.
func jet(t *testing.T, dir string, maxBytes int64) (l Log, close func()) {
	t.Helper()
	s, err := natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: dir, SyncAlways: true, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := s.Connect("jobs")
	if err != nil {
		t.Fatal(err)
	}
	if l, err = OpenJetStream(t.Context(), nc, maxBytes, 1); err != nil {
		t.Fatal(err)
	}
	over := false
	close = func() {
		if !over {
			over = true
			_ = l.Close()
			s.Shutdown()
		}
	}
	t.Cleanup(close)
	return l, close
}

func store(t *testing.T, l Log) *Store {
	t.Helper()
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLogsAgree runs the same story on the log in memory and on JetStream.
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
			if err := l.Drop(ctx, "a"); err != nil {
				t.Fatal(err)
			}
			read("a", 0)
			if want := fmt.Sprint([]string{"a0", "a1", "b2", "a1", "b2", "a3", "b4"}); fmt.Sprint(got) != want {
				t.Fatalf("got %v, want %v", got, want)
			}
			if u, err := l.Usage(ctx); err != nil || u.Last != 4 {
				t.Fatalf("%+v %v", u, err)
			}
		})
	}
}

func TestJetStreamKeepsJobsAcrossAServer(t *testing.T) {
	dir := t.TempDir()
	l, end := jet(t, dir, 1<<20)
	s := store(t, l)
	v, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	end()
	l, _ = jet(t, dir, 1<<20)
	s = store(t, l)
	if spec, err := s.spec(t.Context(), v.id); err != nil || string(spec.Body) != `{"a":1}` {
		t.Fatalf("%+v %v", spec, err)
	}
	if _, existed, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":1}`), Key: "k"}); err != nil || !existed {
		t.Fatalf("the same key and body: %v %v", existed, err)
	}
	if _, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":2}`), Key: "k"}); !errors.Is(err, ErrMismatch) {
		t.Fatalf("another body: %v", err)
	}
}

func TestAFullLogRefuses(t *testing.T) {
	l, _ := jet(t, t.TempDir(), 64<<10)
	s := store(t, l)
	body := []byte(`"` + strings.Repeat("x", 8<<10) + `"`)
	accepted := 0
	for range 20 {
		_, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: body})
		if err == nil {
			accepted++
			continue
		}
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	if _, n := s.Count(); accepted < 4 || n != accepted {
		t.Fatalf("%d accepted, %d there", accepted, n)
	}
	if _, n := store(t, l).Count(); n != accepted {
		t.Fatalf("%d accepted, %d read back", accepted, n)
	}
}

// TestDamageOnDiskHasAName flips a bit in, or cuts, the files of the log while
// nobody has them open: no job may be lost or changed without a word.
func TestDamageOnDiskHasAName(t *testing.T) {
	const jobs = 6
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, end := jet(t, filepath.Join(dir, "jetstream"), 1<<20)
	s := store(t, l)
	d.Attach(s, "")
	for i := range jobs {
		v, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(fmt.Sprintf(`"body %d"`, i))})
		if err == nil {
			err = s.append(t.Context(), s.job(v.id), Record{kind: KindStart, attempt: 1})
		}
		if err == nil {
			err = s.append(t.Context(), s.job(v.id), Record{kind: KindTokens, attempt: 1, payload: EncodeTokens(0, sampleEvents())})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	end()
	blocks, _ := filepath.Glob(filepath.Join(dir, "jetstream", "*", "*", "streams", "*", "msgs", "*.blk"))
	if len(blocks) == 0 {
		t.Fatal("no message files found")
	}
	whole, err := os.ReadFile(blocks[0])
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Index(whole, []byte("body 3"))
	for name, damage := range map[string]func() []byte{
		"a bit of a body":   func() []byte { b := bytes.Clone(whole); b[body+2] ^= 4; return b },
		"a bit of a length": func() []byte { b := bytes.Clone(whole); b[body-recordHead-40] ^= 1; return b },
		"the end is gone":   func() []byte { return whole[:len(whole)-100] },
		"the last is torn":  func() []byte { return whole[:len(whole)-1] },
	} {
		t.Run(name, func(t *testing.T) {
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(dir, blocks[0])
			if err := os.WriteFile(filepath.Join(copied, rel), damage(), 0o600); err != nil {
				t.Fatal(err)
			}
			// What JetStream derives from the blocks must not hide them.
			l, _ := jet(t, filepath.Join(copied, "jetstream"), 1<<20)
			s := store(t, l)
			d, err := OpenDir(copied)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			d.Attach(s, "")
			said := strings.Join(s.Damage(), "; ")
			good := 0
			for _, v := range s.list() {
				if v.damage != "" {
					said += v.damage
					continue
				}
				err := s.read(t.Context(), v.id, func(*Record) error { return nil })
				if v.state.Events == len(sampleEvents()) && err == nil {
					good++
				} else if err != nil {
					said += err.Error()
				}
			}
			t.Logf("%d of %d jobs whole; %s", good, jobs, said)
			if good == jobs || said == "" {
				t.Fatalf("%d of %d jobs are whole, and nothing is said: %q", good, jobs, said)
			}
		})
	}
}

func TestOneCoordinatorADirectory(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatalf("a second lease: %v", err)
	}
	d.Close()
	if d, err = OpenDir(dir); err != nil {
		t.Fatal(err)
	}
	d.Close()
}

// A server without a leader says 503; that is no answer. What else it says is.
func TestAgainAsksWhileThereIsNoLeader(t *testing.T) {
	asked := 0
	err := again(t.Context(), func(context.Context) error {
		if asked++; asked < 3 {
			return fmt.Errorf("read: %w", &jetstream.APIError{Code: 503, ErrorCode: 10008})
		}
		return nil
	})
	if err != nil || asked != 3 {
		t.Errorf("asked %d times, %v", asked, err)
	}
	if err := again(t.Context(), func(context.Context) error { asked++; return jetstream.ErrMsgNotFound }); !errors.Is(err, jetstream.ErrMsgNotFound) || asked != 4 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}
