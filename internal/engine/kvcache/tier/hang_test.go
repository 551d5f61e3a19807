package tier

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/testutil"
)

// valve is a disk whose requests wait while it is shut.
type valve struct {
	mu   sync.Mutex
	open chan struct{}
	at   string // the kind of request that waits
}

func (v *valve) shut(at string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at, v.open = at, make(chan struct{})
}

func (v *valve) release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at = ""
	close(v.open)
}

func (v *valve) pass(kind string) {
	v.mu.Lock()
	waits, open := v.at == kind, v.open
	v.mu.Unlock()
	if waits {
		<-open
	}
}

// valved is a file behind a valve.
type valved struct {
	*os.File
	v *valve
}

func (f valved) Read(b []byte) (int, error)  { f.v.pass("read"); return f.File.Read(b) }
func (f valved) Write(b []byte) (int, error) { f.v.pass("write"); return f.File.Write(b) }
func (f valved) Close() error                { f.v.pass("close"); return f.File.Close() }

func (v *valve) wrap(kind string, f *os.File, err error) (SavedMedium, error) {
	v.pass(kind)
	if err != nil {
		return nil, err
	}
	return valved{f, v}, nil
}

// A hung request for the cache of an idle session fails within SavedTimeout. The disk is then not used, not even by
// requests that would be the first of their kind. When it works again the cache is there as before, or there is none, and
// no byte stays reserved.
func TestSavedHangs(t *testing.T) {
	for _, kind := range []string{"open", "read", "create", "write", "close"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			now, v := time.UnixMilli(1000), &valve{}
			s, scratch := savedIn(t, t.TempDir(), 10_000, &now)
			s.open = func(path string) (SavedMedium, error) { f, err := os.Open(path); return v.wrap("open", f, err) }
			create := s.create
			s.create = func() (SavedMedium, error) {
				m, err := create()
				f, _ := m.(*os.File)
				return v.wrap("create", f, err)
			}
			c, d := cacheOf(1, 8, 1<<40), cacheOf(2, 8, 1<<40)
			if err := saveCache(s, c); err != nil {
				t.Fatal(err)
			}
			v.shut(kind)
			began := time.Now()
			reads := kind == "open" || kind == "read"
			var err error
			if reads {
				err = loads(t, s, c)
			} else {
				err = saveCache(s, d)
			}
			if took := time.Since(began); !errors.Is(err, ErrScratch) || took < SavedTimeout || took > 2*SavedTimeout {
				t.Fatalf("%v after %v", err, took)
			}
			began = time.Now()
			if _, known := s.Find(c.Key); known {
				t.Error("a cache on a disk that hangs was found")
			}
			if err := loads(t, s, c); !errors.Is(err, ErrScratch) {
				t.Errorf("a load: %v", err)
			}
			now = now.Add(2 * savedRest) // the request still hangs
			if err := saveCache(s, d); !errors.Is(err, ErrScratch) {
				t.Errorf("a write: %v", err)
			}
			if took := time.Since(began); took >= SavedTimeout {
				t.Errorf("a disk that hangs was used: %v", took)
			}
			v.release()
			testutil.Eventually(t, time.Minute, "the request ends", func() (bool, string) { return s.disk.ok(now), "" })
			if err := loads(t, s, c); err != nil {
				t.Errorf("the cache from before: %v", err)
			}
			_, known := s.Find(d.Key)
			if want := kind == "close"; known != want { // it was complete
				t.Errorf("the cache that was being written is known: %v", known)
			}
			if known {
				if err := loads(t, s, d); err != nil {
					t.Error(err)
				}
				if err := s.Remove(d.Key)(); err != nil {
					t.Error(err)
				}
			}
			if one := SavedBytes(3, piecesBytes); scratch.kept.Load() != one || len(filesIn(t, s)) != 1 {
				t.Errorf("%d bytes are reserved for a file of %d; files %v", scratch.kept.Load(), one, filesIn(t, s))
			}
		})
	}
}

// A removal or a sweep on a disk that hangs ends in time, and the disk is then not used by other requests. When it works
// again, the files are removed.
func TestSavedRemovalHangs(t *testing.T) {
	for _, kind := range []string{"remove", "list"} {
		for _, sweeps := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, sweeps), func(t *testing.T) {
				t.Parallel()
				now, v := time.UnixMilli(1000), &valve{}
				s, scratch := savedIn(t, t.TempDir(), 10_000, &now)
				s.remove = func(path string) error { v.pass("remove"); return os.Remove(path) }
				s.read = func(dir string) ([]fs.DirEntry, error) { v.pass("list"); return os.ReadDir(dir) }
				c, d := cacheOf(1, 8, 5000), cacheOf(2, 8, 1<<40)
				if err := errors.Join(saveCache(s, c), saveCache(s, d)); err != nil {
					t.Fatal(err)
				}
				if sweeps {
					now = now.Add(time.Hour)
				}
				v.shut(kind)
				began := time.Now()
				var err error
				if sweeps {
					s.Sweep()
				} else {
					err = s.Remove(c.Key)()
				}
				if took := time.Since(began); !sweeps && !errors.Is(err, ErrScratch) || took < SavedTimeout || took > 2*SavedTimeout {
					t.Fatalf("%v after %v", err, took)
				}
				began = time.Now()
				if _, known := s.Find(d.Key); known {
					t.Error("a cache on a disk that hangs was found")
				}
				if err := loads(t, s, d); !errors.Is(err, ErrScratch) {
					t.Errorf("a load: %v", err)
				}
				s.Sweep()
				if err := s.Remove(c.Key)(); !errors.Is(err, ErrScratch) {
					t.Errorf("the next removal: %v", err)
				}
				if took := time.Since(began); took >= SavedTimeout {
					t.Errorf("a disk that hangs was used: %v", took)
				}
				v.release()
				now = now.Add(2 * savedRest)
				testutil.Eventually(t, time.Minute, "the request ends", func() (bool, string) { return s.disk.ok(now), "" })
				if s.Sweep(); !sweeps {
					err = s.Remove(c.Key)()
				}
				if one := SavedBytes(3, piecesBytes); err != nil && !sweeps || scratch.kept.Load() != one || len(filesIn(t, s)) != 1 {
					t.Errorf("%v: %d bytes are reserved for a file of %d; files %v", err, scratch.kept.Load(), one, filesIn(t, s))
				}
				if err := loads(t, s, d); err != nil {
					t.Errorf("the other cache: %v", err)
				}
			})
		}
	}
}

// A disk hangs while files are created and written. Callers wait once for ScratchTimeout, not for each request and not
// again after ScratchPause. When it works again, it is used, and no byte stays reserved.
func TestScratchHangsOnce(t *testing.T) {
	for _, creates := range []bool{false, true} {
		t.Run(fmt.Sprint(creates), func(t *testing.T) { t.Parallel(); hangsOnce(t, creates) })
	}
}

func hangsOnce(t *testing.T, creates bool) {
	v, closed := &valve{}, atomic.Int32{}
	s := NewScratch(func() (Medium, error) {
		v.pass("create")
		return &slow{faulty{bytes: make([]byte, 1<<12), closed: &closed}, v}, nil
	}, 1<<20, slog.New(slog.DiscardHandler))
	defer s.Close()
	p, err := s.Create(1 << 12)
	if err != nil {
		t.Fatal(err)
	}
	request := func() error { return p.Put(numbers(100), 0) }
	if v.shut("write"); creates {
		v.shut("create")
		request = func() error { _, err := s.Create(1 << 12); return err }
	}
	began, most := time.Now(), time.Duration(0)
	for i := 0; time.Since(began) < ScratchTimeout+ScratchPause+2*time.Second; i++ {
		at := time.Now()
		if err := request(); !errors.Is(err, ErrScratch) {
			t.Fatalf("creates %v: %v", creates, err)
		}
		if took := time.Since(at); i > 0 {
			most = max(most, took)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if most >= ScratchTimeout {
		t.Errorf("creates %v: a later request waits %v for a disk that hangs", creates, most)
	}
	v.release()
	testutil.Eventually(t, time.Minute, "the disk is used", func() (bool, string) {
		err := p.Put(numbers(100), 0)
		return err == nil, ""
	})
	p.Close()
	settles(t, s)
}

// slow is a file whose writes wait at a valve.
type slow struct {
	faulty
	v *valve
}

func (f *slow) WriteAt(b []byte, at int64) (int, error) {
	f.v.pass("write")
	return f.faulty.WriteAt(b, at)
}

// The end of a session removes its files also from the folder of a process that is gone. Such a folder is removed after
// a day, unless its process comes back, or the others have only just started.
func TestSavedOfGoneProcesses(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	s, _ := savedIn(t, dir, 10_000, &now)
	ended, scratch := savedIn(t, dir, 10_000, &now)
	until := now.Add(30 * 24 * time.Hour).UnixMilli()
	for i := range byte(3) {
		if err := saveCache(ended, cacheOf(i, 8, until)); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Second) // after the writes
	left := func(want int) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(ended.dir, "*-*"))
		if err != nil || len(files) != want {
			t.Errorf("%d files are left, want %d; %v", len(files), want, err)
		}
	}
	if err := s.Remove(Key{1})(); err != nil {
		t.Error(err)
	}
	left(3) // its process has to remove it
	scratch.Close()
	if err := s.Remove(Key{1})(); err != nil {
		t.Error(err)
	}
	left(2)
	s.Sweep()
	left(2)
	now = now.Add(savedDeserted + time.Hour)
	late, lateScratch := savedIn(t, dir, 10_000, &now) // takes the folder
	if late.dir != ended.dir {
		t.Fatalf("the folder %s is not taken, but %s", ended.dir, late.dir)
	}
	s.Sweep()
	left(2)
	late.Sweep()
	lateScratch.Close()
	now = now.Add(savedDeserted - time.Minute)
	s.Sweep()
	left(2)
	now = now.Add(time.Hour)
	fresh, _ := savedIn(t, t.TempDir(), 10_000, &now)
	fresh.root = s.root
	fresh.Sweep() // it has just started
	left(2)
	s.Sweep()
	if _, err := os.Stat(ended.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of a process that is gone stays: %v", err)
	}
}
