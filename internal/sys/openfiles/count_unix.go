//go:build unix

package openfiles

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Count returns the limit of open files of this process and the number that are open; 0: unknown.
// At start Go raises the soft limit to the hard one.
func Count() (limit, open int) {
	limit = Limit()
	if limit == 0 {
		return 0, 0
	}
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		list = nil
	}
	return limit, len(list)
}

// Limit returns the limit of open files of this process; 0: unknown.
func Limit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || uint64(r.Cur) > 1<<30 {
		return 0
	}
	return int(r.Cur)
}

// Exhausted reports whether an error means that no more files can be opened.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
