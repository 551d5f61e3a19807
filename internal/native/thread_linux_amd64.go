//go:build !purego

package native

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A mailbox passes calls to the C thread and results back. The caller writes function and args,
// then raises request; the C thread writes result, then sets done to the number of the request.
// Both sides poll for a while and then sleep on a futex. thread_linux_amd64.s uses the fields by
// their offsets. It lies outside the Go heap.
type mailbox struct {
	request atomic.Uint32 // number of the last call
	asleep  atomic.Uint32 // 1: the C thread sleeps until request changes
	_       [56]byte
	done    atomic.Uint32 // number of the last call that returned
	waiting atomic.Uint32 // 1: the caller sleeps until done changes
	result  uintptr
	_       [48]byte
	fn      atomic.Uintptr // Pending reads it during a call
	args    [maxArgs]uintptr
}

// The C thread reads box once, when it starts.
var box *mailbox

var thread struct {
	start                  sync.Once
	err                    error
	mu                     sync.Mutex // held during a call
	dlopen, dlsym, dlerror Func
}

// startThread starts a thread that all signals are blocked on, with the flags of clone, and jumps
// to entry with the stack pointer at stack. It returns the thread's id, or -errno.
func startThread(flags, stack, entry uintptr) (tid int)

// serveAddress returns the address of serve, the endless loop of the C thread. The dynamic loader
// jumps there when it has loaded libc.
func serveAddress() uintptr

// stackSize is the stack size of the C thread; the lowest page is a guard.
const stackSize = 8 << 20

// linked returns an error if the program is linked dynamically.
func linked() error {
	if dynamic, err := linkedDynamically(); err != nil {
		return err
	} else if dynamic {
		return fmt.Errorf("%w: this program is linked dynamically; build it with CGO_ENABLED=0", ErrUnavailable)
	}
	return nil
}

func startC() error {
	if err := linked(); err != nil {
		return err
	}
	loader, err := mapLoader(loaderPath)
	if err != nil {
		return fmt.Errorf("%w: no dynamic loader of glibc: %w", ErrUnavailable, err)
	}
	p, err := newProgram()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	boxMemory, err := mapMemory(int(unsafe.Sizeof(mailbox{})))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	box = at[mailbox](boxMemory)
	box.request.Store(1)
	stack, err := mapMemory(stackSize)
	if err == nil {
		err = unix.Mprotect(unsafe.Slice(at[byte](stack), pageSize), unix.PROT_NONE)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	auxv, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	sp := initialStack(stack, stackSize, os.Environ(), auxv, map[uint64]uint64{
		atProgramHeaders:     uint64(p.headers),
		atProgramHeaderSize:  programHeaderSize,
		atProgramHeaderCount: uint64(p.headerCount),
		atLoaderBase:         uint64(loader.base),
		atEntry:              uint64(serveAddress()),
	})
	if err := startBlocked(sp, loader.entry); err != nil {
		return fmt.Errorf("%w: clone: %w", ErrUnavailable, err)
	}
	for box.done.Load() == 0 { // the C thread answers call 1 when libc is loaded
		futexWait(&box.done, 0)
	}
	thread.dlopen, thread.dlsym, thread.dlerror = p.function(0), p.function(1), p.function(2)
	return nil
}

// startBlocked starts the C thread with all signals blocked, so that the Go runtime's handlers
// never run there. Threads that C libraries start inherit this.
func startBlocked(stack, entry uintptr) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.Sigset_t
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return err
	}
	const flags = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD | unix.CLONE_SYSVSEM
	tid := startThread(flags, stack, entry)
	err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	if tid < 0 {
		return unix.Errno(-tid)
	}
	return err
}

func open(name string) (uintptr, error) {
	thread.start.Do(func() { thread.err = startC() })
	if thread.err != nil {
		return 0, thread.err
	}
	const now, global = 2, 0x100 // RTLD_NOW, RTLD_GLOBAL
	b := append([]byte(name), 0)
	thread.mu.Lock() // dlerror speaks of this dlopen
	defer thread.mu.Unlock()
	if h := exchange(thread.dlopen, uintptr(unsafe.Pointer(&b[0])), now|global); h != 0 {
		return h, nil
	}
	return 0, fmt.Errorf("native: %s", String(exchange(thread.dlerror)))
}

func symbol(handle uintptr, name string) Func {
	b := append([]byte(name), 0)
	return Func(thread.dlsym.Call(handle, uintptr(unsafe.Pointer(&b[0]))))
}

func call(fn Func, args []uintptr) uintptr {
	thread.mu.Lock()
	defer thread.mu.Unlock()
	return exchange(fn, args...)
}

func pending() (Func, uint32, bool) {
	done := box.done.Load() // before request: a call that begins meanwhile has not returned
	n := box.request.Load()
	return Func(box.fn.Load()), n, n != done
}

// polls is how often a caller looks for the result, in about 10 µs, before it sleeps. Tests change it.
var polls = 20000

// exchange has the C thread call a function. The caller holds thread.mu. Pointers among the arguments are
// converted as those of Func.Call: otherwise they may point to a goroutine's stack, which moves.
//
//go:uintptrescapes
func exchange(fn Func, args ...uintptr) uintptr {
	b := box
	b.fn.Store(uintptr(fn))
	copy(b.args[:], args)
	n := b.request.Add(1)
	if b.asleep.Load() != 0 {
		futexWake(&b.request)
	}
	slept := false
	for i := 0; b.done.Load() != n; i++ {
		if i < polls {
			continue
		}
		slept = true
		b.waiting.Store(1) // before done is read again: the C thread sets done, then reads waiting
		if v := b.done.Load(); v != n {
			futexWait(&b.done, v)
		}
	}
	// The C thread must not clear waiting: if it ran late, it would clear the flag of the next call, which would
	// then sleep forever.
	if slept {
		b.waiting.Store(0)
	}
	return b.result
}

const (
	futexWaitPrivate = 128     // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	futexWakePrivate = 128 | 1 // FUTEX_WAKE | FUTEX_PRIVATE_FLAG
)

// futexWait returns when a word no longer has the value v. It may return earlier, so its errors do
// not matter: callers look again.
func futexWait(word *atomic.Uint32, v uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitPrivate, uintptr(v), 0, 0, 0)
}

func futexWake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakePrivate, 1, 0, 0, 0)
}
