//go:build linux

package sharedmem

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// regions opens one file several times, as several processes would.
func regions(t *testing.T, n int) (*os.File, []*Region) {
	t.Helper()
	f, err := Create()
	if errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	all := make([]*Region, n)
	for i := range all {
		if all[i], err = Open(f); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { all[i].Close() })
	}
	return f, all
}

func take(t *testing.T, r *Region, key byte, n int, filled bool) *Part {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	p, err := r.Take(ctx, Key{key}, n)
	if err != nil {
		t.Fatal(err)
	}
	if p.Filled() != filled || len(p.Bytes()) != n {
		t.Fatalf("part %d: %d bytes, filled %v; want %d, %v", key, len(p.Bytes()), p.Filled(), n, filled)
	}
	return p
}

func memory(t *testing.T, f *os.File) int64 {
	t.Helper()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Blocks * 512
}

// A part that one process filled is shared without further memory, until the last process releases
// it.
func TestPartsAreShared(t *testing.T) {
	f, r := regions(t, 3)
	least := memory(t, f)
	a := take(t, r[0], 1, 5<<20, false)
	for i := range a.Bytes() {
		a.Bytes()[i] = byte(i)
	}
	other := take(t, r[1], 2, 100, false)
	a.Done()
	b, again := take(t, r[1], 1, 5<<20, true), take(t, r[1], 1, 5<<20, true)
	for i, x := range b.Bytes() {
		if x != byte(i) {
			t.Fatalf("byte %d is %d", i, x)
		}
	}
	if huge, all := r[1].Huge(); all != 3 || huge != all {
		t.Errorf("%d of %d stretches in huge pages", huge, all)
	}
	if got := memory(t, f); got > least+8<<20 {
		t.Errorf("%d bytes of memory for 5 MiB", got)
	}
	for i, p := range []*Part{a, a, b, again, other} {
		if had := memory(t, f); i < 4 && had < 5<<20 {
			t.Errorf("%d bytes of memory while a process has the part", had)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := memory(t, f); got > least+2<<20 { // a huge page of the directory
		t.Errorf("%d bytes of memory, %d before, when no process has parts", got, least)
	}
	for _, x := range take(t, r[2], 1, 5<<20, false).Bytes() {
		if x != 0 {
			t.Fatal("begins with old bytes")
		}
	}
}

// Take waits for a part that another process fills, and restarts one that was left half full.
func TestPartsAreWaitedFor(t *testing.T) {
	_, r := regions(t, 2)
	for _, c := range []struct {
		name   string
		end    func(p *Part) error
		filled bool
	}{
		{"done", func(p *Part) error { p.Done(); return nil }, true},
		{"closed", (*Part).Close, false},
		{"its process ends", func(p *Part) error { return p.r.Close() }, false},
	} {
		key := byte(len(c.name))
		p := take(t, r[0], key, 1000, false)
		p.Bytes()[7] = 42
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := r[1].Take(ctx, Key{key}, 1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: %v, want to have waited", c.name, err)
		}
		cancel()
		time.AfterFunc(20*time.Millisecond, func() {
			if err := c.end(p); err != nil {
				t.Error(err)
			}
		})
		got := take(t, r[1], key, 1000, c.filled)
		if (got.Bytes()[7] == 42) != c.filled {
			t.Errorf("%s: byte 7 is %d", c.name, got.Bytes()[7])
		}
		got.Close()
	}
}

// An invalid directory is refused, and so is a part without room.
func TestForeignParts(t *testing.T) {
	f, r := regions(t, 1)
	p := take(t, r[0], 1, 100, false)
	if _, err := r[0].Take(t.Context(), Key{1}, 101); !errors.Is(err, ErrForeign) {
		t.Errorf("another length of a part of this process: %v", err)
	}
	p.Close()
	for _, c := range []struct {
		name string
		harm func()
		n    int
		want error
	}{
		{"another length", func() {}, 101, ErrForeign},
		{"a place outside", func() { r[0].entry(0).at = regionSize }, 100, ErrForeign},
		{"a place in the directory", func() { r[0].entry(0).at = pageSize }, 100, ErrForeign},
		{"too many parts", func() { r[0].header().parts = 1 << 40 }, 100, ErrForeign},
		{"no room", func() { r[0].header().parts = 0; r[0].header().next = regionSize - pageSize }, 2 * pageSize, ErrFull},
		{"no entry", func() { r[0].header().parts = uint64(maxParts) }, 100, ErrFull},
		{"nothing", func() {}, 0, ErrFull},
	} {
		was, entry := *r[0].header(), r[0].entry(0).at
		c.harm()
		key := Key{1}
		if c.want == ErrFull {
			key = Key{9}
		}
		if _, err := r[0].Take(t.Context(), key, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		*r[0].header(), r[0].entry(0).at = was, entry
	}
	r[0].header().magic = 0
	if _, err := Open(f); !errors.Is(err, ErrForeign) {
		t.Errorf("opened: %v", err)
	}
	short, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	if _, err := Open(short); !errors.Is(err, ErrForeign) {
		t.Errorf("opened an empty file: %v", err)
	}
}

// Processes take, fill, abandon and release parts at random. The contents that they read are always
// right.
func TestPartsAtRandom(t *testing.T) {
	_, r := regions(t, 4)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				key := byte(rng.IntN(3))
				n := 3000 + int(key)
				p, err := r[i%4].Take(t.Context(), Key{key}, n)
				if err != nil {
					t.Error(err)
					return
				}
				if !p.Filled() {
					for j, x := range p.Bytes() {
						if x != 0 {
							t.Errorf("byte %d of part %d is %d before it is filled", j, key, x)
							return
						}
						p.Bytes()[j] = key + 1
					}
					if rng.IntN(3) > 0 {
						p.Done()
					}
				}
				if p.Filled() {
					for j := 0; j < n; j += 97 {
						if x := p.Bytes()[j]; x != key+1 {
							t.Errorf("byte %d of part %d is %d", j, key, x)
							return
						}
					}
				}
				if err := errors.Join(err, p.Close()); err != nil {
					t.Error(fmt.Errorf("part %d: %w", key, err))
					return
				}
			}
		})
	}
	all.Wait()
}
