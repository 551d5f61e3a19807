package supervise

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnCPUs: a process gets the processors that it was given, and this one keeps its own.
func TestOnCPUs(t *testing.T) {
	runtime.LockOSThread() // affinity is of a thread
	defer runtime.UnlockOSThread()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("NOT TESTED: this machine has one processor")
	}
	last := 0
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			last = cpu
		}
	}
	var out strings.Builder
	cmd := exec.Command("grep", "Cpus_allowed_list", "/proc/self/status")
	cmd.Stdout = &out
	if err := onCPUs([]int{last}, cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, list, _ := strings.Cut(out.String(), ":"); strings.TrimSpace(list) != strconv.Itoa(last) {
		t.Errorf("the process may use processors %s, want %d alone", list, last)
	}
	var now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &now); err != nil || now != all {
		t.Errorf("this thread is left with %d processors of %d: %v", now.Count(), all.Count(), err)
	}
}
