// Package fixedport finds ports for listeners that come back: a process writes its port
// down, others keep it, and a later life of the process listens there again. Such a port
// must not be one that the system hands out in between.
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
	lowest = 10000 // below lie those of well-known services
	few    = 1000  // ports to choose from; with fewer, somebody soon has the same
	tries  = 100
)

// Listen takes a TCP port of host that is free now, and that is not among those that the
// system gives to outgoing connections and to listeners that ask for any.
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

// outside are the ports from first up to end, which leave out those from low to high:
// the ones below, else those above, else, where nearly all are handed out, a usual choice.
func outside(low, high int) (first, end int) {
	switch {
	case low >= lowest+few:
		return lowest, low
	case high < 65536-few:
		return max(high+1, lowest), 65536
	}
	return lowest, 32768
}

// ephemeral are the ports that this system hands out, from low to high. Where it does not
// say: 32768 and up, with which Linux begins; macOS and Windows begin at 49152.
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
