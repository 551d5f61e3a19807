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
	mu   sync.Mutex
	maps map[*byte][]byte // content by handle
	all  [][]byte
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

func (d *device) Zero(b []byte)        { clear(d.at(b)) }
func (d *device) Read(to, b []byte)    { copy(to, d.at(b)) }
func (d *device) Write(b, from []byte) { copy(d.at(b), from) }
func (d *device) Copy(to, from []byte) { copy(d.at(to), d.at(from)) }

// TestRemote: the life of a sequence leaves the same rows on a device as in host memory, under every
// policy that goes by position. The host touches no block of the device.
func TestRemote(t *testing.T) {
	for _, spec := range []string{"full", "streaming:sink=4,recent=60", "streaming:sink=3,recent=130"} {
		for _, g := range []Geometry{small, windowed, mixed} {
			p := parse(spec)
			live := func(a *memory.Arena) (rows []byte) {
				note := func(s *Store) {
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
					note(other)
					other.Release()
					again.Release()
				}
				for _, n := range []int{64, 1, 71} {
					step(t, from, n)
				}
				note(from)
				owner, _, err := handOver(p, []*Store{from}, 0)
				if err != nil {
					t.Fatal(err)
				}
				note(owner)
				for _, n := range []int{1, 1, 3, 64, 1} {
					at := owner.Tokens()
					if err := owner.Reserve(at + n + 2); err != nil {
						t.Fatal(err)
					}
					write(owner, at, at+n+2)
					owner.Commit(n) // the others are rolled back
					note(owner)
				}
				owner.Release()
				segment.Release()
				return rows
			}
			host, d := memory.NewArena(1<<24), &device{maps: map[*byte][]byte{}}
			there := memory.NewArenaIn(d, 1<<24)
			want := live(host)
			if got := live(there); !bytes.Equal(got, want) {
				t.Errorf("%s: rows on a device differ from those in host memory", spec)
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
