//go:build linux

package native

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

var stress = flag.Duration("stress", 3*time.Second, "time of TestCallsReturn")

// stressProcs is a variable of the environment that makes a test process call C: its GOMAXPROCS.
const stressProcs = "SHOAL_NATIVE_STRESS_PROCS"

// setPolls sets how often a caller looks before it sleeps; nil: this build has no such number.
var setPolls func(int)

// TestCallsReturn: every call returns, also the loader's start and the first calls. Short processes call C while
// other goroutines take the processors, the collector runs and signals arrive. Most calls take about as long as a
// caller polls before it sleeps, where a lost wake-up hangs it; in every second process callers sleep at once.
func TestCallsReturn(t *testing.T) {
	if procs, err := strconv.Atoi(os.Getenv(stressProcs)); err == nil {
		callUnderStress(t, procs)
		return
	}
	libc(t)
	const limit = time.Minute // for one process, which takes about 0.3 s
	calls := 0
	for end, i := time.Now().Add(*stress), 0; i < 4 || time.Now().Before(end); i++ {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCallsReturn$")
		procs := []int{1, 4, 2, 8}[i%4] // with 4 and 8 callers do not poll
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%d", stressProcs, procs), "GOTRACEBACK=all")
		child.Cancel = func() error { return child.Process.Signal(syscall.SIGQUIT) }
		child.WaitDelay = 5 * time.Second
		var out bytes.Buffer
		child.Stdout, child.Stderr = &out, &out
		err := child.Run()
		cancel()
		if err != nil {
			t.Fatalf("process %d, after %d calls: %v\n%s", i, calls, err, out.String())
		}
		n, err := strconv.Atoi(strings.TrimSpace(strings.Split(out.String(), "\n")[0]))
		if err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		calls += n
	}
	t.Logf("%d calls", calls)
}

// callUnderStress calls C for a short time, and prints the number of calls. Callers that sleep at once make the most
// calls when nothing else delays them.
func callUnderStress(t *testing.T, procs int) {
	runtime.GOMAXPROCS(procs)
	lib, most, together, long := libc(t), 256<<10, 2, 300*time.Millisecond
	if procs >= 4 && setPolls != nil {
		setPolls(0)
		most, together, long = 2000, 1, time.Second
	}
	memory := make([]byte, most)
	memset, strlen := function(t, lib, "memset"), function(t, lib, "strlen")
	var stop atomic.Bool
	var disturbers, callers sync.WaitGroup
	until := func(f func()) {
		disturbers.Go(func() {
			for !stop.Load() {
				f()
			}
		})
	}
	for range 2 {
		until(func() {})
	}
	until(func() { runtime.GC(); time.Sleep(time.Millisecond) })
	if together > 1 {
		until(func() { _ = syscall.Kill(os.Getpid(), syscall.SIGURG); time.Sleep(200 * time.Microsecond) })
	}
	var calls atomic.Int64
	for i := range together {
		callers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(i)))
			for began := time.Now(); time.Since(began) < long; calls.Add(1) {
				n := r.IntN(len(memory))
				if p := uintptr(unsafe.Pointer(&memory[0])); memset.Call(uintptr(unsafe.Pointer(&memory[0])), 1, uintptr(n)) != p {
					t.Errorf("memset did not return its argument")
				}
				if together == 1 {
					continue
				}
				s := append(bytes.Repeat([]byte{'x'}, n%100), 0)
				if got := strlen.Call(uintptr(unsafe.Pointer(&s[0]))); int(got) != n%100 {
					t.Errorf("strlen returned %d, want %d", got, n%100)
				}
			}
		})
	}
	callers.Wait()
	stop.Store(true)
	disturbers.Wait()
	fmt.Println(calls.Load())
}
