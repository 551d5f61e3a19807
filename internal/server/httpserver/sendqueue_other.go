//go:build !linux

package httpserver

import "net"

// shortQueue is for systems that can bound what was written and not sent.
func shortQueue(net.Conn) {}
