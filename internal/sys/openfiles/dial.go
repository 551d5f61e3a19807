package openfiles

import (
	"context"
	"net"
	"sync"
)

// dials keeps files for connections that this process opens to others: a new epoch needs some.
var dials = sync.OnceValue(func() *Reserve { return newReserve(16, 16) })

// Dial connects like net.Dialer, with a reserved file when the process has no other left.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	r := dials()
	r.Fill()
	for {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil || !Exhausted(err) || !r.Lend() {
			return c, err
		}
	}
}

// Refill takes back the files that Dial has used, as far as there are files.
func Refill() { dials().Fill() }
