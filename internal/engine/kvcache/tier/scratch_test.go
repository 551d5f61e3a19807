package tier

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

func scratch(t *testing.T, dir string, limit int64) *Scratch {
	t.Helper()
	s, err := OpenScratch(dir, limit, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func numbers(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// settles waits for the goroutine that Close starts.
func settles(t *testing.T, s *Scratch) {
	t.Helper()
	testutil.Eventually(t, 10*time.Second, "closed files free their bytes", func() (bool, string) {
		n := s.Stats().Used
		return n == 0, fmt.Sprint(n, " bytes are in use")
	})
}

// TestScratchAtOnce: nodes that start at once on one folder all open it, and each has a folder for idle sessions: one of
// the first four, so that nodes that start again find their files.
func TestScratchAtOnce(t *testing.T) {
	const nodes, times = 4, 40
	dir := filepath.Join(t.TempDir(), "kv")
	for range times {
		var open [nodes]*Scratch
		var wg sync.WaitGroup
		for i := range open {
			wg.Go(func() {
				s, err := OpenScratch(dir, 1<<20, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Error(err)
				}
				open[i] = s
			})
		}
		wg.Wait()
		for _, s := range open {
			if s != nil {
				s.Close()
			}
		}
	}
	folders, err := filepath.Glob(filepath.Join(dir, savedFolder, "*"))
	if err != nil || len(folders) != nodes {
		t.Errorf("%d nodes used the folders %v, %v", nodes, folders, err)
	}
}

// Pages return as written, also to concurrent readers. Files have no names, and count as used until
// they are closed.
func TestScratch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, scratchPrefix+"left"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, all := scratch(t, dir, 1<<20), numbers(1<<19)
	p, err := s.Create(1 << 19)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 || names[0].Name() != savedFolder {
		t.Errorf("the folder has %v, %v", names, err)
	}
	for at := 0; at < len(all); at += 1 << 16 {
		if err := p.Write(all[at:at+1<<16], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(1<<19 + 1); !errors.Is(err, ErrScratch) {
		t.Errorf("more than the limit: %v", err)
	}
	if err := p.Write(all, 1); !errors.Is(err, ErrScratch) {
		t.Errorf("beyond the end: %v", err)
	}
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			var at []int64
			for i := range 50 {
				at = append(at, int64((i*i*37+k)%120)*4096) // some adjacent, some repeated
			}
			seen := map[int]bool{}
			err := p.Read(at, 4096, func(i int, page []byte) error {
				if seen[i] || !bytes.Equal(page, all[at[i]:][:4096]) {
					t.Errorf("page %d of reader %d", i, k)
				}
				seen[i] = true
				return nil
			})
			if err != nil || len(seen) != len(at) {
				t.Errorf("%d of %d pages: %v", len(seen), len(at), err)
			}
		})
	}
	wg.Wait()
	if err := p.Read([]int64{1 << 19}, 4096, nil); !errors.Is(err, ErrScratch) {
		t.Errorf("a read beyond the end: %v", err)
	}
	p.Close()
	p.Close()
	settles(t, s)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenScratch(dir, 1, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a folder that others may read was taken")
	}
}

// faulty is a file that fails or hangs.
type faulty struct {
	bytes   []byte
	fail    error
	hang    chan struct{}
	closed  *atomic.Int32
	reading atomic.Int32
}

func (f *faulty) ReadAt(b []byte, at int64) (int, error) {
	f.reading.Add(1)
	defer f.reading.Add(-1)
	if f.hang != nil {
		<-f.hang
	}
	if f.fail != nil {
		return 0, f.fail
	}
	return copy(b, f.bytes[at:]), nil
}

func (f *faulty) WriteAt(b []byte, at int64) (int, error) {
	f.reading.Add(1)
	defer f.reading.Add(-1)
	if f.hang != nil {
		<-f.hang
	}
	if f.fail != nil {
		return 0, f.fail
	}
	return copy(f.bytes[at:], b), nil
}

func (f *faulty) Close() error {
	if f.reading.Load() > 0 {
		return errors.New("closed while it is read")
	}
	f.closed.Add(1)
	return nil
}

// A disk that fails or hangs fails in time and then rests. A read never writes into memory that its
// caller has given up.
func TestScratchFails(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		var closed atomic.Int32
		f := &faulty{bytes: make([]byte, 1<<16), closed: &closed}
		if hangs {
			f.hang = make(chan struct{})
		} else {
			f.fail = io.ErrUnexpectedEOF
		}
		s := NewScratch(func() (Medium, error) { return f, nil }, 1<<20, slog.New(slog.DiscardHandler))
		p, err := s.Create(1 << 16)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = p.Read([]int64{0, 8192, 16384, 4096, 0, 0}, 4096, func(int, []byte) error {
			t.Error("a page came")
			return nil
		})
		if took := time.Since(began); !errors.Is(err, ErrScratch) || hangs && took < ScratchTimeout {
			t.Errorf("hangs %v: %v after %v", hangs, err, took)
		}
		began = time.Now()
		if err := p.Read([]int64{0}, 4096, nil); !errors.Is(err, ErrScratch) || !s.Paused() || time.Since(began) >= ScratchTimeout {
			t.Errorf("hangs %v: then %v, resting %v", hangs, err, s.Paused())
		}
		if _, err := s.Create(1); !errors.Is(err, ErrScratch) {
			t.Errorf("a file on a disk that is left alone: %v", err)
		}
		p.Close()
		if hangs {
			if closed.Load() != 0 {
				t.Error("closed under its readers")
			}
			close(f.hang)
		}
		settles(t, s)
		if s.Stats().Failed < 1 || closed.Load() != 1 {
			t.Errorf("hangs %v: %+v, closed %d times", hangs, s.Stats(), closed.Load())
		}
		s.Close()
	}
}

// Put writes a copy, so its caller may use the bytes again although a hanging disk writes them later.
func TestScratchPut(t *testing.T) {
	var closed atomic.Int32
	f := &faulty{bytes: make([]byte, 1<<12), closed: &closed}
	s := NewScratch(func() (Medium, error) { return f, nil }, 1<<20, slog.New(slog.DiscardHandler))
	defer s.Close()
	p, err := s.Create(1 << 12)
	if err != nil {
		t.Fatal(err)
	}
	b := numbers(100)
	if err := p.Put(b, 40); err != nil || !bytes.Equal(f.bytes[40:140], b) {
		t.Fatalf("%v %v", err, f.bytes[40:140])
	}
	if err := p.Put(b, 4000); !errors.Is(err, ErrScratch) || s.Paused() {
		t.Errorf("beyond the end: %v, resting %v", err, s.Paused())
	}
	f.hang = make(chan struct{})
	began := time.Now()
	if err := p.Put(b, 200); !errors.Is(err, ErrScratch) || time.Since(began) < ScratchTimeout {
		t.Errorf("a hanging disk: %v", err)
	}
	clear(b)
	p.Close()
	close(f.hang)
	settles(t, s)
	if closed.Load() != 1 || !bytes.Equal(f.bytes[200:300], numbers(100)) {
		t.Errorf("closed %d times, the late write is %v", closed.Load(), f.bytes[200:300])
	}
	if err := p.Put(b, 0); !errors.Is(err, ErrScratch) {
		t.Errorf("while it rests: %v", err)
	}
}

// half can read every second page without waiting.
type half struct {
	*faulty
	spot int
}

func (h *half) ReadReady(b []byte, at int64) bool {
	if at/4096%2 == 0 {
		return false
	}
	h.spot++
	return copy(b, h.bytes[at:]) == len(b)
}

// Pages that are ready and pages that are waited for all arrive at their places.
func TestScratchReady(t *testing.T) {
	var closed atomic.Int32
	h := &half{faulty: &faulty{bytes: numbers(1 << 18), closed: &closed}}
	s := NewScratch(func() (Medium, error) { return h, nil }, 1<<20, slog.New(slog.DiscardHandler))
	defer s.Close()
	p, err := s.Create(1 << 18)
	if err != nil {
		t.Fatal(err)
	}
	var at []int64
	for i := range 40 {
		at = append(at, int64(i*i*7%64)*4096)
	}
	seen := map[int]bool{}
	err = p.Read(at, 4096, func(i int, page []byte) error {
		if seen[i] || !bytes.Equal(page, h.bytes[at[i]:][:4096]) {
			t.Errorf("page %d", i)
		}
		seen[i] = true
		return nil
	})
	if err != nil || len(seen) != len(at) || h.spot == 0 || h.spot == len(at) || s.Stats().Read != 40 {
		t.Errorf("%d of %d pages, %d on the spot: %v, %+v", len(seen), len(at), h.spot, err, s.Stats())
	}
	p.Close()
	settles(t, s)
}

// stopped is a file whose first reads end just after their deadline, as when the process was stopped meanwhile.
type stopped struct {
	*faulty
	slow atomic.Int32 // reads that have not begun yet
}

func (f *stopped) ReadAt(b []byte, at int64) (int, error) {
	if f.slow.Add(-1) >= 0 {
		time.Sleep(ScratchTimeout + hangGrace/10)
	}
	return f.faulty.ReadAt(b, at)
}

// TestScratchAfterStop: a read of more pages than the goroutines take at once survives a pause of the process.
func TestScratchAfterStop(t *testing.T) {
	const pages = (scratchReaders + 1) * pagesAJob
	var err error
	for range 3 { // a busy machine may exceed the grace
		f := &stopped{faulty: &faulty{bytes: make([]byte, pages), closed: new(atomic.Int32)}}
		f.slow.Store(scratchReaders)
		s := NewScratch(func() (Medium, error) { return f, nil }, 1<<20, slog.New(slog.DiscardHandler))
		p, failed := s.Create(pages)
		if failed != nil {
			t.Fatal(failed)
		}
		at, read := make([]int64, pages), 0
		for i := range at {
			at[i] = int64(i)
		}
		err = p.Read(at, 1, func(int, []byte) error { read++; return nil })
		p.Close()
		s.Close()
		if err == nil && read == pages {
			return
		}
	}
	t.Errorf("the read failed: %v", err)
}
