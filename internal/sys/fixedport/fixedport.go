// Package fixedport finds ports for listeners that a process reopens after a restart. The process
// stores its port and others remember it, so the system must not assign it to anything in between.
package fixedport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

const (
	lowest = 10000 // well-known services use lower ports
	few    = 1000  // the least number of ports to choose from; with fewer, two processes soon choose the same
	tries  = 100
)

// Listen opens a free TCP port of host outside of the ephemeral range, from which the system serves
// outgoing connections and listeners on port 0.
func Listen(host string) (l net.Listener, err error) {
	first, end := outside(ephemeral())
	for range tries {
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(first+rand.IntN(end-first)))); err == nil {
			return l, nil
		}
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			break
		}
	}
	return nil, fmt.Errorf("no port of %s between %d and %d can be listened at: %w", host, first, end-1, err)
}

// outside returns ports [first, end) outside of the ephemeral range low to high: the ports below
// it, otherwise those above it, otherwise a usual choice.
func outside(low, high int) (first, end int) {
	switch {
	case low >= lowest+few:
		return lowest, low
	case high < 65536-few:
		return max(high+1, lowest), 65536
	}
	return lowest, 32768
}

// ephemeral returns the system's ephemeral range, low to high. If it is unknown: 32768 and up, as
// on Linux; macOS and Windows start at 49152.
func ephemeral() (low, high int) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(b), &low, &high)
	}
	if err != nil || low < 1 || high > 65535 || low > high {
		return 32768, 65535
	}
	return low, high
}
