//go:build otherwire

package wire

// Version of no build, for test/cluster, TestOtherWireVersion. It never ships.
const (
	Version    = 9
	MinVersion = 9
)
