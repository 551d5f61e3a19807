//go:build otherwire

package wire

// Version of a build that does not exist, for TestOtherWireVersion of test/cluster. It never ships.
const (
	Version    = 9
	MinVersion = 9
)
