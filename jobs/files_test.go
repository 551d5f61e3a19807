package jobs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"shoal/api"
	"shoal/collective/natsbus"
)

func sharedFiles(t *testing.T, l FileLog) *SharedFiles {
	t.Helper()
	f, err := OpenSharedFiles(t.Context(), l, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fileStream(t *testing.T) FileLog {
	t.Helper()
	s, err := natsbus.Start(natsbus.Config{Name: "jobs", Cluster: "jobs", Alone: true, StoreDir: t.TempDir(), StoreBytes: 8 << 30, SyncAlways: true, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := s.Connect("files")
	if err != nil {
		t.Fatal(err)
	}
	l, err := OpenFileStream(t.Context(), nc, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); s.Shutdown() })
	return l
}

// bytesOf reads a file, "" and an error when it cannot be had.
func bytesOf(t *testing.T, f FileStore, id string) (string, error) {
	t.Helper()
	r, x, err := f.Open(t.Context(), id)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err == nil && int64(len(b)) != x.Bytes {
		err = fmt.Errorf("%d bytes, it says %d", len(b), x.Bytes)
	}
	return string(b), err
}

// TestFileStoresAgree runs one story on every keeper of files.
func TestFileStoresAgree(t *testing.T) {
	for name, make := range map[string]func(*testing.T) FileStore{
		"folder": func(t *testing.T) FileStore {
			f, err := OpenFiles(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			return f
		},
		"memory":    func(t *testing.T) FileStore { return sharedFiles(t, NewMemoryLog()) },
		"jetstream": func(t *testing.T) FileStore { return sharedFiles(t, fileStream(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			f, ctx := make(t), t.Context()
			long := randomText(2*chunkBytes + 12345)
			put := func(id, text string) {
				t.Helper()
				x, err := f.Put(ctx, id, id+".jsonl", "batch", int64(len(text)), strings.NewReader(text))
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
			put("file-c", "one") // again
			put("file-c", "two") // in its place
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
				if !errors.Is(err, ErrNoFile) || !errors.Is(oerr, ErrNoFile) || !errors.Is(f.Delete(ctx, id), ErrNoFile) {
					t.Errorf("%q is not there: %v, %v", id, err, oerr)
				}
			}
		})
	}
}

// TestUploadsShareTheRoom: what is being written counts, so that uploads that come at
// once do not take more together than files may.
func TestUploadsShareTheRoom(t *testing.T) {
	f, err := OpenFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.total = maxFilesBytes - 100
	put := func(id string, bytes int) error {
		_, err := f.Put(t.Context(), id, id, "batch", 1, strings.NewReader(randomText(bytes)))
		return err
	}
	pr, pw := io.Pipe()
	defer pr.Close()
	done := make(chan error, 1)
	go func() {
		_, err := f.Put(t.Context(), "file-a", "a", "batch", 1, pr)
		done <- err
	}()
	for _, n := range []int{60, 1} { // the second is read when the first has been written
		if _, err := pw.Write(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("file-b", 60); !errors.Is(err, ErrFileSize) {
		t.Errorf("60 of 100 bytes beside 60 that are being written: %v", err)
	}
	if err := put("file-c", 30); err != nil {
		t.Error(err)
	}
	for i := range maxFiles - 2 {
		f.all[fmt.Sprint("file-", i)] = File{}
	}
	if err := put("file-d", 1); !errors.Is(err, ErrFileSize) {
		t.Errorf("file %d beside one that is being written: %v", maxFiles-1, err)
	}
	pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if f.total != maxFilesBytes-9 || f.writing != 0 || f.written != 0 {
		t.Errorf("%d bytes are left, %d files with %d bytes are being written; want 9, none", maxFilesBytes-f.total, f.writing, f.written)
	}
}

// TestUploadThatIsNone: a body that is no multipart body is its sender's fault, and
// leaves nothing behind.
func TestUploadThatIsNone(t *testing.T) {
	h := open(t, NewMemoryLog(), t.TempDir(), &engine{}, Config{})
	const head = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\r\n"
	for what, body := range map[string]string{
		"nothing":            "",
		"no boundary":        "hello",
		"a broken header":    head + "--x\r\nno header\r\n\r\nbatch\r\n--x--\r\n",
		"text behind a part": head + "--x no end\r\nbatch\r\n--x--\r\n",
		"cut off":            head + "--x\r\n",
		"cut off in a part":  head[:len(head)-2],
		"too many parts":     head + strings.Repeat("--x\r\nContent-Disposition: form-data; name=\"y\"\r\n\r\n\r\n", 20) + "--x--\r\n",
	} {
		if status, answer := h.do("POST", "/v1/files", body, "Content-Type", "multipart/form-data; boundary=x"); status != 400 {
			t.Errorf("%s: %d %v", what, status, answer)
		}
	}
	const full = head + "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
	for _, begun := range []string{head[:len(head)-2], full} { // in the middle of the file, and after it
		for want, err := range map[int]error{408: os.ErrDeadlineExceeded, 400: io.ErrClosedPipe} {
			r := httptest.NewRequest("POST", "/v1/files", io.MultiReader(strings.NewReader(begun), iotest.ErrReader(err)))
			r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
			w := httptest.NewRecorder()
			h.s.api.Handler().ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%v after %d bytes: %d %s, want %d", err, len(begun), w.Code, w.Body, want)
			}
		}
	}
	if left := h.want(200, "GET", "/v1/files", "")["data"].([]any); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	f := h.s.files.(*Files)
	if on, err := os.ReadDir(f.dir); err != nil || len(on) > 0 || f.total+f.written != 0 || f.writing != 0 {
		t.Errorf("left behind: %v on disk, %d + %d bytes, %d being written, %v", on, f.total, f.written, f.writing, err)
	}
	if status, answer := api.ErrorStatus(fileProblem(fmt.Errorf("jobs: %w", os.ErrDeadlineExceeded))); status != 503 {
		t.Errorf("a store that does not answer: %d %s", status, answer)
	}
}

func randomText(n int) string {
	b, r := make([]byte, n), rand.New(rand.NewPCG(7, 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

// TestSharedFilesOutliveTheirFolder: what one process took, another one has.
func TestSharedFilesOutliveTheirFolder(t *testing.T) {
	l, ctx, long := NewMemoryLog(), t.Context(), randomText(chunkBytes+1)
	a := sharedFiles(t, l)
	if _, err := a.Put(ctx, "file-a", "in", "batch", 1, strings.NewReader(long)); err != nil {
		t.Fatal(err)
	}
	b := sharedFiles(t, l)
	if got, err := bytesOf(t, b, "file-a"); err != nil || got != long {
		t.Errorf("%d bytes, want %d, %v", len(got), len(long), err)
	}
	// A damaged copy is fetched again; damage in the log has a name.
	data := filepath.Join(b.local.dir, "file-a.data")
	if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := bytesOf(t, b, "file-a"); err != nil || got != long {
		t.Errorf("after damage to the copy: %d bytes, %v", len(got), err)
	}
	l.messages[0].data = bytes.Clone(l.messages[0].data)
	l.messages[0].data[recordHead+100] ^= 1
	if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bytesOf(t, b, "file-a"); !errors.Is(err, ErrDamaged) {
		t.Errorf("a flipped bit: %v", err)
	}
}

// inBetween is a log at which somebody is faster than an append.
type inBetween struct {
	*MemoryLog
	before func()
}

func (l *inBetween) Append(ctx context.Context, journal string, after uint64, data []byte) (uint64, error) {
	if f := l.before; f != nil {
		l.before = nil
		f()
	}
	return l.MemoryLog.Append(ctx, journal, after, data)
}

// TestHalfAFileIsAbandoned: its writer hears of it, or has ended it first.
func TestHalfAFileIsAbandoned(t *testing.T) {
	ctx := t.Context()
	for name, ends := range map[string]bool{"the writer is late": false, "the writer is faster": true} {
		t.Run(name, func(t *testing.T) {
			l := NewMemoryLog()
			j := journal{Journal: Journal{Name: "file-x"}}
			write := func(kind Kind, payload string) error {
				r := Record{kind: kind, payload: []byte(payload)}
				_, err := j.append(ctx, l, &r, func(*Record) error { return ErrConflict })
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
			early := &SharedFiles{log: l}
			if _, err := early.Get(ctx, "file-x"); !errors.Is(err, ErrNoFile) {
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
			if err := write(KindFile, meta); !errors.Is(err, ErrConflict) {
				t.Errorf("its writer goes on: %v", err)
			}
		})
	}
}

// breaking is a log whose second append is not answered.
type breaking struct {
	*MemoryLog
	appends int
	then    func()
}

func (l *breaking) Append(ctx context.Context, journal string, after uint64, data []byte) (uint64, error) {
	if l.appends++; l.appends == 2 {
		l.then()
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return l.MemoryLog.Append(ctx, journal, after, data)
}

// TestUploadThatTheLogDoesNotTake: a client who leaves while his file goes to the log, or
// whose time for a silent log is over, leaves none of it there.
func TestUploadThatTheLogDoesNotTake(t *testing.T) {
	for want, limit := range map[error]time.Duration{context.Canceled: time.Hour, context.DeadlineExceeded: 100 * time.Millisecond} {
		ctx, cancel := context.WithCancel(hurried(t.Context(), limit))
		l := &breaking{MemoryLog: NewMemoryLog(), then: func() {}}
		if want == context.Canceled {
			l.then = cancel
		}
		f := sharedFiles(t, l)
		_, err := f.Put(ctx, "file-x", "x", "batch", 1, strings.NewReader(randomText(2*chunkBytes)))
		cancel()
		names, jerr := l.Journals(t.Context())
		copies, lerr := f.local.List(t.Context())
		if !errors.Is(err, want) || len(names)+len(copies) > 0 || jerr != nil || lerr != nil {
			t.Errorf("%v: in the log %v, %v, in the folder %v, %v; want %v, none", err, names, jerr, copies, lerr, want)
		}
	}
}

// TestTakeFiles: files of a folder move into the log, damaged ones stay.
func TestTakeFiles(t *testing.T) {
	ctx := t.Context()
	from, err := OpenFiles(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"file-a", "file-b", "file-bad"} {
		if _, err := from.Put(ctx, id, id, "batch", 1, strings.NewReader(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(from.path("file-bad", "data"), []byte("file-BAD"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := NewMemoryLog()
	to := sharedFiles(t, log)
	var written Usage
	for _, step := range []struct {
		away bool
		left int // files in the folder
	}{{false, 3}, {true, 1}, {true, 1}} {
		damage, err := to.Take(ctx, from, step.away)
		if err != nil || !errors.Is(damage, ErrDamaged) {
			t.Fatalf("%v, damage %v", err, damage)
		}
		left, _ := from.List(ctx)
		if len(left) != step.left || !slices.ContainsFunc(left, func(f File) bool { return f.ID == "file-bad" }) {
			t.Errorf("after %+v: left %v", step, left)
		}
		now, err := log.Usage(ctx)
		if err != nil || written != (Usage{}) && now != written {
			t.Errorf("what was there was written again: %+v, before %+v, %v", now, written, err)
		}
		written = now
	}
	for _, id := range []string{"file-a", "file-b"} {
		if got, err := bytesOf(t, to, id); err != nil || got != id {
			t.Errorf("%s: %q %v", id, got, err)
		}
	}
}

// TestBatchTakenOver: another process with another disk ends the batch.
func TestBatchTakenOver(t *testing.T) {
	l, fl := NewMemoryLog(), NewMemoryLog()
	h := openWith(t, l, sharedFiles(t, fl), &engine{away: true}, Config{Window: 4})
	in := h.upload(batchLines(10))
	id := h.want(200, "POST", "/v1/batches", `{"input_file_id":"`+in+`","endpoint":"/v1/completions","completion_window":"24h"}`)["id"].(string)
	h.close()
	h = openWith(t, l, sharedFiles(t, fl), &engine{}, Config{Window: 4})
	b := h.batchUntil(id, func(b map[string]any) bool { return b["status"] == "completed" || b["status"] == "failed" })
	if b["status"] != "completed" {
		t.Fatalf("%v", b)
	}
	out := b["output_file_id"]
	h.close()
	h = openWith(t, l, sharedFiles(t, fl), &engine{}, Config{})
	if lines := h.lines(out); len(lines) != 10 {
		t.Errorf("a third process finds %d lines in the output", len(lines))
	}
	if b := h.want(200, "GET", "/v1/files", ""); len(b["data"].([]any)) != 2 {
		t.Errorf("files: %v", b["data"])
	}
	h.want(200, "DELETE", "/v1/files/"+in, "")
	h.want(404, "GET", "/v1/files/"+in, "")
}
