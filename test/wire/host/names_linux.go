package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// names is the folder of the files that `ip netns exec` puts in the place of those of /etc.
const names = "/etc/netns"

const hostsFile = "/etc/hosts"

func namesOf(name string) string { return filepath.Join(names, prefix+name, "hosts") }

// SetNames writes the hosts file of a host. Processes on it read the new names at once.
func SetNames(name string, text []byte) error {
	path := namesOf(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil { // in place: a rename would not change the mounted file
		return fmt.Errorf("host %s: %w", name, err)
	}
	return nil
}

// ShowNames puts a hosts file in the place of that of the machine, for the calling thread, which must be locked, and
// the processes that it starts.
func ShowNames(file string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare of mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount(file, hostsFile, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount of %s on %s: %w", file, hostsFile, err)
	}
	return nil
}

// JoinWithNames moves the calling thread, which must be locked, to a host of the running network, with its names.
func JoinWithNames(name string) error {
	if err := Join(name); err != nil {
		return err
	}
	if _, err := os.Stat(namesOf(name)); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("host %s: %w", name, err)
	}
	if err := ShowNames(namesOf(name)); err != nil {
		return fmt.Errorf("host %s: %w", name, err)
	}
	return nil
}
