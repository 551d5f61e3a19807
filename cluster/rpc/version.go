//go:build !otherwire

package rpc

const (
	// Version is the wire version that this build writes; it reads MinVersion to Version.
	Version    = 5
	MinVersion = 5
)
