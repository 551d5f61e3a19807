package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/jobs/journal/journaltest"
	"github.com/shoal-llm/shoal/internal/jobs/journal/natstest"
)

// input describes a file of a batch.
func input(id string) File { return File{ID: id, Filename: id, Purpose: "batch", CreatedAt: 1} }

func sharedFiles(t *testing.T, l journal.FileLog) *Shared {
	t.Helper()
	f, err := OpenShared(t.Context(), l, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fileStream(t *testing.T) journal.FileLog {
	t.Helper()
	nc, _ := natstest.Alone(t, t.TempDir(), 8<<30)
	l, err := journal.OpenFileStream(t.Context(), nc, Bytes+(64<<20), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// bytesOf returns the content of a file.
func bytesOf(t *testing.T, f Store, id string) (string, error) {
	t.Helper()
	r, x, err := f.Open(t.Context(), id)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err == nil && int64(len(b)) != x.Bytes {
		err = fmt.Errorf("%d bytes, reported are %d", len(b), x.Bytes)
	}
	return string(b), err
}

// TestStoresAgree runs the same scenario on every implementation of Store.
func TestStoresAgree(t *testing.T) {
	for name, make := range map[string]func(*testing.T) Store{
		"folder": func(t *testing.T) Store {
			f, err := OpenFolder(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		"memory":    func(t *testing.T) Store { return sharedFiles(t, journaltest.NewMemoryLog()) },
		"jetstream": func(t *testing.T) Store { return sharedFiles(t, fileStream(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			f, ctx := make(t), t.Context()
			long := randomText(2*chunkBytes + 12345)
			put := func(id, text string) {
				t.Helper()
				x, err := f.Put(ctx, File{ID: id, Filename: id + ".jsonl", Purpose: "batch", CreatedAt: int64(len(text)), Holder: "ann"},
					strings.NewReader(text))
				if err != nil || x.Bytes != int64(len(text)) {
					t.Fatalf("put %s: %+v %v", id, x, err)
				}
			}
			is := func(id, want string) {
				t.Helper()
				if got, err := bytesOf(t, f, id); err != nil || got != want {
					t.Fatalf("%s: %d bytes, want %d, %v", id, len(got), len(want), err)
				}
			}
			put("file-a", long)
			put("file-b", "")
			put("file-c", "one")
			put("file-c", "one") // same content
			put("file-c", "two") // replaced
			is("file-a", long)
			is("file-b", "")
			is("file-c", "two")
			all, err := f.List(ctx)
			if err != nil || len(all) != 3 || all[0].ID != "file-a" || all[2].ID != "file-b" {
				t.Fatalf("%v %v", all, err)
			}
			if err := f.Delete(ctx, "file-c"); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{"file-c", "file-d", "*", ">", "a b", ""} {
				_, err := f.Get(ctx, id)
				_, oerr := bytesOf(t, f, id)
				if !errors.Is(err, ErrNotFound) || !errors.Is(oerr, ErrNotFound) || !errors.Is(f.Delete(ctx, id), ErrNotFound) {
					t.Errorf("%q is not there: %v, %v", id, err, oerr)
				}
			}
		})
	}
}

// TestUploadsShareTheRoom: unfinished uploads count, so that concurrent uploads together stay
// within the limit.
func TestUploadsShareTheRoom(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.total = Bytes - 100
	put := func(id string, bytes int) error {
		_, err := f.Put(t.Context(), input(id), strings.NewReader(randomText(bytes)))
		return err
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	done := make(chan error, 1)
	go func() {
		_, err := f.Put(t.Context(), input("file-a"), pr)
		done <- err
	}()
	for _, n := range []int{60, 1} { // the second is read after the first was written
		if _, err := pw.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("file-b", 60); !errors.Is(err, ErrSize) {
		t.Errorf("60 of 100 bytes while 60 are being written: %v", err)
	}
	if err := put("file-c", 30); err != nil {
		t.Error(err)
	}
	for i := range maxFiles - 2 {
		f.all[fmt.Sprint("file-", i)] = File{}
	}
	if err := put("file-d", 1); !errors.Is(err, ErrSize) {
		t.Errorf("file %d while one is being written: %v", maxFiles-1, err)
	}
	pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if f.total != Bytes-9 || f.writing != 0 || f.written != 0 {
		t.Errorf("%d bytes are left, %d files with %d bytes are being written; want 9, none", Bytes-f.total, f.writing, f.written)
	}
}

func randomText(n int) string {
	b, r := make([]byte, n), rand.New(rand.NewPCG(7, 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// flipping is a log whose reads return a flipped bit.
type flipping struct {
	*journaltest.MemoryLog
	on bool
}

func (l *flipping) Read(ctx context.Context, name string, after uint64, each func(uint64, []byte) error) error {
	return l.MemoryLog.Read(ctx, name, after, func(seq uint64, data []byte) error {
		if l.on {
			data = bytes.Clone(data)
			data[160] ^= 1
		}
		return each(seq, data)
	})
}

// TestSharedFilesOutliveTheirFolder: files written by one process can be read by another.
func TestSharedFilesOutliveTheirFolder(t *testing.T) {
	l, ctx, long := &flipping{MemoryLog: journaltest.NewMemoryLog()}, t.Context(), randomText(chunkBytes+1)
	a := sharedFiles(t, l)
	if _, err := a.Put(ctx, input("file-a"), strings.NewReader(long)); err != nil {
		t.Fatal(err)
	}
	b := sharedFiles(t, l)
	if got, err := bytesOf(t, b, "file-a"); err != nil || got != long {
		t.Errorf("%d bytes, want %d, %v", len(got), len(long), err)
	}
	// A damaged local copy is fetched again. Damage in the log is an error.
	data := filepath.Join(b.local.dir, "file-a.data")
	if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := bytesOf(t, b, "file-a"); err != nil || got != long {
		t.Errorf("after damage to the copy: %d bytes, %v", len(got), err)
	}
	l.on = true
	if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bytesOf(t, b, "file-a"); !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("a flipped bit: %v", err)
	}
}

// inBetween is a log in which another process writes just before an append.
type inBetween struct {
	*journaltest.MemoryLog
	before func()
}

func (l *inBetween) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	if f := l.before; f != nil {
		l.before = nil
		f()
	}
	return l.MemoryLog.Append(ctx, name, after, data)
}

// TestHalfAFileIsAbandoned: its writer gets a conflict, or has completed the file before.
func TestHalfAFileIsAbandoned(t *testing.T) {
	ctx := t.Context()
	for name, ends := range map[string]bool{"the writer is late": false, "the writer is faster": true} {
		t.Run(name, func(t *testing.T) {
			l := journaltest.NewMemoryLog()
			j := journal.NewWriter("file-x")
			write := func(kind journal.Kind, payload string) error {
				r := journal.Record{Kind: kind, Payload: []byte(payload)}
				_, err := j.Append(ctx, l, &r, func(*journal.Record) error { return journal.ErrConflict })
				return err
			}
			if err := write(KindChunk, "half"); err != nil {
				t.Fatal(err)
			}
			meta := fmt.Sprintf(`{"id":"file-x","bytes":4,"sha256":"%x"}`, sha256.Sum256([]byte("half")))
			at := &inBetween{MemoryLog: l}
			if ends {
				at.before = func() {
					if err := write(KindFile, meta); err != nil {
						t.Error(err)
					}
				}
			}
			early := &Shared{log: l}
			if _, err := early.Get(ctx, "file-x"); !errors.Is(err, ErrNotFound) {
				t.Errorf("half a file: %v", err)
			}
			f := sharedFiles(t, at)
			if ends {
				if got, err := bytesOf(t, f, "file-x"); err != nil || got != "half" {
					t.Errorf("a file that was acknowledged: %q, %v", got, err)
				}
				return
			}
			if names, err := l.Journals(ctx); err != nil || len(names) != 0 {
				t.Errorf("%v stays, %v", names, err)
			}
			if err := write(KindFile, meta); !errors.Is(err, journal.ErrConflict) {
				t.Errorf("its writer continues: %v", err)
			}
		})
	}
}

// breaking is a log that does not answer its second append.
type breaking struct {
	*journaltest.MemoryLog
	appends int
	then    func()
}

func (l *breaking) Append(ctx context.Context, name string, after uint64, data []byte) (uint64, error) {
	if l.appends++; l.appends == 2 {
		l.then()
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return l.MemoryLog.Append(ctx, name, after, data)
}

// TestUploadThatTheLogDoesNotTake: if the client disconnects or the log times out during an upload,
// no part of the file stays in the log.
func TestUploadThatTheLogDoesNotTake(t *testing.T) {
	for want, limit := range map[error]time.Duration{context.Canceled: time.Hour, context.DeadlineExceeded: 100 * time.Millisecond} {
		ctx, cancel := context.WithCancel(journal.WithAnswerTimeout(t.Context(), limit))
		l := &breaking{MemoryLog: journaltest.NewMemoryLog(), then: func() {}}
		if want == context.Canceled {
			l.then = cancel
		}
		f := sharedFiles(t, l)
		_, err := f.Put(ctx, input("file-x"), strings.NewReader(randomText(2*chunkBytes)))
		cancel()
		names, jerr := l.Journals(t.Context())
		copies, lerr := f.local.List(t.Context())
		if !errors.Is(err, want) || len(names)+len(copies) > 0 || jerr != nil || lerr != nil {
			t.Errorf("%v: in the log %v, %v, in the folder %v, %v; want %v, none", err, names, jerr, copies, lerr, want)
		}
	}
}

// TestTakeFiles: files of a folder move into the log; damaged ones stay in the folder.
func TestTakeFiles(t *testing.T) {
	ctx := t.Context()
	from, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"file-a", "file-b", "file-bad"} {
		if _, err := from.Put(ctx, input(id), strings.NewReader(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(from.path("file-bad", "data"), []byte("file-BAD"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := journaltest.NewMemoryLog()
	to := sharedFiles(t, log)
	var written journal.Usage
	for _, step := range []struct {
		away bool
		left int // files left in the folder
	}{{false, 3}, {true, 1}, {true, 1}} {
		damage, err := to.Take(ctx, from, step.away)
		if err != nil || !errors.Is(damage, journal.ErrDamaged) {
			t.Fatalf("%v, damage %v", err, damage)
		}
		left, _ := from.List(ctx)
		if len(left) != step.left || !slices.ContainsFunc(left, func(f File) bool { return f.ID == "file-bad" }) {
			t.Errorf("after %+v: left %v", step, left)
		}
		now, err := log.Usage(ctx)
		if err != nil || written != (journal.Usage{}) && now != written {
			t.Errorf("an existing file was written again: %+v, before %+v, %v", now, written, err)
		}
		written = now
	}
	for _, id := range []string{"file-a", "file-b"} {
		if got, err := bytesOf(t, to, id); err != nil || got != id {
			t.Errorf("%s: %q %v", id, got, err)
		}
	}
}

// TestFilesRemovedByHand: content that is gone is damage, which no later attempt repairs. The file can be deleted, and its
// bytes count no more.
func TestFilesRemovedByHand(t *testing.T) {
	f, err := OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"data", "json"} {
		if _, err := f.Put(t.Context(), File{ID: "file-a"}, strings.NewReader("text")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(f.path("file-a", kind)); err != nil {
			t.Fatal(err)
		}
		file, _, err := f.Open(t.Context(), "file-a")
		if kind == "data" && !errors.Is(err, journal.ErrDamaged) || kind == "json" && err != nil {
			t.Errorf("without its %s: %v", kind, err)
		}
		if err == nil {
			file.Close()
		}
		if err := f.Delete(t.Context(), "file-a"); err != nil || f.total != 0 {
			t.Errorf("deleted without its %s: %v; %d bytes", kind, err, f.total)
		}
	}
}
