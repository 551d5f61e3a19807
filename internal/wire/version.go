//go:build !otherwire

package wire

const (
	// Version is the wire version that this build writes; it reads MinVersion to Version.
	Version    = 8
	MinVersion = 8
)
