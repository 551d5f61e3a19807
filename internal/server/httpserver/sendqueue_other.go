//go:build !linux

package httpserver

import "net"

// shortQueue is for systems that can bound the bytes that were written and not sent.
func shortQueue(net.Conn) {}
