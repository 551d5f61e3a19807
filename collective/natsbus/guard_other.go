//go:build !linux

package natsbus

import "github.com/nats-io/nats-server/v2/server"

// guard needs Linux: elsewhere connections that do not log in end by their time alone.
func guard(*server.Server, <-chan struct{}) (wait func(), err error) { return func() {}, nil }
