package jobs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

// jet opens the log in a folder as the coordinator does; close stops the server.
func jet(t *testing.T, dir string, maxBytes int64) (l journal.Log, close func()) {
	t.Helper()
	nc, stop := natstest.Alone(t, dir, 0)
	l, err := journal.OpenJetStream(t.Context(), nc, maxBytes, 1)
	if err != nil {
		t.Fatal(err)
	}
	close = sync.OnceFunc(func() { _ = l.Close(); stop() })
	t.Cleanup(close)
	return l, close
}

func store(t *testing.T, l journal.Log) *Store {
	t.Helper()
	s, err := NewStore(t.Context(), l, StoreConfig{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return s
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
	if _, _, err := s.Accept(t.Context(), Spec{Endpoint: "e", Body: []byte(`{"a":2}`), Key: "k"}); !errors.Is(err, journal.ErrMismatch) {
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
		if !errors.Is(err, journal.ErrFull) {
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

// TestDamageOnDiskHasAName flips bits in the files of the log, or truncates them, while no server
// runs. No job may be lost or changed without a report.
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
			err = s.append(t.Context(), s.job(v.id), journal.Record{Kind: KindStart, Attempt: 1})
		}
		if err == nil {
			err = s.append(t.Context(), s.job(v.id), journal.Record{Kind: KindTokens, Attempt: 1, Payload: EncodeTokens(0, sampleEvents())})
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
		"a bit of a length": func() []byte { b := bytes.Clone(whole); b[body-100] ^= 1; return b },
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
			// JetStream's index must not hide the damage in the blocks.
			l, _ := jet(t, filepath.Join(copied, "jetstream"), 1<<20)
			s := store(t, l)
			d, err := OpenDir(copied)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			d.Attach(s, "")
			reported := strings.Join(s.Damage(), "; ")
			good := 0
			for _, v := range s.list() {
				if v.damage != "" {
					reported += v.damage
					continue
				}
				err := s.read(t.Context(), v.id, func(*journal.Record) error { return nil })
				if v.state.Events == len(sampleEvents()) && err == nil {
					good++
				} else if err != nil {
					reported += err.Error()
				}
			}
			t.Logf("%d of %d jobs whole; %s", good, jobs, reported)
			if good == jobs || reported == "" {
				t.Fatalf("%d of %d jobs are whole, but the damage is not reported: %q", good, jobs, reported)
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
