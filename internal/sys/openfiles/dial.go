package openfiles

import (
	"context"
	"net"
	"sync"
)

// dials reserves files for outgoing connections, which a new epoch needs.
var dials = sync.OnceValue(func() *Reserve { return newReserve(16, 16) })

// Dial connects like net.Dialer. If the process has no free file left, it uses a reserved one.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	r := dials()
	r.Fill()
	for {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil || !Exhausted(err) || !r.Take() {
			return c, err
		}
	}
}

// Refill reopens the reserved files that Dial has used, as far as files are free.
func Refill() { dials().Fill() }
