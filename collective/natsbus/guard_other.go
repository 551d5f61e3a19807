//go:build !linux

package natsbus

import "github.com/nats-io/nats-server/v2/server"

// guard works on Linux only. Elsewhere connections that do not log in end only after loginLimit.
func guard(*server.Server, <-chan struct{}) (wait func(), err error) { return func() {}, nil }
