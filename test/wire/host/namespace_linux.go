package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// folder and prefix of the names of namespaces, so that `ip netns exec wire-a1 COMMAND` works.
const (
	folder = "/run/netns"
	prefix = "wire-"
)

// Namespace is one named network namespace.
type Namespace struct {
	Name   string // of the host
	Device int    // descriptor of the TUN device
}

// Create creates the namespace of a host.
func Create(name string, mtu int, addresses ...netip.Prefix) (*Namespace, error) {
	path := pathOf(name)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if os.IsExist(err) {
		return nil, fmt.Errorf("namespace %s exists: another network runs, or one was killed; remove it with `wire down`", filepath.Base(path))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.Close()
	n := &Namespace{Name: name, Device: -1}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		fd, err := Enter(mtu, addresses...)
		if err == nil {
			n.Device = fd
			if err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
				err = fmt.Errorf("mount of %s: %w", path, err)
			}
		}
		done <- err
	}()
	if err := <-done; err != nil {
		n.Remove()
		return nil, fmt.Errorf("host %s: %w", name, err)
	}
	return n, nil
}

// Remove deletes the namespace. Processes in it keep it, without a network.
func (n *Namespace) Remove() {
	if n.Device >= 0 {
		unix.Close(n.Device)
		n.Device = -1
	}
	remove(pathOf(n.Name))
	_ = os.RemoveAll(filepath.Dir(namesOf(n.Name)))
}

func pathOf(name string) string { return filepath.Join(folder, prefix+name) }

func remove(path string) {
	_ = unix.Unmount(path, unix.MNT_DETACH) // fails if Create did not get as far
	_ = os.Remove(path)
}

// RemoveAll deletes the namespaces of hosts that a killed process left. It returns their number.
func RemoveAll() (n int, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		if os.IsNotExist(err) {
			return 0, nil
		}
		return 0, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			remove(filepath.Join(folder, e.Name()))
			_ = os.RemoveAll(filepath.Join(names, e.Name()))
			n++
		}
	}
	return n, nil
}

// Join moves the calling thread, which must be locked, to the namespace of a host.
func Join(name string) error {
	fd, err := unix.Open(pathOf(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("no host %s: %w; start the network with `wire up`", name, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	return nil
}

// In runs f on a thread inside the namespace of a host. Sockets that f makes stay there.
func In(name string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := Join(name)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Sysctl changes kernel settings in the namespace of a host.
func Sysctl(name string, settings map[string]string) error {
	return In(name, func() error {
		for key, value := range settings {
			if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0o644); err != nil {
				return fmt.Errorf("host %s: sysctl %s: %w", name, key, err)
			}
		}
		return nil
	})
}
