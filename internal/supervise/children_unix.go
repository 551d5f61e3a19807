//go:build unix

package supervise

import "syscall"

// ownGroup keeps Ctrl-C from a child. Only the parent receives it and drains.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
