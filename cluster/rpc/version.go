//go:build !otherwire

package rpc

const (
	// Version is the wire version that this build writes; it reads MinVersion to Version.
	Version    = 4
	MinVersion = 4
)
