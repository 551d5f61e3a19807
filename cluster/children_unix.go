//go:build unix

package cluster

import "syscall"

// apart keeps Ctrl-C from a child: it reaches the parent alone, which drains.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
