//go:build unix

package supervise

import "syscall"

// ownGroup keeps Ctrl-C from a child: it reaches the parent alone, which drains.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
