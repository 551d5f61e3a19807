package tier

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

var form = Form{Hash: [32]byte{7}, HeadBytes: 96}

func open(t *testing.T, dir string, limit int64) *Store {
	t.Helper()
	s, err := Open(dir, limit, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// rows are the rows of heads of a block. Every process computes the same rows.
func rows(k Key, at int, heads tensor.Span) (out []byte) {
	for h := heads.Lo; h < heads.Hi; h++ {
		rng := rand.New(rand.NewPCG(uint64(k[0])<<8|uint64(at), uint64(h)))
		for range form.HeadBytes {
			out = append(out, byte(rng.Uint32()))
		}
	}
	return out
}

func put(s *Store, k Key, at int, heads tensor.Span) {
	before := k // the previous key in these texts
	before[2]--
	s.Write(k, before, at, heads, form, rows(k, at, heads))
}

// finds reads a block and compares it. A result is never another block's.
func finds(t *testing.T, s *Store, k Key, at int, heads tensor.Span) bool {
	t.Helper()
	got := make([]byte, heads.Len()*form.HeadBytes)
	if !s.Read(k, at, heads, form, got) {
		return false
	}
	if !bytes.Equal(got, rows(k, at, heads)) {
		t.Fatalf("block %d of %x, heads %v: other rows came back", at, k[0], heads)
	}
	return true
}

// TestNewFolder: a folder without a lock belongs to a process that is about to lock it, unless the folder is old.
func TestNewFolder(t *testing.T) {
	root := filepath.Join(t.TempDir(), "d")
	s := open(t, root, 1<<20)
	dir := filepath.Join(root, "7")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Rescan()
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a folder that another process has just made: %v", err)
	}
	old := time.Now().Add(-2 * deserted)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	s.Rescan()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old folder without a lock stayed: %v", err)
	}
}

// A process finds blocks that it and others have written: after its end, from other folders, and
// where other processes have divided the heads differently. Two processes never write into one
// folder.
func TestProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	a, b := open(t, dir, 1<<20), open(t, dir, 1<<20)
	if a.dir == b.dir {
		t.Fatalf("two processes write into %s", a.dir)
	}
	keys := []Key{{1}, {2}, {3}}
	for at, k := range keys {
		put(a, k, at, tensor.Span{Lo: 0, Hi: 3})
		if at < 2 {
			put(b, k, at, tensor.Span{Lo: 3, Hi: 8})
		}
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, a.dir: 0o700,
		filepath.Join(a.dir, name{keys[0], 0, tensor.Span{Lo: 0, Hi: 3}}.String()): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, st.Mode().Perm(), err, want)
		}
	}
	a.Close() // as if killed: no cleanup
	c := open(t, dir, 1<<20)
	if c.dir != a.dir {
		t.Errorf("the next process took %s, not %s", c.dir, a.dir)
	}
	for _, cut := range []struct {
		heads tensor.Span
		want  int
	}{{tensor.Span{Lo: 0, Hi: 3}, 3}, {tensor.Span{Lo: 1, Hi: 2}, 3}, {tensor.Span{Lo: 0, Hi: 8}, 2},
		{tensor.Span{Lo: 2, Hi: 5}, 2}, {tensor.Span{Lo: 3, Hi: 8}, 2}, {tensor.Span{Lo: 7, Hi: 9}, 0}} {
		if n := c.Has(keys, 0, cut.heads); n != cut.want {
			t.Errorf("heads %v: %d blocks are there, want %d", cut.heads, n, cut.want)
		}
		for at, k := range keys {
			if finds(t, c, k, at, cut.heads) != (at < cut.want) {
				t.Errorf("heads %v of block %d: not those of Has", cut.heads, at)
			}
		}
	}
	if c.Has(keys, 1, tensor.Span{Lo: 0, Hi: 3}) != 0 {
		t.Error("a block was found at another place of its text")
	}
	if s := c.Stats(); s.Blocks != 3 || s.Bytes == 0 {
		t.Errorf("%+v: want the three blocks of its folder", s)
	}
	c.Forget()
	if n := c.Has(keys, 0, tensor.Span{Lo: 0, Hi: 1}); n != 0 || c.Stats().Bytes != 0 {
		t.Errorf("%d blocks after all were forgotten, %+v", n, c.Stats())
	}
	c.Rescan()
	if n := c.Has(keys, 0, tensor.Span{Lo: 3, Hi: 8}); n != 2 {
		t.Errorf("%d blocks of another's folder after a scan, want 2", n)
	}
	b.Close()
	long := time.Now().Add(-2 * deserted)
	if err := os.Chtimes(filepath.Join(b.dir, lockName), long, long); err != nil {
		t.Fatal(err)
	}
	c.Rescan()
	if _, err := os.Stat(b.dir); !os.IsNotExist(err) {
		t.Errorf("a folder that no process has locked for long is still there: %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, 1, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a folder that others may read was taken")
	}
}

// The folder stays below its limit. The most used files stay, and of a text its beginning.
func TestLimit(t *testing.T) {
	one := name{heads: tensor.Span{Lo: 0, Hi: 2}}.size(form)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 10*one)
	heads := tensor.Span{Lo: 0, Hi: 2}
	for at := range 4 {
		put(s, Key{1, byte(at)}, at, heads)
	}
	for text := range 20 { // each is used once, and the first again in between
		for i := range 12 {
			at := i % 4
			if !finds(t, s, Key{1, byte(at)}, at, heads) {
				t.Fatalf("block %d of the text that was used went for texts that came once", at)
			}
		}
		for at := range 9 {
			put(s, Key{2, byte(text), byte(at)}, at, heads)
		}
		entries, err := os.ReadDir(s.dir)
		if err != nil {
			t.Fatal(err)
		}
		bytes := int64(0)
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				bytes += info.Size()
			}
		}
		if st := s.Stats(); bytes > 10*one || bytes != st.Bytes {
			t.Fatalf("%d bytes lie in the folder, %+v", bytes, st)
		}
	}
	if !finds(t, s, Key{2, 19, 0}, 0, heads) {
		t.Error("the beginning of the newest text is gone")
	}
	s.Close()
	if s = open(t, dir, 3*one); s.Stats().Bytes > 3*one || s.Stats().Blocks != 3 {
		t.Errorf("with a smaller limit: %+v", s.Stats())
	}
}

// A damaged file is a miss and is removed. A disk that fails is a miss, too.
func TestDamage(t *testing.T) {
	heads := tensor.Span{Lo: 0, Hi: 2}
	k := Key{9}
	good := func() []byte {
		n := name{k, 1, heads}
		f := n.header(form)
		f = append(f, make([]byte, 64)...)
		return append(f, rows(k, 1, heads)...)
	}
	for what, harm := range map[string]func(path string, data []byte) error{
		"a bit of the rows":    func(p string, b []byte) error { b[len(b)-1] ^= 1; return os.WriteFile(p, b, 0o600) },
		"a bit of the hash":    func(p string, b []byte) error { b[fixed] ^= 1; return os.WriteFile(p, b, 0o600) },
		"a bit of the form":    func(p string, b []byte) error { b[len(magic)] ^= 1; return os.WriteFile(p, b, 0o600) },
		"a bit of the key":     func(p string, b []byte) error { b[len(magic)+32] ^= 1; return os.WriteFile(p, b, 0o600) },
		"cut off":              func(p string, b []byte) error { return os.WriteFile(p, b[:len(b)-1], 0o600) },
		"empty":                func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o600) },
		"a byte more":          func(p string, b []byte) error { return os.WriteFile(p, append(b, 0), 0o600) },
		"without right hashes": func(p string, _ []byte) error { return os.WriteFile(p, good(), 0o600) },
		"removed":              func(p string, _ []byte) error { return os.Remove(p) },
		"a folder":             func(p string, _ []byte) error { return removeMake(p) },
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t, filepath.Join(t.TempDir(), "d"), 1<<20)
			put(s, k, 1, heads)
			path := filepath.Join(s.dir, name{k, 1, heads}.String())
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !finds(t, s, k, 1, heads) {
				t.Fatal("not found when it was whole")
			}
			if err := harm(path, slices.Clone(data)); err != nil {
				t.Fatal(err)
			}
			if finds(t, s, k, 1, heads) || s.Has([]Key{k}, 1, heads) != 0 {
				t.Error("it is still found")
			}
			put(s, k, 1, heads)
			if what != "a folder" && !finds(t, s, k, 1, heads) {
				t.Error("it was not written again")
			}
		})
	}
	s := open(t, filepath.Join(t.TempDir(), "gone"), 1<<20)
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	put(s, k, 1, heads)
	if st := s.Stats(); st.Failed == 0 || st.Written != 0 || finds(t, s, k, 1, heads) {
		t.Errorf("%+v of a disk that fails", st)
	}
}

func removeMake(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.Mkdir(path, 0o700)
}

// FuzzFile: bytes that differ from those written give no rows.
func FuzzFile(f *testing.F) {
	n := name{Key{1, 2}, 3, tensor.Span{Lo: 1, Hi: 3}}
	s, err := Open(filepath.Join(f.TempDir(), "d"), 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	put(s, n.key, n.at, n.heads)
	whole, err := os.ReadFile(filepath.Join(s.dir, n.String()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, n.String())
	f.Add(whole[:fixed], n.String()[:10])
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		got := make([]byte, form.HeadBytes)
		if err := decode(bytes.NewReader(data), n, tensor.Span{Lo: 2, Hi: 3}, form, got); err == nil {
			if !bytes.Equal(got, rows(n.key, n.at, tensor.Span{Lo: 2, Hi: 3})) &&
				bytes.Equal(data[:min(len(data), len(whole)-2*form.HeadBytes)], whole[:len(whole)-2*form.HeadBytes]) {
				t.Fatal("other rows under the right hashes")
			}
		}
		if m, err := parseName(text); err == nil && m.String() != text {
			t.Fatalf("%q was read as %q", text, m)
		}
		_ = fmt.Sprint(parseName(text))
	})
}
