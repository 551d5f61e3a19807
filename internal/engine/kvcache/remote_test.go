//go:build linux

package kvcache

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// device is a memory.Remote whose handles fault when the host touches them.
type device struct {
	mu   *sync.Mutex
	maps map[*byte][]byte // content by handle
	all  [][]byte

	copies, restores, rows int // calls of Read, Write and Copy; calls of Restore, and their rows
}

func (d *device) Map(n, _ int) ([]byte, error) {
	h, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.maps[&h[0]], d.all = make([]byte, n), append(d.all, h)
	}
	return h, err
}

func (d *device) Unmap(h []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.maps, &h[0])
	d.all = slices.DeleteFunc(d.all, func(x []byte) bool { return &x[0] == &h[0] })
	return unix.Munmap(h)
}

func (d *device) at(block []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.all {
		if off := uintptr(unsafe.Pointer(&block[0])) - uintptr(unsafe.Pointer(&h[0])); off < uintptr(len(h)) {
			return d.maps[&h[0]][off:][:len(block)]
		}
	}
	panic("not a block of this device")
}

func (d *device) Zero(b []byte) { clear(d.at(b)) }

func (d *device) Read(to, b []byte) {
	d.copies++
	copy(to, d.at(b))
}

func (d *device) Write(b, from []byte) {
	d.copies++
	copy(d.at(b), from)
}

func (d *device) Copy(to, from []byte) {
	d.copies++
	copy(d.at(to), d.at(from))
}

func (d *device) Restore(l tensor.KVLayout, rows []memory.Saved) {
	d.restores++
	d.rows += len(rows)
	type slot struct {
		block *byte
		slot  int
	}
	seen := map[slot]bool{}
	for _, r := range rows {
		at := slot{&r.Block[0], r.Slot}
		if seen[at] {
			panic("two rows for a slot: their order is undefined")
		}
		seen[at] = true
		l.LoadRow(d.at(r.Block), r.Slot, d.at(r.Rows), r.Row)
	}
}

// TestRemote: the life of a sequence leaves the same rows on a device as in host memory, under every
// policy that goes by position. The host touches no block of the device.
func TestRemote(t *testing.T) {
	for _, spec := range []string{"full", "streaming:sink=4,recent=60", "streaming:sink=3,recent=130"} {
		for _, g := range []Geometry{small, windowed, mixed} {
			p := parse(spec)
			live := func(a *memory.Arena, d *device) (rows []byte) {
				addRows := func(s *Store) {
					for layer := range g.Layers {
						for head := s.heads.Lo; head < s.heads.Hi; head++ {
							if t := s.table(layer, head); t.freed == 0 {
								rows = append(rows, slotRows(s, layer, head, 0, s.Len(layer, head))...)
							}
						}
					}
				}
				heads := tensor.Span{Lo: 0, Hi: g.KVHeads}
				from := read(t, a, g, heads, 64, 64)
				segment, err := from.Share(0)
				if err != nil {
					t.Fatal(err)
				}
				rows = segment.Append(rows)
				if g.Windows == nil { // a restored block is the start of another prompt
					again, err := NewSegment(a, g, heads, 0, segment.Append(nil))
					if err != nil {
						t.Fatal(err)
					}
					other := NewPrefill(a, g, heads)
					if err := other.Attach([]*Segment{again}); err != nil {
						t.Fatal(err)
					}
					step(t, other, 3)
					addRows(other)
					other.Release()
					again.Release()
				}
				for _, n := range []int{64, 1, 71} {
					step(t, from, n)
				}
				addRows(from)
				owner, _, err := handOver(p, []*Store{from}, 0)
				if err != nil {
					t.Fatal(err)
				}
				addRows(owner)
				for _, step := range [][2]int{{1, 2}, {1, 70}, {3, 2}, {64, 2}, {1, 2}} { // 70 tokens take some slots twice
					at, n, more := owner.Tokens(), step[0], step[1]
					if err := owner.Reserve(at + n + more); err != nil {
						t.Fatal(err)
					}
					write(owner, at, at+n+more)
					before := *d
					owner.Commit(n) // the others are rolled back
					if d.copies > before.copies || d.restores > before.restores+1+min(1, g.Local.KDim) {
						t.Errorf("%s: a rollback of %d tokens took %d copies of blocks and %d restores", spec, more,
							d.copies-before.copies, d.restores-before.restores)
					}
					addRows(owner)
				}
				owner.Release()
				segment.Release()
				return rows
			}
			host, d := memory.NewArena(1<<24), &device{mu: new(sync.Mutex), maps: map[*byte][]byte{}}
			there := memory.NewArenaIn(d, 1<<24)
			want := live(host, &device{})
			if got := live(there, d); !bytes.Equal(got, want) {
				t.Errorf("%s: rows on a device differ from those in host memory", spec)
			}
			if d.rows == 0 && p.Evicts() {
				t.Errorf("%s: no row was restored", spec)
			}
			if there.Used() != 0 || len(d.maps) != 0 {
				t.Errorf("%s: %d bytes and %d slabs remain", spec, there.Used(), len(d.maps))
			}
			if err := there.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
