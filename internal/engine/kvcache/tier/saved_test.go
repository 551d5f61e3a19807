package tier

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// savedIn opens the caches of idle sessions in a folder, with a limit and a clock.
func savedIn(t testing.TB, dir string, limit int64, now *time.Time) (*Saved, *Scratch) {
	t.Helper()
	scratch := NewScratch(func() (Medium, error) { return os.CreateTemp(t.TempDir(), "rows") }, limit, slog.New(slog.DiscardHandler))
	s, err := openSaved(filepath.Join(dir, savedFolder), scratch, slog.New(slog.DiscardHandler), func() time.Time { return *now })
	if err != nil {
		t.Fatal(err)
	}
	scratch.saved = s
	t.Cleanup(scratch.Close)
	return s, scratch
}

func cacheOf(session byte, tokens int, until int64) SavedCache {
	return SavedCache{Key: Key{session}, Form: [32]byte{1}, Digest: [32]byte{byte(tokens)}, Prompt: 4, Tokens: tokens, Until: until}
}

var savedPieces = [][]byte{bytes.Repeat([]byte{7}, 100), {}, []byte("the last piece")}

const piecesBytes = 114

func saveCache(s *Saved, c SavedCache) error {
	w, err := s.Create(c, len(savedPieces), piecesBytes)
	if err != nil {
		return err
	}
	for _, p := range savedPieces {
		if err := w.Piece(p); err != nil {
			return err
		}
	}
	return w.Commit()
}

// loads reads a cache and compares it. The error is that of the file.
func loads(t *testing.T, s *Saved, c SavedCache) error {
	t.Helper()
	r, err := s.Open(c, len(savedPieces), piecesBytes)
	if err != nil {
		return err
	}
	defer r.Close()
	for _, want := range savedPieces {
		got := make([]byte, len(want))
		if err := r.Piece(got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("other bytes came back: %q", got)
		}
	}
	return nil
}

func filesIn(t *testing.T, s *Saved) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != lockName {
			names = append(names, e.Name())
		}
	}
	return names
}

// A cache outlives its process. A newer cache of a session replaces the older one. Caches are removed at
// the end of their session, and unfinished files at the start of a process.
func TestSavedOutlivesProcess(t *testing.T) {
	dir, now := t.TempDir(), time.UnixMilli(1000)
	s, scratch := savedIn(t, dir, 10_000, &now)
	for _, c := range []SavedCache{cacheOf(1, 8, 5000), cacheOf(2, 9, 9000), cacheOf(1, 20, 6000)} {
		if err := saveCache(s, c); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Stats(); got.Caches != 2 || got.Bytes != 2*SavedBytes(3, piecesBytes) || got.Written != 3 || len(filesIn(t, s)) != 2 {
		t.Fatalf("%+v, files %v", got, filesIn(t, s))
	}
	w, err := s.Create(cacheOf(3, 8, 5000), 3, piecesBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Piece(savedPieces[0]); err != nil {
		t.Fatal(err)
	}
	if _, known := s.Find(Key{3}); known {
		t.Fatal("Find returns a cache before Commit")
	}
	scratch.Close() // as if killed
	again, _ := savedIn(t, dir, 10_000, &now)
	if again.dir != s.dir || len(filesIn(t, again)) != 2 {
		t.Fatalf("%s, not %s, has %v", again.dir, s.dir, filesIn(t, again))
	}
	for _, want := range []SavedCache{cacheOf(2, 9, 9000), cacheOf(1, 20, 6000)} {
		c, known := again.Find(want.Key)
		if !known || c != want {
			t.Fatalf("%+v, %v; want %+v", c, known, want)
		}
		if err := loads(t, again, c); err != nil {
			t.Fatal(err)
		}
	}
	if err := loads(t, again, cacheOf(1, 8, 5000)); !errors.Is(err, ErrDamaged) {
		t.Fatalf("an earlier state of the session: %v", err)
	}
	if err := saveCache(again, cacheOf(1, 20, 6000)); err != nil {
		t.Fatal(err)
	}
	if err := again.Remove(Key{2})(); err != nil {
		t.Error(err)
	}
	if _, known := again.Find(Key{2}); known || len(filesIn(t, again)) != 1 {
		t.Fatal("a session that has ended has a cache")
	}
	other, _ := savedIn(t, dir, 10_000, &now)
	now = time.UnixMilli(6000)
	if _, known := again.Find(Key{1}); known {
		t.Fatal("a session that is over has a cache")
	}
	other.Sweep() // of another process
	if names := filesIn(t, again); len(names) > 0 {
		t.Fatalf("%v are left", names)
	}
	again.Sweep()
	if got := again.Stats(); got.Caches != 0 || got.Bytes != 0 {
		t.Fatalf("%+v", got)
	}
	if err := saveCache(again, cacheOf(1, 8, 6000)); !errors.Is(err, ErrScratch) {
		t.Fatalf("the cache of a session that is over: %v", err)
	}
}

// Caches of sessions and rows of running sequences share one limit. The oldest caches are removed first.
func TestSavedYields(t *testing.T) {
	now, one := time.UnixMilli(1000), SavedBytes(3, piecesBytes)
	s, scratch := savedIn(t, t.TempDir(), 3*one, &now)
	for i := range byte(4) {
		if err := saveCache(s, cacheOf(i, 8, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	there := func() (list string) {
		for i := range byte(10) {
			if _, known := s.Find(Key{i}); known {
				list += string('0' + rune(i))
			}
		}
		return list
	}
	if there() != "123" {
		t.Fatalf("%s are there, want the newest three", there())
	}
	rows, err := scratch.Create(one + 1)
	if err != nil || there() != "3" || len(filesIn(t, s)) != 1 {
		t.Fatalf("%v: %s are there", err, there())
	}
	if _, err := scratch.Create(3 * one); !errors.Is(err, ErrScratch) {
		t.Fatalf("more than the limit: %v", err)
	}
	if err := saveCache(s, cacheOf(5, 8, 5000)); err != nil || there() != "5" {
		t.Fatalf("%v: %s are there", err, there())
	}
	rows2, err := scratch.Create(2*one - 1)
	if err != nil || there() != "" {
		t.Fatalf("%v: %s are there", err, there())
	}
	if err := saveCache(s, cacheOf(6, 8, 5000)); !errors.Is(err, ErrScratch) {
		t.Fatalf("rows of running sequences gave way: %v", err)
	}
	rows.Close()
	rows2.Close()
	for began := time.Now(); scratch.Stats().Used > 0 && time.Since(began) < 10*time.Second; {
		time.Sleep(time.Millisecond)
	}
	if got := scratch.Stats().Used + scratch.kept.Load(); got != 0 {
		t.Fatalf("%d bytes are in use", got)
	}
}

// A file with a changed byte is refused and removed.
func TestSavedDamaged(t *testing.T) {
	dir, now := t.TempDir(), time.UnixMilli(1000)
	size := int(SavedBytes(3, piecesBytes))
	for at := range size + 1 {
		s, scratch := savedIn(t, dir, 10_000, &now)
		c := cacheOf(1, 8, 5000)
		if err := saveCache(s, c); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(s.dir, c.name())
		b, err := os.ReadFile(path)
		if err != nil || len(b) != size {
			t.Fatalf("%d bytes, want %d: %v", len(b), size, err)
		}
		if at < size {
			b[at] ^= 4
		} else {
			b = b[:size-1]
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := loads(t, s, c); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d was changed: %v", at, err)
		}
		if _, known := s.Find(c.Key); known || len(filesIn(t, s)) > 0 || s.Stats().Failed != 1 || s.Stats().Bytes != 0 {
			t.Fatalf("byte %d: a damaged file stays: %+v", at, s.Stats())
		}
		scratch.Close()
	}
}

// FuzzSaved: decodeSaved refuses bytes, or returns a header that encodes to the same bytes.
func FuzzSaved(f *testing.F) {
	c := cacheOf(3, 9, 1<<40)
	whole := encodeSaved(&c, 100)
	f.Add(whole, int64(savedHeader+100))
	f.Add(whole[:savedHeader-1], int64(savedHeader))
	f.Add([]byte(savedMagic+strings.Repeat("x", savedHeader-len(savedMagic))), int64(1))
	f.Fuzz(func(t *testing.T, b []byte, size int64) {
		c, err := decodeSaved(b, size)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		if c.Prompt < 1 || c.Tokens < c.Prompt || !bytes.Equal(encodeSaved(&c, size-int64(savedHeader)), b) {
			t.Fatalf("%+v of %d bytes", c, size)
		}
	})
}

// A removal does not touch a cache that is written after it was ordered, on this process or by one that is gone.
func TestSavedRemovedBeforeWrite(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	until := now.Add(time.Hour).UnixMilli()
	s, _ := savedIn(t, dir, 10_000, &now)
	ended, scratch := savedIn(t, dir, 10_000, &now)
	for _, x := range []*Saved{s, ended} {
		if err := saveCache(x, cacheOf(1, 8, until)); err != nil {
			t.Fatal(err)
		}
	}
	now = time.Now().Add(time.Second)
	files := s.Remove(Key{1})
	if _, known := s.Find(Key{1}); known {
		t.Error("a session that has ended has a cache")
	}
	for _, x := range []*Saved{s, ended} {
		for _, c := range []SavedCache{cacheOf(1, 9, until), cacheOf(2, 9, until)} { // the file of the first has the same name
			if err := saveCache(x, c); err != nil {
				t.Fatal(err)
			}
		}
	}
	scratch.Close()
	newer := filepath.Join(ended.dir, filepath.Base(s.files[Key{1}].Value.(*savedFile).path))
	if err := os.Chtimes(newer, now, now.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := files(); err != nil || len(filesIn(t, s)) != 2 || len(filesIn(t, ended)) != 2 {
		t.Errorf("%v: %v and %v are left", err, filesIn(t, s), filesIn(t, ended))
	}
	if err := loads(t, s, cacheOf(1, 9, until)); err != nil {
		t.Errorf("the cache of the next session: %v", err)
	}
	if got := s.Stats(); got.Caches != 2 || got.Bytes != 2*SavedBytes(3, piecesBytes) {
		t.Errorf("%+v", got)
	}
	now = now.Add(2 * time.Second)
	if err := s.Remove(Key{1})(); err != nil || len(filesIn(t, s)) != 1 || len(filesIn(t, ended)) != 1 {
		t.Errorf("%v: %v and %v are left", err, filesIn(t, s), filesIn(t, ended))
	}
}

// A file that cannot be removed counts, and is removed later. No other file is removed for it.
func TestSavedCannotBeRemoved(t *testing.T) {
	now, one := time.UnixMilli(1000), SavedBytes(3, piecesBytes)
	s, scratch := savedIn(t, t.TempDir(), 4*one, &now)
	stuck := func(i byte) (path string) {
		c := cacheOf(i, 8, 5000)
		if err := saveCache(s, c); err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(s.dir, c.name())
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := stuck(1), stuck(2)
	for i := range byte(2) {
		if err := saveCache(s, cacheOf(3+i, 8, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := s.Remove(Key{1})(); err == nil {
			t.Error("a file that stays was removed")
		}
	}
	if got := s.Stats(); got.Bytes != 4*one || got.Caches != 3 || got.Failed != 2 {
		t.Errorf("a file that stays: %+v", got)
	}
	if err := saveCache(s, cacheOf(5, 8, 5000)); !errors.Is(err, ErrRoom) { // for the second file
		t.Errorf("a write without room: %v", err)
	}
	if got := s.Stats(); got.Bytes != 4*one || got.Caches != 2 {
		t.Errorf("two files that stay: %+v", got)
	}
	if err := saveCache(s, cacheOf(5, 8, 5000)); err != nil { // for the third file
		t.Error(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(first, "x")), os.Remove(filepath.Join(second, "x"))); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(Key{1})(); err != nil || scratch.kept.Load() != 3*one {
		t.Errorf("%v: %d bytes count", err, scratch.kept.Load())
	}
	if s.Sweep(); scratch.kept.Load() != 2*one || len(filesIn(t, s)) != 2 {
		t.Errorf("%d bytes count, %v are left", scratch.kept.Load(), filesIn(t, s))
	}
}
