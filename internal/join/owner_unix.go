//go:build unix

package join

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// checkOwner refuses root in the folder of another user: the files that it writes could not be read by the server.
func checkOwner(dir string, info fs.FileInfo) error {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || s.Uid == 0 {
		return nil
	}
	name := "#" + strconv.Itoa(int(s.Uid)) // as sudo takes it
	if u, err := user.LookupId(strconv.Itoa(int(s.Uid))); err == nil {
		name = u.Username
	}
	return fmt.Errorf("join: %s belongs to another user, whose server could not read the files of root: run this command with `sudo -u '%s'`",
		dir, name)
}
