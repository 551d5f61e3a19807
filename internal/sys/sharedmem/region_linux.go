package sharedmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The file starts with a directory: a header and an entry for each part ever used. A part keeps its
// place for good. While no process holds it, no memory backs it.
const (
	magic      = 0x31747261506c6f68 // "holPart1"
	regionSize = 1 << 38            // of addresses, not of memory
	pageSize   = 4 << 10
	hugeSize   = 2 << 20
	directory  = 256 << 10
	entrySize  = int(unsafe.Sizeof(entry{}))
	maxParts   = directory/entrySize - 1
	look       = 2 * time.Millisecond // the polling interval while another process fills a part
)

// header occupies the place of the first entry.
type header struct {
	magic uint64
	parts uint64 // entries that follow
	next  uint64 // place of the next part
	_     [40]byte
}

type entry struct {
	key   Key
	at, n uint64
	state atomic.Uint32
	_     [12]byte
}

// States of a part. A part in state filling whose filler is gone is incomplete.
const (
	empty uint32 = iota
	filling
	filled
)

// Offsets of single-byte locks. They are far beyond all parts and never written.
const (
	lockDirectory = 1 << 60 // exclusive: the process that looks a part up
	lockHolders   = 2 << 60 // + number: shared by holders, exclusive while emptying the part
	lockFillers   = 3 << 60 // + number: exclusive, the filler
)

// Create makes a file for parts, without memory yet, to hand to the processes that share it. It
// returns ErrUnsupported if the parts cannot be in huge pages. Without those, weights are read a
// fifth slower, which costs more than sharing gains for a single process.
func Create() (*os.File, error) {
	fd, err := unix.MemfdCreate("shoal-shared", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, errors.Join(ErrUnsupported, err)
	}
	f := os.NewFile(uintptr(fd), "shoal-shared")
	err = prepare(fd)
	if err == nil {
		var r *Region
		if r, err = Open(f); err == nil { // as the processes that receive it will, under the same limits
			err = r.Close()
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func prepare(fd int) error {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err != nil || most.Cur < regionSize { // a write beyond the limit would end in a signal
		return errors.Join(ErrUnsupported, err, errors.New("the size of files is limited"))
	}
	if err := unix.Ftruncate(fd, 2*hugeSize); err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	m, err := mapFile(fd, 2*hugeSize)
	if err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	defer func() { _ = m.free() }()
	probe := m.bytes
	probe[0] = 1 // collapse needs a page that exists
	if err := collapse(probe[:hugeSize]); err != nil {
		return fmt.Errorf("%w: no huge pages: %w", ErrUnsupported, err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 2*hugeSize); err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	if err := unix.Ftruncate(fd, regionSize); err != nil {
		return errors.Join(ErrUnsupported, err)
	}
	h := (*header)(unsafe.Pointer(&probe[0]))
	h.magic, h.next = magic, hugeSize
	return nil
}

// mapping is a mapped file, aligned to huge pages, as huge pages of a file require.
type mapping struct {
	bytes []byte
	whole unsafe.Pointer
	size  uintptr
}

func mapFile(fd, size int) (m mapping, err error) {
	m.size = uintptr(size) + hugeSize
	if m.whole, err = unix.MmapPtr(-1, 0, nil, m.size, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE); err != nil {
		return m, err
	}
	at := unsafe.Add(m.whole, -uintptr(m.whole)&(hugeSize-1))
	if _, err = unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return m, errors.Join(err, m.free())
	}
	m.bytes = unsafe.Slice((*byte)(at), size)
	return m, nil
}

func (m *mapping) free() error { return unix.MunmapPtr(m.whole, m.size) }

// collapse converts the memory of b to huge pages, or maps the file's huge pages into this process.
// Another process that does the same can make it fail for a moment, so it retries.
func collapse(b []byte) error {
	var err error
	for try := range 20 {
		_, _, e := unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MADV_COLLAPSE)
		if e == 0 {
			return nil
		}
		if err = e; e != unix.EAGAIN && e != unix.EBUSY {
			return err
		}
		time.Sleep(time.Duration(1+(try+os.Getpid())%5) * time.Millisecond)
	}
	return err
}

// Region is a process's view of the parts.
type Region struct {
	file *os.File
	all  []byte // the bytes of m
	m    mapping

	mu   sync.Mutex
	held map[Key]*held // parts that this process holds
}

type held struct {
	number int
	refs   int
	mine   bool // this process fills it
}

// Open maps the parts of a file that Create made and this process received. The caller keeps the
// file.
func Open(f *os.File) (*Region, error) {
	own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0) // a new open file description, with locks of its own
	if err != nil {
		return nil, errors.Join(ErrUnsupported, err)
	}
	r := &Region{file: own, held: map[Key]*held{}}
	if st, err := own.Stat(); err != nil || st.Size() != regionSize {
		return nil, errors.Join(ErrForeign, err, own.Close())
	}
	if r.m, err = mapFile(int(own.Fd()), regionSize); err != nil {
		return nil, errors.Join(ErrUnsupported, err, own.Close())
	}
	r.all = r.m.bytes
	if r.header().magic != magic {
		return nil, errors.Join(ErrForeign, r.Close())
	}
	return r, nil
}

// Close releases everything; no part may be used afterwards. It may be called twice.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		return nil
	}
	r.all = nil
	return errors.Join(r.m.free(), r.file.Close())
}

func (r *Region) header() *header { return (*header)(unsafe.Pointer(&r.all[0])) }

func (r *Region) entry(i int) *entry { return (*entry)(unsafe.Pointer(&r.all[(i+1)*entrySize])) }

// lock locks or unlocks one byte of the file. wait: wait for conflicting locks.
func (r *Region) lock(kind int16, at int64, wait bool) error {
	cmd := unix.F_OFD_SETLK
	if wait {
		cmd = unix.F_OFD_SETLKW
	}
	for {
		err := unix.FcntlFlock(r.file.Fd(), cmd, &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: at, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// unlock cannot fail while the file is open. Closing the file releases the lock too.
func (r *Region) unlock(at int64) { _ = r.lock(unix.F_UNLCK, at, false) }

func inTheWay(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }

// find returns the number of the part with a key and n bytes. A new part gets a place.
func (r *Region) find(key Key, n int) (int, error) {
	if err := r.lock(unix.F_WRLCK, lockDirectory, true); err != nil {
		return 0, err
	}
	defer r.unlock(lockDirectory)
	h := r.header()
	if h.parts > uint64(maxParts) || h.next > regionSize || h.next%pageSize != 0 {
		return 0, ErrForeign
	}
	for i := range int(h.parts) {
		if e := r.entry(i); e.key == key {
			if e.n > regionSize || e.at < directory || e.at%pageSize != 0 || e.at > regionSize-e.n {
				return 0, fmt.Errorf("%w: part %x has %d bytes at %d", ErrForeign, key[:4], e.n, e.at)
			}
			return i, nil
		}
	}
	size := uint64(n+pageSize-1) &^ (pageSize - 1)
	if int(h.parts) == maxParts || size > regionSize-h.next {
		return 0, ErrFull
	}
	e := r.entry(int(h.parts))
	e.key, e.at, e.n = key, h.next, uint64(n)
	e.state.Store(empty)
	h.next += size
	h.parts++
	return int(h.parts) - 1, nil
}

// Part is a process's reference to one part.
type Part struct {
	r      *Region
	key    Key
	bytes  []byte
	filled bool
	closed atomic.Bool
}

// Take returns the part of n bytes under key, for the caller until Close. If Filled, it has its
// contents and must not be written. Otherwise it is zero and the caller must fill it, then call
// Done; others wait until then. Take waits while another process fills it.
func (r *Region) Take(ctx context.Context, key Key, n int) (*Part, error) {
	if n <= 0 || n > regionSize {
		return nil, fmt.Errorf("%w: a part of %d bytes", ErrFull, n)
	}
	for {
		p, err := r.take(key, n)
		if p != nil || err != nil {
			return p, err
		}
		select {
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			return nil, errors.Join(context.Cause(ctx), r.drop(key))
		case <-time.After(look):
		}
	}
}

// take is Take without waiting. It returns nil while another process fills the part.
func (r *Region) take(key Key, n int) (*Part, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.held[key]
	if h == nil {
		i, err := r.find(key, n)
		if err == nil {
			err = r.lock(unix.F_RDLCK, lockHolders+int64(i), true)
		}
		if err != nil {
			return nil, err
		}
		h = &held{number: i}
		r.held[key] = h
	}
	e := r.entry(h.number)
	if e.n != uint64(n) {
		return nil, errors.Join(fmt.Errorf("%w: part %x has %d bytes, not %d", ErrForeign, key[:4], e.n, n), r.drop(key))
	}
	p := &Part{r: r, key: key, bytes: r.all[e.at : e.at+e.n : e.at+e.n], filled: e.state.Load() == filled}
	if !p.filled {
		if h.mine {
			return nil, nil
		}
		switch err := r.lock(unix.F_WRLCK, lockFillers+int64(h.number), false); {
		case inTheWay(err):
			return nil, nil
		case err != nil:
			return nil, errors.Join(err, r.drop(key))
		}
		if p.filled = e.state.Load() == filled; p.filled { // filled in the meantime
			r.unlock(lockFillers + int64(h.number))
		} else {
			if e.state.Swap(filling) == filling { // its filler has died
				if err := r.punch(e); err != nil {
					return nil, errors.Join(err, r.drop(key))
				}
			}
			h.mine = true
		}
	}
	h.refs++
	return p, nil
}

// drop releases a part without references in this process, and frees its memory if no other process
// holds it. The lock is held.
func (r *Region) drop(key Key) error {
	h := r.held[key]
	if h == nil || h.refs > 0 {
		return nil
	}
	delete(r.held, key)
	at := lockHolders + int64(h.number)
	if h.mine {
		r.unlock(lockFillers + int64(h.number))
	}
	r.unlock(at) // if several release it at once, the last one gets the exclusive lock
	err := r.lock(unix.F_WRLCK, at, false)
	if inTheWay(err) {
		return nil
	}
	if err == nil {
		e := r.entry(h.number)
		err = r.punch(e)
		e.state.Store(empty)
	}
	r.unlock(at)
	return err
}

// punch frees a part's memory; the part is zero afterwards.
func (r *Region) punch(e *entry) error {
	n := int64(e.n+pageSize-1) &^ (pageSize - 1)
	return unix.Fallocate(int(r.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(e.at), n)
}

// Bytes returns the part's memory.
func (p *Part) Bytes() []byte { return p.bytes }

// Filled reports whether the part has its contents.
func (p *Part) Filled() bool { return p.filled }

// Done reports that the caller has filled the part.
func (p *Part) Done() {
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.held[p.key]
	if p.filled || h == nil || !h.mine {
		return
	}
	p.filled, h.mine = true, false
	r.entry(h.number).state.Store(filled)
	r.unlock(lockFillers + int64(h.number))
}

// Close releases the part; it may be called twice. If its filler closes it without Done, the next
// process that takes it starts over.
func (p *Part) Close() error {
	if p.closed.Swap(true) {
		return nil
	}
	r := p.r
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.held[p.key]
	if h == nil {
		return nil
	}
	h.refs--
	return r.drop(p.key)
}

// Huge requests huge pages for all parts of this process. It returns the number of huge-page-sized
// pieces in huge pages, and the number of all such pieces.
func (r *Region) Huge() (huge, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[uint64]bool{}
	for _, h := range r.held {
		e := r.entry(h.number)
		for at := e.at &^ (hugeSize - 1); at < e.at+e.n; at += hugeSize {
			if seen[at] {
				continue
			}
			seen[at] = true
			if all++; collapse(r.all[at:at+hugeSize]) == nil {
				huge++
			}
		}
	}
	return huge, all
}
