//go:build unix

package openfiles

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Count is the number of files that this process may open, and the number that are open; 0: not
// known. Go raises the soft limit to the hard one at the start of a process.
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

// Limit is the number of files that this process may open; 0: not known.
func Limit() int {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil || uint64(r.Cur) > 1<<30 {
		return 0
	}
	return int(r.Cur)
}

// Exhausted reports whether an error says that no more files can be opened.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
