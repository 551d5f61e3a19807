package host

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Step is one feature that a simulated network needs of the machine, and the result of its test.
type Step struct {
	Name     string `json:"name"`
	Err      string `json:"error,omitempty"` // empty: it works
	Optional bool   `json:"optional,omitempty"`
}

// Probe tries the features that Create and Punctual need, on a thread that ends with it. Later steps
// run even if an earlier one fails.
func Probe() (steps []Step) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		try := func(name string, f func() error) {
			s := Step{Name: name}
			if err := f(); err != nil {
				s.Err = err.Error()
			}
			steps = append(steps, s)
		}
		optional := func(name string, f func() error) {
			try(name, f)
			steps[len(steps)-1].Optional = true
		}
		optional("real-time priority", func() error {
			return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}, 0)
		})
		try("network namespace", func() error { return unix.Unshare(unix.CLONE_NEWNET) })
		fd := -1
		try("TUN device", func() (err error) { fd, err = openTUN(); return err })
		if fd >= 0 {
			try("address of the device", func() error {
				return configure(1500, []netip.Prefix{netip.MustParsePrefix("10.77.1.1/16")})
			})
			optional("IPv6 address of the device", func() error { return addAddress(netip.MustParsePrefix("fd77::1:1/64")) })
			unix.Close(fd)
		}
		try("name of the namespace (bind mount)", func() error {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			f, err := os.CreateTemp(folder, "probe")
			if err != nil {
				return err
			}
			defer remove(f.Name())
			f.Close()
			return unix.Mount("/proc/thread-self/ns/net", f.Name(), "", unix.MS_BIND, "")
		})
		try("return to a namespace", func() error {
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
			if err != nil {
				return err
			}
			defer f.Close()
			return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		})
	}()
	<-done
	return steps
}
