//go:build otherwire

package rpc

// Version of no build. It is there for test/cluster, TestOtherWireVersion, and never ships.
const (
	Version    = 9
	MinVersion = 9
)
