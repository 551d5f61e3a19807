//go:build linux

package native

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// libc opens the C library, or skips the test where the test program cannot do it: under the race
// detector, which links dynamically, and on other processors.
func libc(t testing.TB) *Library {
	t.Helper()
	l, err := Open("libc.so.6")
	if errors.Is(err, ErrUnavailable) && (raceDetector || runtime.GOARCH != "amd64") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func function(t testing.TB, l *Library, name string) Func {
	t.Helper()
	f, err := l.Func(name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func bytesOf(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s))) }

func TestCall(t *testing.T) {
	l := libc(t)
	if got := function(t, l, "getpid").Call(); int(got) != os.Getpid() {
		t.Errorf("getpid returned %d, this is process %d", got, os.Getpid())
	}
	// Every position of the arguments, in registers and on the stack.
	var out [256]byte
	format := "%ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld\x00"
	n := function(t, l, "snprintf").Call(uintptr(unsafe.Pointer(&out[0])), uintptr(len(out)),
		bytesOf(format), 1, 22, 333, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1<<40)
	const want = "1 22 333 4 5 6 7 8 9 10 11 12 1099511627776"
	if got := string(out[:n]); got != want {
		t.Errorf("snprintf wrote %q, want %q", got, want)
	}
	if got := String(uintptr(unsafe.Pointer(&out[0]))); got != want {
		t.Errorf("String returned %q, want %q", got, want)
	}
	if got := String(0); got != "" {
		t.Errorf("String of a null pointer is %q", got)
	}
}

// C has the environment of the process. The loader finds libraries by it.
func TestEnvironment(t *testing.T) {
	l := libc(t)
	name := "PATH\x00"
	if got := String(function(t, l, "getenv").Call(bytesOf(name))); got != os.Getenv("PATH") {
		t.Errorf("getenv returned %q, want %q", got, os.Getenv("PATH"))
	}
}

func TestNotFound(t *testing.T) {
	l := libc(t)
	if _, err := Open("libnowhere.so.7"); err == nil || !strings.Contains(err.Error(), "libnowhere.so.7: cannot open shared object file") {
		t.Errorf("a library that does not exist: %v", err)
	}
	if _, err := l.Func("no_function_has_this_name"); err == nil ||
		!strings.Contains(err.Error(), "libc.so.6 has no function no_function_has_this_name") {
		t.Errorf("a function that does not exist: %v", err)
	}
	for _, bad := range []string{"", "a\x00b"} {
		if _, err := Open(bad); err == nil {
			t.Errorf("Open(%q) succeeded", bad)
		}
		if _, err := l.Func(bad); err == nil {
			t.Errorf("Func(%q) succeeded", bad)
		}
	}
}

// A second library is found by its name.
func TestOtherLibrary(t *testing.T) {
	libc(t)
	l, err := Open("libm.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if got := function(t, l, "ilogb"); got == 0 {
		t.Error("no address")
	}
}

// The Go runtime continues as before: collections, signals, child processes and goroutines that
// call at the same time leave every result right.
func TestUnderLoad(t *testing.T) {
	l := libc(t)
	strlen := function(t, l, "strlen")
	usleep := function(t, l, "usleep")
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)

	stop := make(chan struct{})
	var disturbers, callers sync.WaitGroup
	disturb := func(pause time.Duration, f func()) {
		disturbers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
					f()
				}
			}
		})
	}
	disturb(time.Millisecond, func() { syscall.Kill(os.Getpid(), syscall.SIGUSR1) })
	disturb(3*time.Millisecond, runtime.GC)
	disturb(20*time.Millisecond, func() {
		if err := exec.Command("true").Run(); err != nil {
			t.Error(err)
		}
	})
	for caller := range 4 {
		callers.Go(func() {
			for i := range 300 {
				n := (caller*131 + i) % 500
				s := make([]byte, n+1) // garbage at once
				for j := range n {
					s[j] = 'x'
				}
				if got := strlen.Call(uintptr(unsafe.Pointer(&s[0]))); int(got) != n {
					t.Errorf("strlen returned %d, want %d", got, n)
					return
				}
				if i%100 == 0 {
					usleep.Call(20000) // longer than both sides poll
				}
			}
		})
	}
	callers.Wait()
	close(stop)
	disturbers.Wait()
}

func BenchmarkCall(b *testing.B) {
	f := function(b, libc(b), "getppid")
	for b.Loop() {
		f.Call()
	}
}
